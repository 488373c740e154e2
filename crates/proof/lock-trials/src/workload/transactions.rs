//! Transactions: clients that lock several names one after the other, in any order. They keep their
//! locks until they have all of them, and release all together. They deadlock, and only a search
//! for deadlocks makes them progress.

use std::collections::BTreeMap;

use lockify_core::{
    ClientId, Completion, ConvertArgs, Error, Input, LockArgs, LockFlags, LockId, LostReason, Mode,
    Name, Status, Time, UnlockArgs, UnlockFlags,
};
use lockify_sim::{MICROSECOND, Random};
use rand::RngExt;

use crate::port::{Client, Phase, Port};

/// How such a client behaves.
#[derive(Clone, Debug)]
pub struct Transactions {
    /// How many names all clients share.
    pub names: u32,
    /// Most locks of one transaction.
    pub locks: u32,
    /// Longest pause between two transactions, nanoseconds.
    pub pause: Time,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    mode: Option<Mode>,
    /// The tag of its outstanding operation.
    op: Option<u64>,
    /// It is given up when somebody asks for it, whatever the transaction does.
    yields: bool,
}

/// A client that runs transactions, one after the other.
pub struct TransactionClient {
    how: Transactions,
    id: ClientId,
    phase: Phase,
    locks: BTreeMap<LockId, Held>,
    /// The names still to be locked.
    plan: Vec<(Name, Mode)>,
    /// It has got everything, or was a deadlock's victim: everything is being released.
    over: bool,
}

const BEGIN: u64 = 0;

impl TransactionClient {
    /// A client that has not started yet.
    pub fn new(how: Transactions) -> TransactionClient {
        TransactionClient {
            how,
            id: ClientId(0),
            phase: Phase::Run,
            locks: BTreeMap::new(),
            plan: Vec::new(),
            over: true,
        }
    }

    fn schedule(&self, port: &mut Port<'_>) {
        let after = port.random.random_range(5 * MICROSECOND..=self.how.pause);
        port.wake(after, BEGIN);
    }

    fn begin(&mut self, port: &mut Port<'_>) {
        let idle = self.locks.is_empty() && self.over;
        if self.phase != Phase::Run || !idle {
            return;
        }
        let mut names: Vec<u32> = (0..self.how.names).collect();
        let count = port.random.random_range(2..=self.how.locks).min(self.how.names);
        self.plan.clear();
        for _ in 0..count {
            let name = names.swap_remove(port.random.random_range(0..names.len()));
            let name = Name::new(format!("t{name}")).expect("short enough");
            self.plan.push((name, mode(port.random)));
        }
        self.over = false;
        self.go_on(port);
    }

    /// The next lock; if there is none left, the end.
    fn go_on(&mut self, port: &mut Port<'_>) {
        if self.locks.values().any(|held| held.op.is_some()) {
            return;
        }
        if self.over {
            return self.release(port);
        }
        let Some((name, mode)) = self.plan.pop() else {
            // From time to time, a read item is to be written after all.
            let read = self.locks.iter().find(|(_, held)| held.mode == Some(Mode::PR));
            match read.map(|(lock, _)| *lock).filter(|_| port.random.random_bool(0.2)) {
                Some(lock) => self.convert(port, lock),
                None => {
                    self.over = true;
                    self.release(port);
                }
            }
            return;
        };
        let yields = port.random.random_bool(0.05);
        let args = LockArgs {
            tag: port.unique(),
            flags: if yields { LockFlags::NODLCKBLK } else { LockFlags::empty() },
            bast: true,
            ..LockArgs::new(name, mode)
        };
        let op = Some(args.tag);
        match port.call(Input::Lock { client: self.id, args }) {
            Ok(Some(lock)) => {
                self.locks.insert(lock, Held { mode: None, op, yields });
            }
            Ok(None) => port.broken("a lock call was accepted without an id".into()),
            Err(error) => self.refused(port, "lock", error),
        }
    }

    fn convert(&mut self, port: &mut Port<'_>, lock: LockId) {
        let args = ConvertArgs {
            client: self.id,
            lock,
            tag: port.unique(),
            mode: Mode::EX,
            flags: LockFlags::empty(),
            lvb: None,
            timeout: None,
        };
        let tag = args.tag;
        match port.call(Input::Convert(args)) {
            Ok(_) => self.set_op(lock, tag),
            Err(error) => self.refused(port, "convert", error),
        }
    }

    fn set_op(&mut self, lock: LockId, tag: u64) {
        if let Some(held) = self.locks.get_mut(&lock) {
            held.op = Some(tag);
        }
    }

    fn release(&mut self, port: &mut Port<'_>) {
        for (lock, held) in self.locks.clone() {
            if held.op.is_none() {
                self.unlock(port, lock);
            }
        }
        if self.locks.is_empty() && self.phase == Phase::Run {
            self.schedule(port);
        }
    }

    fn unlock(&mut self, port: &mut Port<'_>, lock: LockId) {
        let tag = port.unique();
        let flags = UnlockFlags::empty();
        let args = UnlockArgs { client: self.id, lock, tag, flags, lvb: None };
        match port.call(Input::Unlock(args)) {
            Ok(_) => self.set_op(lock, tag),
            Err(error) => self.refused(port, "unlock", error),
        }
    }

    fn refused(&mut self, port: &mut Port<'_>, call: &str, error: Error) {
        self.over = true;
        if !matches!(error, Error::NotMember | Error::Leaving | Error::Lost) {
            port.broken(format!("{call} was refused: {error}"));
        }
    }
}

fn mode(random: &mut Random) -> Mode {
    [Mode::EX, Mode::EX, Mode::PR, Mode::PW][random.random_range(0..4)]
}

impl Client for TransactionClient {
    fn start(&mut self, port: &mut Port<'_>) {
        self.id = port.new_client();
        self.schedule(port);
    }

    fn wake(&mut self, port: &mut Port<'_>, _token: u64) {
        self.begin(port);
    }

    fn complete(&mut self, port: &mut Port<'_>, done: &Completion) {
        let Some(held) = self.locks.get_mut(&done.lock) else {
            return port.broken(format!("a completion for a lock that is gone: {done:?}"));
        };
        if held.op != Some(done.tag) {
            return port.broken(format!("a completion that nobody waits for: {done:?}"));
        }
        held.op = None;
        held.mode = done.mode;
        if done.mode.is_none() {
            self.locks.remove(&done.lock);
        }
        match done.status {
            Status::Granted | Status::Unlocked => {}
            // A victim releases all its locks, and begins anew.
            Status::Deadlock => self.over = true,
            other => return port.broken(format!("nobody asked for {other:?}: {done:?}")),
        }
        self.go_on(port);
    }

    fn bast(&mut self, port: &mut Port<'_>, lock: LockId, _mode: Mode) {
        if self.locks.get(&lock).is_some_and(|held| held.yields && held.op.is_none()) {
            self.unlock(port, lock);
        }
    }

    fn lost(&mut self, port: &mut Port<'_>, lock: LockId, _reason: LostReason) {
        self.over = true;
        if self.locks.get(&lock).is_some_and(|held| held.op.is_none()) {
            self.unlock(port, lock);
        }
    }

    fn is(&self, client: ClientId) -> bool {
        self.id == client
    }

    fn enter(&mut self, port: &mut Port<'_>, phase: Phase) {
        self.phase = phase;
        // Operations that have begun end by themselves, or there is no progress.
        self.begin(port);
    }

    fn is_idle(&self) -> bool {
        self.phase != Phase::Run && self.locks.is_empty()
    }
}
