//! A single-node lock manager for one resource, written from docs/design/semantics.md 4
//! to 7 alone: slow, simple, without anything of the real one but the names of modes and
//! flags. Queues are vectors, every rule is spelled out where it is needed.

use std::fmt;

use lockify_core::{LockFlags, Mode, SbFlags, Status, UnlockFlags};

/// A client's event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The lock, by the caller's numbering.
    pub lock: usize,
    pub status: Status,
    pub mode: Option<Mode>,
    pub status_flags: SbFlags,
    pub lvb: Option<Vec<u8>>,
}

#[derive(Clone)]
struct Lock {
    number: usize,
    gr: Option<Mode>,
    rq: Option<Mode>,
    flags: LockFlags,
    status_flags: SbFlags,
    value: Option<Vec<u8>>,
    /// A blocking notice was due since the last grant.
    noticed: bool,
}

/// The queues hold locks in order: granted, converting, waiting.
#[derive(Clone, Default)]
pub struct Oracle {
    granted: Vec<Lock>,
    converting: Vec<Lock>,
    waiting: Vec<Lock>,
    lvb: Option<Vec<u8>>,
    lvb_invalid: bool,
    told: Vec<Told>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = |m: Option<Mode>| m.map_or("-", Mode::name);
        write!(f, "#{} {}>{} ", self.number, mode(self.gr), mode(self.rq))?;
        self.flags.iter_names().try_for_each(|(name, _)| write!(f, "{name} "))
    }
}

/// One line, as queues: G, C, W, and the value block.
impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "G {:?} C {:?} W {:?}", self.granted, self.converting, self.waiting)?;
        write!(f, " value {:?}{}", self.lvb, if self.lvb_invalid { " invalid" } else { "" })
    }
}

/// The table of docs/design/semantics.md 1, as text.
pub fn compatible(a: Mode, b: Mode) -> bool {
    let rows = ["yyyyyy", "yyyyyn", "yyynnn", "yynynn", "yynnnn", "ynnnnn"];
    rows[a as usize].as_bytes()[b as usize] == b'y'
}

/// Where a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Granted(Mode),
    Converting(Mode, Mode),
    Waiting(Mode),
}

