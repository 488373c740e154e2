//! Lockspaces that are made and released at run time, as programs for libdlm do.
//!
//! A lockspace lives on each node that has made it or is configured with it. The nodes must agree
//! on policy and length of value blocks, which are fixed for those made here; a node whose
//! configuration has the name with something else withdraws one of the two.

use lockify_core::{ClaimMode, ClientId, Policy, WithdrawReason};
use lockify_node::{NodeEngine, SpaceConfig, SpaceId};
use lockify_session::protocol::{Answer, Event, Query, Refusal, Space};
use serde::{Deserialize, Serialize};

use super::{Access, ClientHost, HostedClient, HostedSpace, Outbox, Recipient};

/// Lockspaces of a node, configured ones included: each has timers and is announced to all nodes.
const SPACES: usize = 1024;

/// Where a lockspace comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Origin {
    /// The configuration.
    Configured,
    /// Clients, which have made it this often without releasing it.
    Made(u32),
    /// Clients, which have released it: it is being left.
    Leaving,
    /// Clients; it is no more.
    Gone,
}

/// A client that waits until a lockspace runs (made) or has been left (released).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Settling {
    pub(super) client: ClientId,
    query: u64,
    /// The lockspace's place in the host's list.
    space: usize,
}

impl HostedSpace {
    /// It can be used, and will be left when the node leaves.
    pub(super) fn exists(&self) -> bool {
        matches!(self.origin, Origin::Configured | Origin::Made(_))
    }
}

/// Its maker's, as the kernel's device for a lockspace is. An embedded node's process is nobody
/// else.
fn owned(maker: &HostedClient, mode: u32) -> Option<Access> {
    let (who, _) = maker.who.as_ref()?;
    Some(Access { owner: who.uid, group: who.gid, mode })
}

impl ClientHost {
    /// Handles the requests to make and release lockspaces; `None` if the answer comes later.
    pub(super) fn make_or_release(
        &mut self,
        engine: &mut NodeEngine,
        asker: &HostedClient,
        id: u64,
        query: Query,
        out: &mut Outbox,
    ) -> Result<Option<Answer>, Refusal> {
        if !asker.privileged {
            return Err(Refusal::NotPermitted);
        }
        let waits = match query {
            Query::Create { name, exclusive } => {
                self.make_space(engine, name, exclusive, owned(asker, Access::MADE))?
            }
            Query::CreateWithMode { name, exclusive, mode } => {
                Access::check_mode(mode).map_err(Refusal::Failed)?;
                self.make_space(engine, name, exclusive, owned(asker, mode))?
            }
            Query::Release { name, force } => match self.release(engine, name, force, out)? {
                Some(space) => space,
                None => return Ok(Some(Answer::Done)),
            },
            Query::MayRelease(name) => {
                let i = self.find(&name).ok_or_else(|| self.no_such_space(name))?;
                return self.check_unused(engine, i).map(|()| Some(Answer::Done));
            }
            _ => return Err(Refusal::Failed("this is not about lockspaces".into())),
        };
        // Not one that is being left: that has ceased to be a member's.
        if self.spaces[waits].member {
            return Ok(Some(self.opened(waits)));
        }
        self.settling.push(Settling { client: asker.id, query: id, space: waits });
        Ok(None)
    }

    /// Makes a lockspace, or counts one more use of it; returns its place in the list.
    fn make_space(
        &mut self,
        engine: &mut NodeEngine,
        name: String,
        exclusive: bool,
        access: Option<Access>,
    ) -> Result<usize, Refusal> {
        if let Some(i) = self.find(&name) {
            if exclusive {
                return Err(Refusal::SpaceExists(name));
            }
            if let Origin::Made(times) = &mut self.spaces[i].origin {
                *times = times.saturating_add(1);
            }
            return Ok(i);
        }
        if self.spaces.iter().any(|s| s.origin == Origin::Leaving && s.name == name) {
            return Err(Refusal::SpaceLeaving(name));
        }
        if self.spaces.iter().filter(|s| s.exists()).count() >= SPACES {
            return Err(Refusal::TooManySpaces(SPACES as u32));
        }
        let config = SpaceConfig::new(Policy::Claim(ClaimMode::Optimistic));
        let lvb_len = config.core.lvb_len as u32;
        let id = engine.join(&name, config).map_err(super::refusal)?;
        let (life, member, origin) = (0, false, Origin::Made(1));
        self.spaces.push(HostedSpace { name, id, lvb_len, life, member, origin, access });
        Ok(self.spaces.len() - 1)
    }

