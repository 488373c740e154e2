//! Requests in the log, on their way from node to node.
//!
//! A request's id is its lock's: every message about a lock carries the owner's id of it and the
//! number of the lock's operation, as the lock manager needs both. An id of its own would only make
//! all messages longer. Messages about a name whose master the asker does not know (claims, O2CB's
//! rounds) are logged with the name, and claims with their number, too.

use lockify_core::message::{Answer, Ask, Body, Granted};
use lockify_core::{LockId, Name, NodeId};

use super::NodeEngine;

/// The log's target for requests: nothing is said unless it is switched on.
pub const REQUESTS: &str = "lockify::request";

/// Returns true if requests are logged. If not, the call costs a load and a comparison.
pub fn requests_are_logged() -> bool {
    tracing::enabled!(target: REQUESTS, tracing::Level::DEBUG)
}

/// A lock's name in the log, the same on all nodes: lock ids are unique within a lockspace and
/// shard of a node only.
pub fn lock_label(space: &str, owner: NodeId, shard: u32, lock: LockId) -> String {
    format!("{space}/{owner}.{shard}/{:x}", lock.0)
}

/// A message's information about a lock or a name.
#[derive(Default)]
struct Said<'a> {
    what: &'static str,
    lock: Option<Whose>,
    name: Option<&'a Name>,
    /// The number of the lock's operation.
    op: Option<u32>,
    /// The number of the claim.
    claim: Option<u64>,
    detail: Option<String>,
}

/// The owner of a message's lock, by the owner's id of it.
enum Whose {
    Senders(LockId),
    Receivers(LockId),
}

impl<'a> Said<'a> {
    fn asks(what: &'static str, ask: &'a Ask) -> Said<'a> {
        let lock = Some(Whose::Senders(ask.lkid));
        Said {
            what,
            lock,
            op: Some(ask.op),
            detail: Some(format!("{:?}", ask.mode)),
            ..Said::default()
        }
    }

    fn tells(what: &'static str, lock: &LockId, detail: String) -> Said<'a> {
        let detail = Some(detail).filter(|d| !d.is_empty());
        Said { what, lock: Some(Whose::Receivers(*lock)), detail, ..Said::default() }
    }

    fn about(what: &'static str, name: &'a Name) -> Said<'a> {
        Said { what, name: Some(name), ..Said::default() }
    }
}

/// An answer without the lock value block, which is nobody else's business.
fn answered(answer: &Answer) -> String {
    match answer {
        Answer::Granted(granted) => format!("Granted {}", granted_mode(granted)),
        other => format!("{other:?}"),
    }
}

fn granted_mode(granted: &Granted) -> String {
    format!("{:?} token {}", granted.mode, granted.token)
}

/// The parts of a message that belong to requests. Recoveries' work on whole directories does not.
fn said(body: &Body) -> Vec<Said<'_>> {
    let one = match body {
        Body::Lookup { new, .. } => {
            Said { name: Some(&new.name), ..Said::asks("lookup", &new.ask) }
        }
        Body::Request(new) => Said { name: Some(&new.name), ..Said::asks("request", &new.ask) },
        Body::Merge { new, .. } => Said { name: Some(&new.name), ..Said::asks("merge", &new.ask) },
        Body::Convert { ask, .. } => Said::asks("convert", ask),
        Body::Unlock { ask, .. } => Said { detail: None, ..Said::asks("unlock", ask) },
        Body::Cancel { lkid, op, .. } => {
            let lock = Some(Whose::Senders(*lkid));
            Said { what: "cancel", lock, op: Some(*op), ..Said::default() }
        }
        Body::LookupReply { lkid, op, master } => {
            Said { op: Some(*op), ..Said::tells("master", lkid, master.to_string()) }
        }
        Body::Reply { lkid, op, answer, .. } => {
            Said { op: Some(*op), ..Said::tells("reply", lkid, answered(answer)) }
        }
        Body::Grant { lkid, granted, .. } => Said::tells("grant", lkid, granted_mode(granted)),
        Body::Demoted { lkid, .. } => Said::tells("demoted", lkid, String::new()),
        Body::Bast { lkid, mode } => Said::tells("bast", lkid, format!("{mode:?}")),
        Body::Victim { lkid, op } => {
            Said { op: Some(*op), ..Said::tells("victim", lkid, String::new()) }
        }
        Body::Remove { name, .. } => Said::about("remove", name),
        Body::WhoMasters { name, .. } => Said::about("who_masters", name),
        Body::Masters { name, answer, .. } => {
            Said { detail: Some(format!("{answer:?}")), ..Said::about("masters", name) }
        }
        Body::Assert { name, .. } => Said::about("assert", name),
        Body::Claims(claims) => {
            let said = claims
                .iter()
                .map(|(name, claim)| Said { claim: Some(*claim), ..Said::about("claim", name) });
            return said.collect();
        }
        Body::ClaimReplies(replies) => {
            let said = replies.iter().map(|reply| Said {
                what: "verdict",
                name: reply.name.as_deref(),
                claim: Some(reply.id),
                detail: Some(format!("{:?}", reply.verdict)),
                ..Said::default()
            });
            return said.collect();
        }
        Body::Moved(locks) => {
            let said = locks.iter().map(|moved| Said {
                what: "moved",
                lock: Some(Whose::Senders(moved.lkid)),
                name: Some(&moved.name),
                op: Some(moved.op),
                ..Said::default()
            });
            return said.collect();
        }
        _ => return Vec::new(),
    };
    vec![one]
}

impl NodeEngine {
    /// A message between nodes, if requests are logged.
    pub(super) fn log_message(&self, space: usize, from: NodeId, to: NodeId, body: &Body) {
        if !requests_are_logged() {
            return;
        }
        let Some(Some(space)) = self.spaces.get(space) else { return };
        let (node, shard) = (self.identity.node, self.identity.shard);
        for said in said(body) {
            let lock = said.lock.map(|whose| match whose {
                Whose::Senders(lock) => lock_label(&space.name, from, shard, lock),
                Whose::Receivers(lock) => lock_label(&space.name, to, shard, lock),
            });
            tracing::debug!(
                target: REQUESTS,
                node = node.0,
                lockspace = space.name,
                lock,
                op = said.op,
                name = said.name.map(ToString::to_string),
                claim = said.claim,
                from = from.0,
                to = to.0,
                detail = said.detail,
                "{}",
                said.what
            );
        }
    }
}
