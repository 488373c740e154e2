//! Lock calls of one creator: each returns when it is granted, and the node's event loop runs
//! meanwhile on the same thread.

use std::time::Duration;

use lockify_core::{
    ClientId, Completion, ConvertArgs, Ended, Input, LockArgs, LockFlags, LockId, Mode, Status,
    UnlockArgs, UnlockFlags,
};
use lockify_node::{CallError, HostEvent, Level, NodeEngine, NodeError, SpaceId};

use crate::clock::now;
use crate::glock::Glock;
use crate::recorder::{Record, Recorder, What};

/// This process's only client.
const CLIENT: ClientId = ClientId(1);

/// Unlocks that may be on their way at one time when a run's locks are released.
const UNLOCK_WINDOW: usize = 512;

/// Why a lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The node's event loop failed.
    #[error("the node failed: {0}")]
    Node(#[from] NodeError),
    /// The call was refused.
    #[error("a lock call was refused: {0}")]
    Call(#[from] CallError),
    /// The operation ended otherwise than by a grant.
    #[error("lock {name} was not granted ({status:?})")]
    NotGranted {
        /// The lock's name.
        name: String,
        /// How it ended.
        status: Status,
    },
    /// The node lost its locks.
    #[error(
        "the node lost its locks ({0}): a worker was stopped, or the machine stood still for seconds"
    )]
    Lost(&'static str),
}

/// A lock that this creator has.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Its id.
    pub lock: LockId,
    /// The protected object.
    pub glock: Glock,
    /// Its last operation's tag.
    tag: u64,
}

/// The node, and the state of the current run.
#[derive(Debug)]
pub struct Locks {
    engine: NodeEngine,
    space: SpaceId,
    events: Vec<HostEvent>,
    next_tag: u64,
    /// The lock that somebody else wants: only the parent's glock is ever wanted by others.
    wanted: Option<LockId>,
    /// The recorder of events.
    pub recorder: Recorder,
}

impl Locks {
    /// Locks of this lockspace from now on.
    pub fn new(engine: NodeEngine, space: SpaceId) -> Locks {
        Locks {
            engine,
            space,
            events: Vec::with_capacity(64),
            next_tag: 0,
            wanted: None,
            recorder: Recorder::default(),
        }
    }

    /// The node.
    pub fn engine(&mut self) -> &mut NodeEngine {
        &mut self.engine
    }

    /// Works in another lockspace from now on. Every lock of the one before must be released.
    pub fn switch(&mut self, space: SpaceId) {
        self.space = space;
        self.wanted = None;
    }

