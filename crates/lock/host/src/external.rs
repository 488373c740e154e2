//! Lockspaces whose locks are not the engine's. For clients, and for the rest of the host, they are like others.

use lockify_core::{ClientId, Completion, Input, LockArgs, LockId, LostReason, Time};
use lockify_node::{HostEvent, NodeEngine, Notice, SpaceId};
use lockify_session::protocol::Refusal;

use super::spaces::Origin;
use super::{ClientHost, HostedSpace};

/// A lockspace outside the engine. Times are those of [`NodeEngine::now`]. Its other threads wake the engine
/// ([`NodeEngine::waker`]).
pub trait ExternalLockspace: Send {
    /// Checks that a request can be served.
    ///
    /// # Errors
    /// The reason and the remedy.
    fn check(&self, client: ClientId, args: &LockArgs) -> Result<(), String>;

    /// Handles a client's call, as [`NodeEngine::handle`] does.
    ///
    /// # Errors
    /// The call is refused.
    fn handle(&mut self, input: Input, now: Time) -> Result<Option<LockId>, Refusal>;

    /// Does what can be done now, and appends what there is to tell.
    fn turn(&mut self, now: Time, told: &mut Vec<ExternalEvent>);

    /// When its next turn is due.
    fn next_timer(&self) -> Option<Time>;
}

/// An event of such a lockspace.
#[derive(Clone, PartialEq, Debug)]
pub enum ExternalEvent {
    /// An operation ended.
    Completed(Completion),
    /// A lock is no longer held.
    Lost {
        /// The client that owns the lock.
        client: ClientId,
        /// The id of the lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The reason of the loss.
        reason: LostReason,
    },
    /// Calls are possible from now on.
    Running,
    /// All locks are lost, and no call under way will be answered; `Running` says when it goes on.
    Halted,
    /// Something that an operator should see.
    Notice(Notice),
}

impl ExternalEvent {
    fn of(self, space: SpaceId) -> HostEvent {
        match self {
            ExternalEvent::Completed(completion) => HostEvent::Completed { space, completion },
            ExternalEvent::Lost { client, lock, tag, reason } => {
                HostEvent::Lost { space, client, lock, tag, reason }
            }
            ExternalEvent::Running => HostEvent::Running { space, view: 0 },
            ExternalEvent::Halted => HostEvent::Halted { space },
            ExternalEvent::Notice(notice) => HostEvent::Notice(notice),
        }
    }
}

impl ClientHost {
    /// Adds a configured lockspace, as the one in this place of the configuration's list; those before it must be there.
    /// No client may have connected yet.
    pub fn add_external(
        &mut self,
        place: usize,
        name: &str,
        lvb_len: u32,
        space: Box<dyn ExternalLockspace>,
    ) {
        // The engine counts from 0.
        let id = SpaceId(u32::MAX - self.external.len() as u32);
        let (name, life, member, origin) = (name.to_owned(), 0, false, Origin::Configured);
        let hosted = HostedSpace { name, id, lvb_len, life, member, origin, access: None };
        self.spaces.insert(place.min(self.spaces.len()), hosted);
        self.external.push((id, space));
    }

    /// Hands a call to the lockspace, wherever its locks are.
    pub(super) fn call(
        &mut self,
        engine: &mut NodeEngine,
        space: SpaceId,
        input: Input,
    ) -> Result<Option<LockId>, Refusal> {
        match self.external.iter_mut().find(|(id, _)| *id == space) {
            None => engine.handle(space, input).map_err(super::refusal),
            Some((_, external)) => external.handle(input, engine.now()),
        }
    }

    /// The lockspace, if its locks are not the engine's.
    pub(super) fn external(&self, space: SpaceId) -> Option<&dyn ExternalLockspace> {
        self.external.iter().find(|(id, _)| *id == space).map(|(_, space)| &**space)
    }

    /// Handles the present events of these lockspaces.
    pub(super) fn turn_external(&mut self, engine: &NodeEngine, events: &mut Vec<HostEvent>) {
        let mut told = Vec::new();
        for (id, space) in &mut self.external {
            space.turn(engine.now(), &mut told);
            events.extend(told.drain(..).map(|told| told.of(*id)));
        }
    }
}