    /// Undoes one creation; returns the lockspace's place in the list if it is being left.
    fn release(
        &mut self,
        engine: &mut NodeEngine,
        name: String,
        force: bool,
        out: &mut Outbox,
    ) -> Result<Option<usize>, Refusal> {
        let Some(i) = self.find(&name) else {
            return Err(self.no_such_space(name));
        };
        match &mut self.spaces[i].origin {
            Origin::Made(1) => {}
            Origin::Made(times) => {
                *times -= 1;
                return Ok(None);
            }
            // It stays, because the configuration says so: one use of it has ended.
            _ => return Ok(None),
        }
        if !force {
            self.check_unused(engine, i)?;
        }
        engine.leave(self.spaces[i].id).map_err(super::refusal)?;
        self.end(i, Origin::Leaving, out);
        Ok(Some(i))
    }

    /// Refuses a release of a lockspace in which this node's clients have locks.
    fn check_unused(&self, engine: &NodeEngine, i: usize) -> Result<(), Refusal> {
        let HostedSpace { origin, id, name, .. } = &self.spaces[i];
        match engine.own_locks(*id) {
            locks if locks > 0 && *origin == Origin::Made(1) => {
                Err(Refusal::SpaceBusy(name.clone(), locks as u64))
            }
            _ => Ok(()),
        }
    }

    /// A lockspace is no more: its clients have lost their locks and requests.
    fn end(&mut self, i: usize, origin: Origin, out: &mut Outbox) {
        let space = &mut self.spaces[i];
        (space.origin, space.member) = (origin, false);
        space.life += 1;
        let life = space.life;
        let number = Space(i as u32);
        self.departed.forget_space(i);
        self.waiting.retain(|w| w.request.space != number);
        out.push((Recipient::All, Event::Halted { space: number, life }));
    }

    pub(super) fn is_leaving(&self, space: SpaceId) -> bool {
        self.number(space).is_some_and(|i| self.spaces[i].origin == Origin::Leaving)
    }

    /// A lockspace that was released has been left.
    pub(super) fn left(&mut self, space: SpaceId, out: &mut Outbox) {
        let Some(i) = self.number(space) else { return };
        self.spaces[i].origin = Origin::Gone;
        self.answer_settling(i, &Answer::Done, out);
    }

    /// A lockspace runs: those who have made it can use it.
    pub(super) fn runs(&mut self, i: usize, out: &mut Outbox) {
        if self.spaces[i].exists() {
            self.answer_settling(i, &self.opened(i), out);
        }
    }

    /// The node had to leave a lockspace by itself. One that its members use differently is no
    /// more: it can be made again when that is mended.
    pub(super) fn withdrawn(&mut self, space: SpaceId, why: WithdrawReason, out: &mut Outbox) {
        let Some(i) = self.number(space) else { return };
        let made = matches!(self.spaces[i].origin, Origin::Made(_));
        if why != WithdrawReason::ConfigurationMismatch || !made {
            return;
        }
        self.end(i, Origin::Gone, out);
        let why = "other nodes are configured with this lockspace, and another policy or length \
                   of value blocks: configure it here, too";
        self.answer_settling(i, &Answer::Refused(Refusal::Failed(why.into())), out);
    }

    fn answer_settling(&mut self, space: usize, answer: &Answer, out: &mut Outbox) {
        self.settling.retain(|s| {
            if s.space == space {
                let (id, answer) = (s.query, answer.clone());
                out.push((Recipient::Client(s.client), Event::Answer { id, answer, more: false }));
            }
            s.space != space
        });
    }
}