    /// Takes a new lock and waits for it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn lock(&mut self, glock: Glock, mode: Mode, flags: LockFlags) -> Result<Held, LockError> {
        let tag = self.tag();
        let args = LockArgs { tag, flags, bast: true, ..LockArgs::new(glock.name(), mode) };
        let t = now();
        let lock = loop {
            match self.engine.handle(self.space, Input::Lock { client: CLIENT, args: args.clone() })
            {
                Ok(lock) => break lock,
                Err(CallError::WouldBlock(_)) => self.wait()?,
                Err(e) => return Err(e.into()),
            }
        };
        // The engine answers Input::Lock with an id; an engine that did not would be refused here.
        let lock = lock.ok_or(LockError::Call(CallError::NoSpace))?;
        let held = Held { lock, glock, tag };
        self.record(t, &held, What::Request(mode));
        self.granted(&held)?;
        Ok(held)
    }

    /// Converts a lock and waits until it has the mode.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn convert(&mut self, held: &mut Held, mode: Mode) -> Result<(), LockError> {
        held.tag = self.tag();
        let args = ConvertArgs {
            client: CLIENT,
            lock: held.lock,
            tag: held.tag,
            mode,
            flags: LockFlags::empty(),
            lvb: None,
            timeout: None,
        };
        self.record(now(), held, What::Convert(mode));
        self.engine.handle(self.space, Input::Convert(args))?;
        self.granted(held)
    }

    /// Returns true if another node wants this lock.
    pub fn wanted(&self, held: Held) -> bool {
        self.wanted == Some(held.lock)
    }

    /// The lock that was wanted has been given up.
    pub fn forget_wanted(&mut self) {
        self.wanted = None;
    }

    /// Handles input from the network, without waiting.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn turn(&mut self) -> Result<(), LockError> {
        self.engine.run_once(Some(Duration::ZERO), &mut self.events)?;
        self.drain(None).map(drop)
    }

    /// Sleeps until something happens (a peer, a timer, the waker) and handles it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn idle(&mut self) -> Result<(), LockError> {
        self.wait()?;
        self.drain(None).map(drop)
    }

    /// Releases locks, many at a time.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn unlock_all(&mut self, held: Vec<Held>) -> Result<(), LockError> {
        self.wanted = None;
        let mut left = held.len();
        let mut held = held.into_iter();
        let mut waiting = std::collections::HashMap::new();
        while left > 0 {
            while waiting.len() < UNLOCK_WINDOW
                && let Some(mut one) = held.next()
            {
                one.tag = self.tag();
                let (flags, tag) = (UnlockFlags::empty(), one.tag);
                let args = UnlockArgs { client: CLIENT, lock: one.lock, tag, flags, lvb: None };
                self.record(now(), &one, What::Unlock);
                self.engine.handle(self.space, Input::Unlock(args))?;
                waiting.insert(tag, one);
            }
            self.engine.take_events(&mut self.events);
            if self.events.is_empty() {
                self.wait()?;
            }
            left -= self.unlocked(&mut waiting)?;
        }
        Ok(())
    }

    /// Takes the completions of unlocks out of the events; says how many there were.
    fn unlocked(
        &mut self,
        waiting: &mut std::collections::HashMap<u64, Held>,
    ) -> Result<usize, LockError> {
        let mut done = 0;
        let t = now();
        for event in std::mem::take(&mut self.events) {
            let HostEvent::Completed { completion, .. } = event else {
                self.other(t, event)?;
                continue;
            };
            let Some(held) = waiting.remove(&completion.tag) else { continue };
            self.record(t, &held, What::Complete(completion.status));
            if completion.status != Status::Unlocked {
                return Err(not_granted(held.glock, completion.status));
            }
            done += 1;
        }
        Ok(done)
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn record(&mut self, t: u64, held: &Held, what: What) {
        let Held { lock, glock, tag } = *held;
        self.recorder.add(Record { t, what, lock, glock: Some(glock), op: tag });
    }

    /// Waits until the lock's operation has ended.
    fn granted(&mut self, held: &Held) -> Result<(), LockError> {
        self.engine.take_events(&mut self.events);
        let completion = loop {
            if let Some(completion) = self.drain(Some(held.tag))? {
                break completion;
            }
            self.wait()?;
        };
        let t = now();
        match (completion.status, completion.mode) {
            (Status::Granted, Some(mode)) => {
                let Ended { token, provisional, .. } = completion.ended;
                self.record(t, held, What::Grant { mode, token, provisional });
                Ok(())
            }
            (status, _) => {
                self.record(t, held, What::Complete(status));
                Err(not_granted(held.glock, status))
            }
        }
    }

    fn wait(&mut self) -> Result<(), LockError> {
        Ok(self.engine.run_once(None, &mut self.events)?)
    }

    /// Handles the events that are there; returns the completion of the operation with this tag.
    fn drain(&mut self, tag: Option<u64>) -> Result<Option<Completion>, LockError> {
        if self.events.is_empty() {
            return Ok(None);
        }
        let mut found = None;
        // They were delivered together.
        let t = now();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                HostEvent::Completed { completion, .. } if Some(completion.tag) == tag => {
                    found = Some(completion);
                }
                event => self.other(t, event)?,
            }
        }
        // Keeps the allocation.
        self.events = events;
        Ok(found)
    }

    fn other(&mut self, t: u64, event: HostEvent) -> Result<(), LockError> {
        match event {
            HostEvent::Bast { lock, mode, tag, .. } => {
                let what = What::Bast(mode);
                self.recorder.add(Record { t, what, lock, glock: None, op: tag });
                self.wanted = Some(lock);
            }
            HostEvent::Settled { lock, tag, token, .. } => {
                let what = What::Settled { token };
                self.recorder.add(Record { t, what, lock, glock: None, op: tag });
            }
            HostEvent::Lost { .. } => return Err(LockError::Lost("a claim was refused for good")),
            HostEvent::Halted { .. } | HostEvent::QuorumLost => {
                return Err(LockError::Lost("no quorum"));
            }
            HostEvent::Notice(notice) if notice.level >= Level::Warning => {
                eprintln!("lockify demo: {notice}");
            }
            _ => {}
        }
        Ok(())
    }
}

fn not_granted(glock: Glock, status: Status) -> LockError {
    LockError::NotGranted { name: glock.name().to_string(), status }
}
