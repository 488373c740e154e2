//! Clients' calls in the log, and how they end. The node's messages for them have the same `lock`
//! (`lockify_node::lock_label`).

use lockify_core::{ClientId, Completion, LockArgs, LockFlags, LockId, LostReason, Mode, Name};
use lockify_node::{REQUESTS, SpaceId, lock_label, requests_are_logged};
use lockify_session::protocol::{LockRef, Space};
use tracing::debug;

use super::ClientHost;

/// A client's request.
pub(super) struct Asked {
    name: Name,
    mode: Mode,
    flags: LockFlags,
}

impl Asked {
    pub(super) fn of(args: &LockArgs) -> Asked {
        Asked { name: args.name, mode: args.mode, flags: args.flags }
    }

    fn detail(&self) -> String {
        format!("{:?} {:?}", self.mode, self.flags)
    }
}

impl ClientHost {
    /// A new lock, if requests are logged. Its id is known when its first message has left.
    pub(super) fn log_lock(
        &self,
        space: Space,
        client: ClientId,
        lock: LockId,
        asked: Option<&Asked>,
    ) {
        let Some(asked) = asked else { return };
        let (lockspace, lock) = self.label(space.0 as usize, lock);
        let (node, name, detail) = (self.node.0, asked.name.to_string(), asked.detail());
        debug!(target: REQUESTS, node, lockspace, lock, client = session(client), name, detail, "lock");
    }

    /// A request that was refused before it became a lock.
    pub(super) fn log_refused(
        &self,
        client: ClientId,
        asked: Option<&Asked>,
        why: &dyn std::fmt::Display,
    ) {
        let Some(asked) = asked else { return };
        let (node, name, detail) = (self.node.0, asked.name.to_string(), asked.detail());
        let why = why.to_string();
        debug!(target: REQUESTS, node, client = session(client), name, detail, why, "refused");
    }

    /// A client's call about a lock that it has.
    pub(super) fn log_call(
        &self,
        what: &str,
        client: ClientId,
        lock: LockRef,
        detail: impl FnOnce() -> String,
    ) {
        if !requests_are_logged() {
            return;
        }
        let (lockspace, lock) = self.label(lock.space.0 as usize, lock.lock);
        let (node, client, detail) = (self.node.0, session(client), detail());
        debug!(target: REQUESTS, node, lockspace, lock, client, detail, "{what}");
    }

    /// The end of a client's call.
    pub(super) fn log_end(&self, space: SpaceId, done: &Completion) {
        if !requests_are_logged() {
            return;
        }
        let Some(i) = self.number(space) else { return };
        let (lockspace, lock) = self.label(i, done.lock);
        let (node, client) = (self.node.0, session(done.client));
        let mode = done.mode.map(|m| format!("{m:?}"));
        let (status, token) = (format!("{:?}", done.status), done.token.to_string());
        debug!(target: REQUESTS, node, lockspace, lock, client, status, mode, token, "ended");
    }

    /// A lock that is no longer held.
    pub(super) fn log_lost(
        &self,
        space: SpaceId,
        client: ClientId,
        lock: LockId,
        why: &LostReason,
    ) {
        if !requests_are_logged() {
            return;
        }
        let Some(i) = self.number(space) else { return };
        let (lockspace, lock) = self.label(i, lock);
        let (node, client, why) = (self.node.0, session(client), format!("{why:?}"));
        debug!(target: REQUESTS, node, lockspace, lock, client, why, "lost");
    }

    /// The lockspace's name and the lock's. The number of a lockspace may be any that a client sent.
    fn label(&self, space: usize, lock: LockId) -> (&str, String) {
        let name = self.spaces.get(space).map_or("?", |s| s.name.as_str());
        (name, lock_label(name, self.node, self.shard, lock))
    }
}

/// As `who` shows it.
fn session(client: ClientId) -> String {
    format!("{}.{}", client.0 >> 32, client.0 & 0xffff_ffff)
}