impl Oracle {
    /// The events of clients since the last call, in order.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    pub fn at(&self, number: usize) -> Option<At> {
        let find = |q: &[Lock]| q.iter().find(|l| l.number == number).cloned();
        if let Some(l) = find(&self.granted) {
            return Some(At::Granted(l.gr.unwrap()));
        }
        if let Some(l) = find(&self.converting) {
            return Some(At::Converting(l.gr.unwrap(), l.rq.unwrap()));
        }
        find(&self.waiting).map(|l| At::Waiting(l.rq.unwrap()))
    }

    /// The queues as lock numbers, for comparison.
    pub fn queues(&self) -> [Vec<usize>; 3] {
        [&self.granted, &self.converting, &self.waiting]
            .map(|q| q.iter().map(|l| l.number).collect())
    }

    pub fn value(&self) -> (Option<Vec<u8>>, bool) {
        (self.lvb.clone(), self.lvb_invalid)
    }

    /// Granted locks that block a waiting one, and must have got a notice.
    pub fn blockers(&self) -> Vec<usize> {
        let wanted: Vec<Mode> =
            self.converting.iter().chain(&self.waiting).filter_map(|l| l.rq).collect();
        let blocks = |l: &&Lock| wanted.iter().any(|&rq| !compatible(l.gr.unwrap(), rq));
        self.granted.iter().filter(|l| l.noticed).filter(blocks).map(|l| l.number).collect()
    }

    // ---- docs/design/semantics.md 3: invalid calls ----

    pub fn request_is_valid(mode: Mode, flags: LockFlags) -> bool {
        let has = |flag| flags.contains(flag);
        if has(LockFlags::QUECVT) || has(LockFlags::CONVDEADLK) || has(LockFlags::IVVALBLK) {
            return false;
        }
        !has(LockFlags::EXPEDITE) || (mode == Mode::NL && !has(LockFlags::NOQUEUE))
    }

    pub fn convert_is_valid(gr: Mode, rq: Mode, flags: LockFlags) -> bool {
        use Mode::*;
        let has = |flag| flags.contains(flag);
        if has(LockFlags::EXPEDITE) || has(LockFlags::CONVDEADLK) && has(LockFlags::NOQUEUE) {
            return false;
        }
        let queueable: &[Mode] = match gr {
            NL => &[CR, CW, PR, PW, EX],
            CR => &[CW, PR, PW, EX],
            CW => &[PR, PW, EX],
            PR => &[CW, PW, EX],
            PW => &[EX],
            EX => &[],
        };
        !has(LockFlags::QUECVT) || queueable.contains(&rq)
    }

    // ---- the calls ----

    pub fn request(&mut self, number: usize, rq: Mode, flags: LockFlags, value: Option<Vec<u8>>) {
        let status_flags = SbFlags::empty();
        let mut lock =
            Lock { number, gr: None, rq: Some(rq), flags, status_flags, value, noticed: false };
        if self.attempt(&mut lock, true) == Attempt::Granted {
            self.grant(lock);
        } else if flags.contains(LockFlags::NOQUEUE) {
            self.report_completion(&lock, Status::Again);
            self.forget_if_empty();
        } else if flags.contains(LockFlags::HEADQUE) {
            self.waiting.insert(0, lock);
            self.notice(rq);
        } else {
            self.waiting.push(lock);
            self.notice(rq);
        }
    }

    /// The lock must be granted.
    pub fn convert(&mut self, number: usize, rq: Mode, flags: LockFlags, value: Option<Vec<u8>>) {
        let at = self.granted.iter().position(|l| l.number == number).expect("a granted lock");
        let mut lock = self.granted.remove(at);
        lock.rq = Some(rq);
        lock.flags = flags;
        lock.status_flags = SbFlags::empty();
        lock.value = value;
        match self.attempt(&mut lock, true) {
            Attempt::Granted => {
                self.grant(lock);
                return self.run_pending();
            }
            Attempt::Deadlock if !flags.contains(LockFlags::NODLCKWT) => {
                return self.back_to_granted(lock, Status::Deadlock);
            }
            Attempt::Demoted => {
                // It is not in C yet, but its (null) mode is in force; that hinders nobody.
                self.run_conversions();
                if self.grantable(&lock, rq, true) {
                    self.grant(lock);
                    return self.run_pending();
                }
            }
            _ => {}
        }
        if flags.contains(LockFlags::NOQUEUE) {
            self.back_to_granted(lock, Status::Again);
        } else if flags.contains(LockFlags::HEADQUE)
            // Ahead of one whose granted mode blocks it, both would wait for ever.
            && self.converting.iter().all(|c| c.gr.is_none_or(|gr| gr.compatible(rq)))
        {
            self.converting.insert(0, lock);
            self.notice(rq);
        } else {
            self.converting.push(lock);
            self.notice(rq);
        }
    }

    /// The lock may be anywhere if `flags` has FORCE, and must be granted otherwise.
    pub fn unlock(&mut self, number: usize, flags: UnlockFlags, value: Option<Vec<u8>>) {
        let mut lock = self.take(number);
        if lock.gr >= Some(Mode::PW) {
            let bits = LockFlags::from_bits_truncate(flags.bits());
            lock.flags = bits & (LockFlags::VALBLK | LockFlags::IVVALBLK);
            lock.value = value;
            self.write(&lock);
        }
        lock.gr = None;
        lock.status_flags = SbFlags::empty();
        self.report_completion(&lock, Status::Unlocked);
        self.forget_if_empty();
        self.run_pending();
    }

    pub fn cancel(&mut self, number: usize) {
        if let Some(at) = self.converting.iter().position(|l| l.number == number) {
            let lock = self.converting.remove(at);
            self.back_to_granted(lock, Status::Canceled);
            self.run_pending();
        } else if let Some(at) = self.waiting.iter().position(|l| l.number == number) {
            let lock = self.waiting.remove(at);
            self.report_completion(&lock, Status::Canceled);
            self.forget_if_empty();
            self.run_pending();
        }
    }

    // ---- docs/design/semantics.md 4 ----

    /// The ten rules, in order. `lock` itself need not be in any queue.
    fn grantable(&self, lock: &Lock, rq: Mode, now: bool) -> bool {
        let conv = lock.gr.is_some();
        let has = |flag| lock.flags.contains(flag);
        let first = |q: &[Lock]| q.first().is_some_and(|l| l.number == lock.number);
        // 1
        if has(LockFlags::EXPEDITE) {
            return true;
        }
        // 2
        for other in self.granted.iter().chain(&self.converting) {
            if other.number != lock.number && !compatible(other.gr.unwrap(), rq) {
                return false;
            }
        }
        // 3 is about recovery.
        // 4
        if now && conv && !has(LockFlags::QUECVT) {
            return true;
        }
        // 5
        if now && conv && has(LockFlags::QUECVT) {
            return self.converting.is_empty();
        }
        // 6
        if has(LockFlags::NOORDER) {
            return true;
        }
        // 7
        if !now && conv {
            return first(&self.converting);
        }
        // 8
        if now && !conv {
            return self.converting.is_empty() && self.waiting.is_empty();
        }
        // 9
        if !now && !conv {
            return self.converting.is_empty() && first(&self.waiting);
        }
        // 10
        false
    }

    fn attempt(&self, lock: &mut Lock, now: bool) -> Attempt {
        let rq = lock.rq.unwrap();
        if self.grantable(lock, rq, now) {
            return Attempt::Granted;
        }
        let queueable = !lock.flags.contains(LockFlags::NOQUEUE);
        if lock.gr.is_some() && queueable && self.deadlocks(lock) {
            if !lock.flags.contains(LockFlags::CONVDEADLK) {
                return Attempt::Deadlock;
            }
            lock.gr = Some(Mode::NL);
            lock.status_flags |= SbFlags::DEMOTED;
            return Attempt::Demoted;
        }
        let alternative = if lock.flags.contains(LockFlags::ALTPR) && rq != Mode::PR {
            Mode::PR
        } else if lock.flags.contains(LockFlags::ALTCW) && rq != Mode::CW {
            Mode::CW
        } else {
            return Attempt::No;
        };
        if !self.grantable(lock, alternative, now) {
            return Attempt::No;
        }
        lock.rq = Some(alternative);
        lock.status_flags |= SbFlags::ALTMODE;
        Attempt::Granted
    }

    fn grant(&mut self, mut lock: Lock) {
        let rq = lock.rq.take().unwrap();
        let read = self.move_lvb(&mut lock, rq);
        lock.gr = Some(rq);
        lock.noticed = false;
        let lvb = read.then(|| self.lvb.clone()).flatten();
        self.told.push(Told {
            lock: lock.number,
            status: Status::Granted,
            mode: lock.gr,
            status_flags: lock.status_flags,
            lvb,
        });
        self.insert_granted(lock);
    }

    /// G is ordered by mode; equals stay in the order of their grants.
    fn insert_granted(&mut self, lock: Lock) {
        let at = self.granted.iter().position(|l| l.gr < lock.gr).unwrap_or(self.granted.len());
        self.granted.insert(at, lock);
    }

    fn back_to_granted(&mut self, mut lock: Lock, status: Status) {
        lock.rq = None;
        self.report_completion(&lock, status);
        self.insert_granted(lock);
    }

    fn run_pending(&mut self) {
        self.run_conversions();
        let mut i = 0;
        while i < self.waiting.len() {
            let mut lock = self.waiting[i].clone();
            if self.attempt(&mut lock, false) == Attempt::Granted {
                self.waiting.remove(i);
                self.grant(lock);
            } else {
                i += 1;
            }
        }
        for waiter in [self.converting.clone(), self.waiting.clone()].concat() {
            self.notice(waiter.rq.unwrap());
        }
    }

    /// Every lock in G that conflicts with `rq` is told.
    fn notice(&mut self, rq: Mode) {
        for lock in &mut self.granted {
            lock.noticed |= !compatible(lock.gr.unwrap(), rq);
        }
    }

    fn run_conversions(&mut self) {
        let mut restarted_for_demotion = false;
        loop {
            let (mut granted, mut demoted) = (false, false);
            let mut i = 0;
            while i < self.converting.len() {
                let mut lock = self.converting[i].clone();
                let attempt = self.attempt(&mut lock, false);
                if attempt == Attempt::Granted {
                    self.converting.remove(i);
                    self.grant(lock);
                    granted = true;
                    continue;
                }
                demoted |= attempt == Attempt::Demoted;
                self.converting[i] = lock;
                i += 1;
            }
            if granted {
                continue;
            }
            if demoted && !restarted_for_demotion {
                restarted_for_demotion = true;
                continue;
            }
            return;
        }
    }

    // ---- docs/design/semantics.md 5 ----

    fn deadlocks(&self, two: &Lock) -> bool {
        let mine = self.converting.iter().position(|l| l.number == two.number);
        self.converting.iter().enumerate().any(|(at, one)| {
            let two_blocks_one = !compatible(two.gr.unwrap(), one.rq.unwrap());
            let one_blocks_two = !compatible(one.gr.unwrap(), two.rq.unwrap());
            match mine {
                Some(mine) if at == mine => false,
                Some(mine) if at > mine => two_blocks_one && one_blocks_two,
                _ => two_blocks_one,
            }
        })
    }

    // ---- docs/design/semantics.md 6 ----

    /// Returns whether the caller gets the resource's block.
    fn move_lvb(&mut self, lock: &mut Lock, rq: Mode) -> bool {
        let table = ["RRRRRR", "RRRRRR", "-RRRRR", "--RRRR", "---RRR", "WWWWWR", "WWWWWW"];
        let row = lock.gr.map_or(0, |gr| gr as usize + 1);
        let valblk = lock.flags.contains(LockFlags::VALBLK);
        match table[row].as_bytes()[rq as usize] {
            b'R' if valblk && self.lvb.is_some() => {
                self.warn_of_invalid(lock);
                true
            }
            b'W' => {
                self.write(lock);
                false
            }
            b'-' => {
                self.warn_of_invalid(lock);
                false
            }
            _ => false,
        }
    }

    fn warn_of_invalid(&self, lock: &mut Lock) {
        if self.lvb_invalid {
            lock.status_flags |= SbFlags::VALNOTVALID;
        }
    }

    fn write(&mut self, lock: &Lock) {
        if lock.flags.contains(LockFlags::IVVALBLK) {
            self.lvb_invalid = true;
        } else if lock.flags.contains(LockFlags::VALBLK) {
            self.lvb = lock.value.clone();
            self.lvb_invalid = false;
        }
    }

    // ---- the rest ----

    fn take(&mut self, number: usize) -> Lock {
        for queue in [&mut self.granted, &mut self.converting, &mut self.waiting] {
            if let Some(at) = queue.iter().position(|l| l.number == number) {
                return queue.remove(at);
            }
        }
        panic!("the oracle has no lock {number}");
    }

    fn report_completion(&mut self, lock: &Lock, status: Status) {
        let Lock { number, gr, status_flags, .. } = *lock;
        self.told.push(Told { lock: number, status, mode: gr, status_flags, lvb: None });
    }

    /// The value block goes with the last lock.
    fn forget_if_empty(&mut self) {
        if self.granted.is_empty() && self.converting.is_empty() && self.waiting.is_empty() {
            self.lvb = None;
            self.lvb_invalid = false;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    Granted,
    No,
    Deadlock,
    Demoted,
}
