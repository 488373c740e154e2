//! General locking: random clients on a few hot names, using all features of the interface.

use std::collections::BTreeMap;

use lockify_core::{
    ClientId, Clients, Completion, ConvertArgs, Error, Input, LockArgs, LockFlags, LockId,
    LostReason, Mode, Name, NodeId, Status, Time, UnlockArgs, UnlockFlags,
};
use lockify_sim::{MICROSECOND, MILLISECOND, Random};
use rand::RngExt;

use crate::port::{Client, Phase, Port};

/// How a general client behaves.
#[derive(Clone, Debug)]
pub struct General {
    /// How many names all clients share.
    pub names: u32,
    /// Locks that one client has at most.
    pub locks: usize,
    /// True if new locks may carry NOTIFY: only where no guarantee is needed for it.
    pub notify: bool,
    /// Nodes of the cluster, for purges.
    pub nodes: u32,
    /// True if lock value blocks are used.
    pub value_blocks: bool,
    /// Length of lock value blocks.
    pub lvb_len: usize,
    /// Longest pause between two steps, nanoseconds.
    pub pause: Time,
}

/// Outstanding operation of a lock.
#[derive(Clone, Copy, Debug)]
struct Op {
    tag: u64,
    /// It may wait for ever in a conversion deadlock, because it asked not to be ended by one.
    stubborn: bool,
    canceled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    mode: Option<Mode>,
    op: Option<Op>,
    wanted: bool,
    /// Its last conversion timed out: another may find the lock busy with its end.
    timed_out: bool,
}

/// A client that does everything at random.
pub struct GeneralClient {
    how: General,
    id: ClientId,
    phase: Phase,
    locks: BTreeMap<LockId, Held>,
    writes: u64,
}

const STEP: u64 = 0;

impl GeneralClient {
    /// A client that has not started yet.
    pub fn new(how: General) -> GeneralClient {
        GeneralClient { how, id: ClientId(0), phase: Phase::Run, locks: BTreeMap::new(), writes: 0 }
    }

    fn schedule(&self, port: &mut Port<'_>) {
        let after = port.random.random_range(20 * MICROSECOND..=self.how.pause);
        port.wake(after, STEP);
    }

    fn step(&mut self, port: &mut Port<'_>) {
        match self.phase {
            Phase::Run => self.act(port),
            Phase::Settle => {}
            Phase::Drain => self.drain(port),
        }
    }

    fn act(&mut self, port: &mut Port<'_>) {
        match port.random.random_range(0..1000) {
            0..8 => self.exit(port),
            8..12 => self.purge(port),
            12..60 => self.cancel(port),
            60..100 => self.force_unlock(port),
            100..140 => self.adopt(port),
            140..500 => self.request(port),
            500..750 => self.convert(port),
            _ => self.unlock_one(port),
        }
    }

    fn name(&self, random: &mut Random) -> Name {
        let number = random.random_range(0..self.how.names);
        Name::new(format!("g{number}")).expect("short enough")
    }

    /// A value that nobody ever wrote before.
    fn value(&mut self, port: &Port<'_>) -> Box<[u8]> {
        self.writes += 1;
        let unique = u64::from(port.node.0) << 48 | self.id.0 << 24 | self.writes;
        let mut lvb = vec![0; self.how.lvb_len];
        for (to, from) in lvb.iter_mut().zip(unique.to_be_bytes()) {
            *to = from;
        }
        lvb.into()
    }

    fn request(&mut self, port: &mut Port<'_>) {
        if self.locks.len() >= self.how.locks {
            return self.unlock_one(port);
        }
        let mode = Mode::ALL[port.random.random_range(0..6)];
        let mut flags = self.common_flags(port.random);
        if mode == Mode::NL && port.random.random_bool(0.3) {
            flags = LockFlags::EXPEDITE;
        }
        if port.random.random_bool(0.1) {
            flags |= LockFlags::PERSISTENT;
        }
        if self.how.notify && port.random.random_bool(0.4) {
            flags |= LockFlags::NOTIFY;
        }
        self.lock(port, mode, flags);
    }

    fn lock(&mut self, port: &mut Port<'_>, mode: Mode, flags: LockFlags) {
        // Draws keep their order, on which the meaning of a seed depends.
        let (tag, name) = (port.unique(), self.name(port.random));
        let args = LockArgs {
            tag,
            flags,
            lvb: flags.contains(LockFlags::VALBLK).then(|| self.value(port)),
            bast: port.random.random_bool(0.8),
            timeout: timeout(port.random),
            ..LockArgs::new(name, mode)
        };
        match port.call(Input::Lock { client: self.id, args }) {
            Ok(Some(lock)) => {
                let op = Some(Op { tag, stubborn: false, canceled: false });
                self.locks.insert(lock, Held { mode: None, op, wanted: false, timed_out: false });
            }
            Ok(None) => port.broken("a lock call was accepted without an id".into()),
            Err(error) => self.refused(port, "lock", error),
        }
    }

