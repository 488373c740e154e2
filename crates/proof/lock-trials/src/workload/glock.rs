//! A file system's cached lock, in GFS2's manner: kept until another node wants it, idle ones at NL.

use lockify_core::{
    ClientId, Completion, ConvertArgs, Error, Input, LockArgs, LockFlags, LockId, Mode, Name,
    Status, UnlockArgs, UnlockFlags,
};
use rand::RngExt;

use crate::port::Port;

/// One cached lock of one node.
#[derive(Clone, Debug)]
pub struct Glock {
    name: Name,
    lock: Option<LockId>,
    /// Granted mode; none before the first grant.
    held: Option<Mode>,
    op: Option<(u64, Op)>,
    /// The worker uses it: blocking notices wait.
    pub in_use: bool,
    /// Strongest mode that others want.
    wanted: Option<Mode>,
    /// Reported lost: nothing but unlocking it is possible.
    pub lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Acquire,
    Demote,
    Unlock,
}

/// The result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The lock has another mode now, or is gone.
    Changed,
    /// A conversion ended in a deadlock: the lock must be given up first.
    Deadlock,
}

impl Glock {
    /// A lock that is not there yet.
    pub fn new(name: Name) -> Glock {
        Glock { name, lock: None, held: None, op: None, in_use: false, wanted: None, lost: false }
    }

    /// Its lock's id.
    pub fn lock(&self) -> Option<LockId> {
        self.lock
    }

    /// Returns true if it is held in `mode` or a stronger one and nothing is under way.
    pub fn holds(&self, mode: Mode) -> bool {
        self.op.is_none() && !self.lost && self.held.is_some_and(|held| held >= mode)
    }

    /// Returns true if nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.op.is_none()
    }

    /// Returns true if the lock manager knows of it.
    pub fn exists(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns true if it protects nothing and could be dropped.
    pub fn is_spare(&self) -> bool {
        self.op.is_none() && !self.in_use && self.held == Some(Mode::NL)
    }

    /// Asks for `mode`; `claim` says that the object is being created under the parent's lock.
    ///
    /// # Errors
    /// The lockspace's refusal.
    pub fn acquire(
        &mut self,
        port: &mut Port<'_>,
        client: ClientId,
        mode: Mode,
        claim: bool,
    ) -> Result<(), Error> {
        let tag = port.unique();
        match self.lock {
            Some(lock) => {
                let mut flags = LockFlags::empty();
                flags.set(LockFlags::CONVDEADLK, port.random.random_bool(0.3));
                self.convert(port, client, lock, tag, mode, flags)?;
            }
            None => {
                let flags = if claim { LockFlags::NOTIFY } else { LockFlags::empty() };
                let name = self.name;
                let args = LockArgs { tag, flags, bast: true, ..LockArgs::new(name, mode) };
                self.lock = port.call(Input::Lock { client, args })?;
            }
        }
        self.op = Some((tag, Op::Acquire));
        Ok(())
    }

    fn convert(
        &mut self,
        port: &mut Port<'_>,
        client: ClientId,
        lock: LockId,
        tag: u64,
        mode: Mode,
        flags: LockFlags,
    ) -> Result<(), Error> {
        let args = ConvertArgs { client, lock, tag, mode, flags, lvb: None, timeout: None };
        port.call(Input::Convert(args)).map(|_| ())
    }

    /// Weakens it to `mode`; `freed` says that its object is being freed.
    ///
    /// # Errors
    /// The lockspace's refusal.
    pub fn demote(
        &mut self,
        port: &mut Port<'_>,
        client: ClientId,
        mode: Mode,
        freed: bool,
    ) -> Result<(), Error> {
        let Some(lock) = self.lock else { return Ok(()) };
        let tag = port.unique();
        let flags = if freed { LockFlags::FREED } else { LockFlags::empty() };
        self.convert(port, client, lock, tag, mode, flags)?;
        self.op = Some((tag, Op::Demote));
        self.wanted = None;
        Ok(())
    }

    /// Gives it up altogether.
    ///
    /// # Errors
    /// The lockspace's refusal.
    pub fn unlock(
        &mut self,
        port: &mut Port<'_>,
        client: ClientId,
        freed: bool,
    ) -> Result<(), Error> {
        let Some(lock) = self.lock else { return Ok(()) };
        let tag = port.unique();
        let flags = if freed { UnlockFlags::FREED } else { UnlockFlags::empty() };
        port.call(Input::Unlock(UnlockArgs { client, lock, tag, flags, lvb: None }))?;
        self.op = Some((tag, Op::Unlock));
        self.wanted = None;
        Ok(())
    }

    /// Somebody wants `mode`.
    pub fn bast(&mut self, mode: Mode) {
        self.wanted = self.wanted.max(Some(mode));
    }

    /// If somebody wants it and nobody here uses it: the mode that lets him go on.
    pub fn must_demote_to(&self) -> Option<Mode> {
        let wanted = self.wanted?;
        let held = self.held?;
        if self.in_use || self.op.is_some() || held.compatible(wanted) {
            return None;
        }
        Some(if held == Mode::EX && wanted <= Mode::PR { Mode::PR } else { Mode::NL })
    }

    /// An operation of it ended.
    pub fn complete(&mut self, port: &mut Port<'_>, done: &Completion) -> Outcome {
        let expected = self.op.take_if(|(tag, _)| *tag == done.tag);
        if expected.is_none() {
            port.broken(format!("{}: a completion that nobody waits for: {done:?}", self.name));
        }
        self.held = done.mode;
        if done.mode.is_none() {
            self.lock = None;
            self.lost = false;
            self.wanted = None;
        }
        match done.status {
            Status::Deadlock => Outcome::Deadlock,
            Status::Granted | Status::Unlocked | Status::Refused(_) => Outcome::Changed,
            other => {
                port.broken(format!("{}: nobody asked for {other:?}", self.name));
                Outcome::Changed
            }
        }
    }
}