    /// Flags that requests and conversions have in common.
    fn common_flags(&self, random: &mut Random) -> LockFlags {
        let mut flags = LockFlags::empty();
        let chances = [
            (LockFlags::VALBLK, 0.5),
            (LockFlags::NOQUEUE, 0.15),
            (LockFlags::NODLCKWT, 0.1),
            (LockFlags::HEADQUE, 0.1),
            (LockFlags::NOORDER, 0.1),
        ];
        for (flag, chance) in chances {
            flags.set(flag, random.random_bool(chance));
        }
        flags.set(LockFlags::VALBLK, self.how.value_blocks && flags.contains(LockFlags::VALBLK));
        match random.random_range(0..20) {
            0 => flags |= LockFlags::ALTPR,
            1 => flags |= LockFlags::ALTCW,
            2 if flags.contains(LockFlags::NOQUEUE) => flags |= LockFlags::NOQUEUEBAST,
            _ => {}
        }
        flags
    }

    fn convert(&mut self, port: &mut Port<'_>) {
        let Some((lock, from)) = self.pick_idle(port.random) else { return self.request(port) };
        let mode = Mode::ALL[port.random.random_range(0..6)];
        let mut flags = self.common_flags(port.random);
        flags.set(LockFlags::QUECVT, from.may_quecvt(mode) && port.random.random_bool(0.3));
        let may_demote = !flags.contains(LockFlags::NOQUEUE);
        flags.set(LockFlags::CONVDEADLK, may_demote && port.random.random_bool(0.3));
        flags.set(LockFlags::IVVALBLK, port.random.random_bool(0.05));
        flags.set(LockFlags::PERSISTENT, port.random.random_bool(0.1));
        let args = ConvertArgs {
            client: self.id,
            lock,
            tag: port.unique(),
            mode,
            flags,
            lvb: flags.contains(LockFlags::VALBLK).then(|| self.value(port)),
            timeout: timeout(port.random),
        };
        let (tag, stubborn) = (args.tag, flags.contains(LockFlags::NODLCKWT));
        match port.call(Input::Convert(args)) {
            Ok(_) => self.set_op(lock, Op { tag, stubborn, canceled: false }),
            Err(Error::Busy) if self.locks.get(&lock).is_some_and(|h| h.timed_out) => {}
            Err(error) => self.refused(port, "convert", error),
        }
    }

    fn set_op(&mut self, lock: LockId, op: Op) {
        if let Some(held) = self.locks.get_mut(&lock) {
            held.op = Some(op);
        }
    }

    fn unlock_one(&mut self, port: &mut Port<'_>) {
        let wanted = self.locks.iter().find(|(_, held)| held.wanted && held.op.is_none());
        let lock = wanted.map(|(lock, _)| *lock);
        if let Some(lock) = lock.or_else(|| self.pick_idle(port.random).map(|(lock, _)| lock)) {
            self.unlock(port, lock, UnlockFlags::empty());
        }
    }

    fn unlock(&mut self, port: &mut Port<'_>, lock: LockId, mut flags: UnlockFlags) {
        match port.random.random_range(0..10) {
            _ if !self.how.value_blocks => {}
            0..4 => flags |= UnlockFlags::VALBLK,
            4 => flags |= UnlockFlags::IVVALBLK,
            _ => {}
        }
        let lvb = flags.contains(UnlockFlags::VALBLK).then(|| self.value(port));
        let tag = port.unique();
        let args = UnlockArgs { client: self.id, lock, tag, flags, lvb };
        match port.call(Input::Unlock(args)) {
            Ok(_) => self.set_op(lock, Op { tag, stubborn: false, canceled: false }),
            Err(error) => self.refused(port, "unlock", error),
        }
    }

    fn pick(&self, random: &mut Random, fits: impl Fn(&Held) -> bool) -> Option<LockId> {
        let fitting: Vec<_> = self.locks.iter().filter(|(_, held)| fits(held)).collect();
        if fitting.is_empty() {
            return None;
        }
        Some(*fitting[random.random_range(0..fitting.len())].0)
    }

    fn pick_idle(&self, random: &mut Random) -> Option<(LockId, Mode)> {
        let lock = self.pick(random, |held| held.op.is_none() && held.mode.is_some())?;
        self.locks[&lock].mode.map(|mode| (lock, mode))
    }

    fn cancel(&mut self, port: &mut Port<'_>) {
        let pending = |held: &Held| held.op.is_some_and(|op| !op.canceled);
        if let Some(lock) = self.pick(port.random, pending) {
            self.cancel_lock(port, lock);
        }
    }

    fn cancel_lock(&mut self, port: &mut Port<'_>, lock: LockId) {
        // A cancel may meet any state, so every refusal is in order.
        let answer = port.call(Input::Cancel { client: self.id, lock });
        if let (Ok(_), Some(held)) = (answer, self.locks.get_mut(&lock))
            && let Some(op) = &mut held.op
        {
            op.canceled = true;
        }
    }

    fn force_unlock(&mut self, port: &mut Port<'_>) {
        if let Some(lock) = self.pick(port.random, |held| held.op.is_some()) {
            let args = UnlockArgs {
                client: self.id,
                lock,
                tag: port.unique(),
                flags: UnlockFlags::FORCE,
                lvb: None,
            };
            let tag = args.tag;
            // Refused if an unlock is under way already.
            if port.call(Input::Unlock(args)).is_ok() {
                self.set_op(lock, Op { tag, stubborn: false, canceled: true });
            }
        }
    }

    fn adopt(&mut self, port: &mut Port<'_>) {
        if self.locks.len() < self.how.locks {
            let mode = Mode::ALL[port.random.random_range(0..6)];
            self.lock(port, mode, LockFlags::ORPHAN);
        }
    }

    fn purge(&mut self, port: &mut Port<'_>) {
        let node = NodeId(port.random.random_range(0..self.how.nodes));
        let own = port.random.random_bool(0.5);
        let clients = if own { Clients::one(self.id) } else { Clients::ALL };
        // A node that is no member has no orphans to purge.
        let _ = port.call(Input::Purge { node, clients });
    }

    /// The process ends, and another takes its place.
    fn exit(&mut self, port: &mut Port<'_>) {
        if let Err(error) = port.call(Input::ClientGone(self.id)) {
            return self.refused(port, "exit", error);
        }
        self.locks.clear();
        self.id = port.new_client();
    }

    fn drain(&mut self, port: &mut Port<'_>) {
        let locks: Vec<_> = self.locks.iter().map(|(lock, held)| (*lock, *held)).collect();
        for (lock, held) in locks {
            match held.op {
                None => self.unlock(port, lock, UnlockFlags::empty()),
                Some(op) if op.stubborn && !op.canceled => self.cancel_lock(port, lock),
                Some(_) => {}
            }
        }
    }

    /// Refusals at once are errors of the workload or of the lock manager, except these.
    fn refused(&mut self, port: &mut Port<'_>, call: &str, error: Error) {
        match error {
            Error::NotMember | Error::Leaving => {}
            Error::NoEntry | Error::OtherMode if call == "lock" => {}
            Error::Lost => {}
            other => port.broken(format!("{call} was refused: {other}")),
        }
    }
}

/// Most waits are bounded, as nobody detects deadlocks across resources.
fn timeout(random: &mut Random) -> Option<Time> {
    random.random_bool(0.7).then(|| random.random_range(MILLISECOND..=40 * MILLISECOND))
}

impl Client for GeneralClient {
    fn start(&mut self, port: &mut Port<'_>) {
        self.id = port.new_client();
        self.schedule(port);
    }

    fn wake(&mut self, port: &mut Port<'_>, _token: u64) {
        self.step(port);
        if self.phase == Phase::Run {
            self.schedule(port);
        }
    }

    fn complete(&mut self, port: &mut Port<'_>, done: &Completion) {
        let Some(held) = self.locks.get_mut(&done.lock) else {
            return port.broken(format!("a completion for a lock that is gone: {done:?}"));
        };
        match held.op {
            Some(op) if op.tag == done.tag => held.op = None,
            // The operation that a force unlock overtook may still complete.
            Some(op) if done.tag < op.tag => {}
            _ => return port.broken(format!("a completion that nobody waits for: {done:?}")),
        }
        held.mode = done.mode;
        held.wanted = false;
        held.timed_out = done.status == Status::TimedOut;
        if done.mode.is_none() {
            self.locks.remove(&done.lock);
        }
        if self.phase == Phase::Drain {
            self.drain(port);
        }
    }

    fn bast(&mut self, port: &mut Port<'_>, lock: LockId, _mode: Mode) {
        let react = port.random.random_bool(0.6);
        if let Some(held) = self.locks.get_mut(&lock) {
            held.wanted |= react;
        }
    }

    fn lost(&mut self, port: &mut Port<'_>, lock: LockId, _reason: LostReason) {
        if self.locks.get(&lock).is_some_and(|held| held.op.is_none()) {
            self.unlock(port, lock, UnlockFlags::empty());
        }
    }

    fn is(&self, client: ClientId) -> bool {
        self.id == client
    }

    fn enter(&mut self, port: &mut Port<'_>, phase: Phase) {
        self.phase = phase;
        self.step(port);
    }

    fn is_idle(&self) -> bool {
        match self.phase {
            Phase::Drain => self.locks.is_empty(),
            // Waiting for idle locks of others is no reason not to look.
            Phase::Settle => true,
            Phase::Run => false,
        }
    }
}
