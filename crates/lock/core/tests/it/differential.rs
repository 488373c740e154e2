//! Random calls on one resource, compared step by step with an oracle that was written from
//! docs/design/semantics.md alone (`oracle/`): on one node, and on three nodes run to quiescence after each
//! call, with the master at different places.
//!
//! A failure prints its seed. To replay one seed:
//!
//! ```text
//! LOCKIFY_SEED=N cargo test -p lockify-core --test it differential:: -- --nocapture
//! ```
//!
//! `LOCKIFY_SEEDS=N` runs the first N seeds of each test instead of the usual few thousand.

use std::collections::BTreeMap;

use crate::common::{Cluster, name, node};
use crate::oracle::{At, Oracle, Told, compatible};
use lockify_core::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const STEPS: usize = 60;
/// Locks alive at one time.
const LOCKS: usize = 7;
/// The same of every fourth seed: from eight locks on, a resource's queues are counted as they change.
const MANY_STEPS: usize = 150;
const MANY_LOCKS: usize = 24;
const LVB_LEN: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Master {
    /// One node, which masters everything.
    Alone,
    /// Three nodes; the directory node of the resource is the master from the first lock on.
    Home,
    /// Three nodes; the first that asks is the master.
    First,
    /// Three nodes; found by asking all of them.
    Broadcast,
}

#[derive(Clone, Debug)]
enum Call {
    Request { mode: Mode, flags: LockFlags, value: u8 },
    Convert { lock: usize, mode: Mode, flags: LockFlags, value: u8 },
    Unlock { lock: usize, flags: UnlockFlags, value: u8 },
    Cancel { lock: usize },
}

/// A client's view of a lock.
#[derive(Clone, Default, Debug)]
struct Callbacks {
    /// The mode in the last completion.
    mode: Option<Mode>,
    /// The last callback, if it was a blocking notice.
    last_notice: Option<Mode>,
    /// There was a notice since the last grant.
    told: bool,
}

struct Run {
    steps: usize,
    locks: usize,
    cluster: Cluster,
    master: Master,
    resource: String,
    oracle: Oracle,
    /// The caller's number of each lock, to where it is and its id there.
    ids: BTreeMap<usize, (NodeId, LockId)>,
    numbers: usize,
    callbacks: BTreeMap<usize, Callbacks>,
    random: Xoshiro256PlusPlus,
    /// How often completions had each status and flag.
    seen: BTreeMap<String, u64>,
}

#[test]
fn one_node_does_as_the_oracle() {
    all_seeds(Master::Alone, 4_000);
}

#[test]
fn three_nodes_with_the_master_at_home_do_as_the_oracle() {
    all_seeds(Master::Home, 2_000);
}

#[test]
fn three_nodes_with_the_first_as_master_do_as_the_oracle() {
    all_seeds(Master::First, 2_000);
}

#[test]
fn three_nodes_that_ask_each_other_do_as_the_oracle() {
    all_seeds(Master::Broadcast, 2_000);
}

fn all_seeds(master: Master, count: u64) {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    let only = number("LOCKIFY_SEED");
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKIFY_SEEDS").unwrap_or(count),
    };
    let mut seen = BTreeMap::new();
    for seed in seeds {
        let mut run = Run::new(master, seed);
        for step in 0..run.steps {
            let call = run.choose();
            if only.is_some() {
                println!("{step}: {:?} <- {call:?}", run.oracle);
            }
            if let Err(difference) = run.step(&call) {
                panic!(
                    "{master:?}, step {step}, {call:?}: {difference}\n\
                     replay: LOCKIFY_SEED={seed} cargo test -p lockify-core --test it \
                     differential:: -- --nocapture"
                );
            }
        }
        run.seen.iter().for_each(|(what, n)| *seen.entry(what.clone()).or_insert(0) += n);
    }
    if only.is_none() {
        assert_everything_seen(&seen);
    }
}

/// The random calls have led to every kind of completion, in numbers.
fn assert_everything_seen(seen: &BTreeMap<String, u64>) {
    let statuses =
        [Status::Granted, Status::Unlocked, Status::Again, Status::Canceled, Status::Deadlock];
    let flags = SbFlags::all().iter_names().map(|(name, _)| name.to_string());
    let wanted = statuses.iter().map(|s| format!("{s:?}")).chain(flags).chain(["LVB".into()]);
    for what in wanted {
        assert!(seen.get(&what).is_some_and(|&n| n > 20), "{what} is too rare in {seen:?}");
    }
}

impl Run {
    fn new(master: Master, seed: u64) -> Run {
        let (nodes, policy) = match master {
            Master::Alone => (1, Policy::Directory),
            Master::Home => (3, Policy::Home),
            Master::First => (3, Policy::Directory),
            Master::Broadcast => (3, Policy::Broadcast),
        };
        let mut cluster = Cluster::with(nodes, policy, |c| c.lvb_len = LVB_LEN);
        cluster.told.clear();
        let resource = cluster.name_at(node(seed as u32 % nodes + 1));
        let (steps, locks) = if seed % 4 == 3 { (MANY_STEPS, MANY_LOCKS) } else { (STEPS, LOCKS) };
        Run {
            steps,
            locks,
            cluster,
            master,
            resource,
            oracle: Oracle::default(),
            ids: BTreeMap::new(),
            numbers: 0,
            callbacks: BTreeMap::new(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            seen: BTreeMap::new(),
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.random_range(0..from.len())]
    }

    fn flag<T: Copy>(&mut self, flags: &mut Vec<T>, flag: T, one_in: u32) {
        if self.random.random_range(0..one_in) == 0 {
            flags.push(flag);
        }
    }

    fn choose(&mut self) -> Call {
        let mode = self.pick(&Mode::ALL);
        let value = self.random.random();
        let alive: Vec<usize> = self.ids.keys().copied().collect();
        let what = self.random.random_range(0..100);
        if alive.is_empty() || (what < 35 && alive.len() < self.locks) {
            return Call::Request { mode, flags: self.lock_flags(false), value };
        }
        let lock = self.pick(&alive);
        match what {
            0..75 => Call::Convert { lock, mode, flags: self.lock_flags(true), value },
            75..85 => Call::Cancel { lock },
            _ => {
                let mut flags = Vec::new();
                self.flag(&mut flags, UnlockFlags::VALBLK, 2);
                self.flag(&mut flags, UnlockFlags::IVVALBLK, 6);
                self.flag(&mut flags, UnlockFlags::FORCE, 3);
                Call::Unlock { lock, flags: flags.into_iter().collect(), value }
            }
        }
    }

    /// Mostly sensible flags, some that the call must refuse.
    fn lock_flags(&mut self, convert: bool) -> LockFlags {
        let mut flags = Vec::new();
        let (common, rare) = if convert { (4, 5) } else { (60, 60) };
        self.flag(&mut flags, LockFlags::QUECVT, common);
        self.flag(&mut flags, LockFlags::CONVDEADLK, common);
        self.flag(&mut flags, LockFlags::IVVALBLK, rare);
        self.flag(&mut flags, LockFlags::VALBLK, 2);
        self.flag(&mut flags, LockFlags::EXPEDITE, if convert { 60 } else { 8 });
        self.flag(&mut flags, LockFlags::NOQUEUE, 6);
        self.flag(&mut flags, LockFlags::NOQUEUEBAST, 6);
        self.flag(&mut flags, LockFlags::NODLCKWT, 5);
        self.flag(&mut flags, LockFlags::HEADQUE, 6);
        self.flag(&mut flags, LockFlags::NOORDER, 6);
        self.flag(&mut flags, LockFlags::ALTPR, 6);
        self.flag(&mut flags, LockFlags::ALTCW, 6);
        flags.into_iter().collect()
    }

    /// One call on both sides, and the comparison of everything that can be seen.
    fn step(&mut self, call: &Call) -> Result<(), String> {
        let free = self.is_free(call);
        let expected = self.expect(call);
        let answer = self.call(call);
        self.same("answer of the call", &expected, &answer)?;
        self.cluster.run();
        let mut expected = self.oracle.take_told();
        expected.iter().for_each(|t| count(&mut self.seen, t));
        let mut told = self.callbacks()?;
        if free {
            // Applied by its owner without asking the master (docs/design/semantics.md 4), who alone knows whether
            // the value block is valid.
            let own = |t: &mut Told| t.status_flags -= SbFlags::VALNOTVALID;
            expected.first_mut().map(own);
            told.iter_mut().take(1).for_each(own);
        }
        self.compare_told(expected, told)?;
        self.ids.retain(|&number, _| self.oracle.at(number).is_some());
        self.compare_states()?;
        self.check_notices()
    }

    fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        oracle: &T,
        real: &T,
    ) -> Result<(), String> {
        if oracle == real {
            return Ok(());
        }
        Err(format!("{what}:\noracle: {oracle:?}\nreal:   {real:?}\n{:?}", self.oracle))
    }

    /// Returns true if the owner converts down without asking the master.
    fn is_free(&self, call: &Call) -> bool {
        let Call::Convert { lock, mode, .. } = call else { return false };
        let middle = |a, b| matches!((a, b), (Mode::PR, Mode::CW) | (Mode::CW, Mode::PR));
        match self.oracle.at(*lock) {
            Some(At::Granted(gr)) => {
                self.master != Master::Alone && *mode < gr && !middle(gr, *mode)
            }
            _ => false,
        }
    }

    /// The call's result according to docs/design/semantics.md. The oracle executes the call if it
    /// is accepted.
    fn expect(&mut self, call: &Call) -> Result<(), &'static str> {
        let oracle = &mut self.oracle;
        match *call {
            Call::Request { mode, flags, value } => {
                if !Oracle::request_is_valid(mode, flags) {
                    return Err("EINVAL");
                }
                oracle.request(self.numbers, mode, flags, block(flags.bits(), value));
            }
            Call::Convert { lock, mode, flags, value } => {
                let Some(At::Granted(gr)) = oracle.at(lock) else { return Err("EBUSY") };
                if !Oracle::convert_is_valid(gr, mode, flags) {
                    return Err("EINVAL");
                }
                oracle.convert(lock, mode, flags, block(flags.bits(), value));
            }
            Call::Unlock { lock, flags, value } => {
                let idle = matches!(oracle.at(lock), Some(At::Granted(_)));
                if !idle && !flags.contains(UnlockFlags::FORCE) {
                    return Err("EBUSY");
                }
                oracle.unlock(lock, flags, block(flags.bits(), value));
            }
            Call::Cancel { lock } => oracle.cancel(lock),
        }
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Result<(), &'static str> {
        let client = ClientId(1);
        let tag = 0;
        let timeout = None;
        let (at, input) = match *call {
            Call::Request { mode, flags, value } => {
                let lvb = block(flags.bits(), value).map(Into::into);
                let name = name(&self.resource);
                let bast = true;
                let args = LockArgs { flags, lvb, bast, ..LockArgs::new(name, mode) };
                let nodes = self.cluster.nodes.len();
                (node((self.numbers % nodes) as u32 + 1), Input::Lock { client, args })
            }
            Call::Convert { lock, mode, flags, value } => {
                let (at, lock) = self.ids[&lock];
                let lvb = block(flags.bits(), value).map(Into::into);
                let args = ConvertArgs { client, lock, tag, mode, flags, lvb, timeout };
                (at, Input::Convert(args))
            }
            Call::Unlock { lock, flags, value } => {
                let (at, lock) = self.ids[&lock];
                let lvb = block(flags.bits(), value).map(Into::into);
                (at, Input::Unlock(UnlockArgs { client, lock, tag, flags, lvb }))
            }
            Call::Cancel { lock } => {
                let (at, lock) = self.ids[&lock];
                (at, Input::Cancel { client, lock })
            }
        };
        match self.cluster.input(at, input) {
            Ok(None) => Ok(()),
            Ok(Some(id)) => {
                self.ids.insert(self.numbers, (at, id));
                self.numbers += 1;
                Ok(())
            }
            Err(Error::Invalid(_)) => Err("EINVAL"),
            Err(Error::Busy) => Err("EBUSY"),
            Err(_) => Err("another error"),
        }
    }

    /// The lockspaces' callbacks to their clients, in the oracle's terms. Blocking notices must say
    /// something new (docs/design/semantics.md 7).
    fn callbacks(&mut self) -> Result<Vec<Told>, String> {
        let mut told = Vec::new();
        for (at, output) in std::mem::take(&mut self.cluster.told) {
            match output {
                Output::Complete(c) => {
                    let lock = self.number(at, c.lock);
                    let known = self.callbacks.entry(lock).or_default();
                    known.mode = c.mode;
                    known.last_notice = None;
                    known.told &= c.status != Status::Granted;
                    let lvb = c.lvb.as_deref().map(<[u8]>::to_vec);
                    told.push(Told {
                        lock,
                        status: c.status,
                        mode: c.mode,
                        status_flags: c.status_flags,
                        lvb,
                    });
                }
                Output::Bast { lock, mode, .. } => {
                    let lock = self.number(at, lock);
                    let known = self.callbacks.entry(lock).or_default();
                    let harmless = known.mode.is_none_or(|m| compatible(m, mode));
                    if harmless || known.last_notice == Some(mode) {
                        return Err(format!("lock {lock} was told {mode}: {known:?}"));
                    }
                    known.last_notice = Some(mode);
                    known.told = true;
                }
                other => return Err(format!("{at}: {other:?}")),
            }
        }
        Ok(told)
    }

    fn number(&self, at: NodeId, id: LockId) -> usize {
        let mut found = self.ids.iter().filter(|(_, ids)| **ids == (at, id));
        *found.next().unwrap_or_else(|| panic!("a callback for no lock: {id:?} at {at}")).0
    }

    /// On one node all completions come in the oracle's order; between nodes there is none, but
    /// each node hears its own in that order.
    fn compare_told(&self, oracle: Vec<Told>, real: Vec<Told>) -> Result<(), String> {
        let by_node = |told: Vec<Told>| {
            let mut nodes: BTreeMap<NodeId, Vec<Told>> = BTreeMap::new();
            for t in told {
                nodes.entry(self.ids[&t.lock].0).or_default().push(t);
            }
            nodes
        };
        if self.master == Master::Alone {
            self.same("completions", &oracle, &real)
        } else {
            self.same("completions by node", &by_node(oracle), &by_node(real))
        }
    }

    /// The master's queues and value block are the oracle's.
    fn compare_states(&self) -> Result<(), String> {
        let [mut granted, converting, waiting] = self.oracle.queues();
        if granted.len() + converting.len() + waiting.len() == 0 {
            let left: Vec<_> = self.cluster.nodes.values().map(|s| s.lock_count()).collect();
            return self.same("locks left", &vec![0; left.len()], &left);
        }
        let all: Vec<ResourceInfo> =
            self.cluster.nodes.values().flat_map(|s| s.resource(&name(&self.resource))).collect();
        let masters: Vec<ResourceInfo> = self
            .cluster
            .nodes
            .iter()
            .filter_map(|(n, s)| s.resource(&name(&self.resource)).filter(|r| r.master == Some(*n)))
            .collect();
        let [master] = &masters[..] else {
            return Err(format!("not one master: {all:?}"));
        };
        let queue = |which| -> Vec<usize> {
            let here = master.locks.iter().filter(|l| l.queue == which);
            here.map(|l| self.number(l.node, l.lock)).collect()
        };
        let mut real = queue(Queue::Granted);
        let modes = master.locks.iter().filter(|l| l.queue == Queue::Granted).map(|l| l.granted);
        if !modes.is_sorted_by(|a, b| a >= b) {
            return Err(format!("G is not ordered by mode: {master:?}"));
        }
        granted.sort();
        real.sort();
        self.same("G", &granted, &real)?;
        self.same("C", &converting, &queue(Queue::Converting))?;
        self.same("W", &waiting, &queue(Queue::Waiting))?;
        for lock in &master.locks {
            let at = match (lock.queue, lock.granted, lock.requested) {
                (Queue::Granted, Some(gr), None) => At::Granted(gr),
                (Queue::Converting, Some(gr), Some(rq)) => At::Converting(gr, rq),
                (Queue::Waiting, None, Some(rq)) => At::Waiting(rq),
                _ => return Err(format!("not a state: {lock:?}")),
            };
            self.same("lock", &self.oracle.at(self.number(lock.node, lock.lock)), &Some(at))?;
        }
        let value = (master.lvb.as_ref().map(|(v, _)| v.clone()), master.lvb_invalid);
        self.same("value block", &self.oracle.value(), &value)?;
        self.compare_owners(&all)
    }

    /// Every owner's view of its lock is the master's.
    fn compare_owners(&self, all: &[ResourceInfo]) -> Result<(), String> {
        for lock in all.iter().flat_map(|r| &r.locks) {
            let number = self.number(lock.node, lock.lock);
            let granted = match self.oracle.at(number) {
                Some(At::Granted(gr) | At::Converting(gr, _)) => Some(gr),
                _ => None,
            };
            self.same("the owner's mode", &granted, &lock.granted)?;
        }
        Ok(())
    }

    /// docs/design/semantics.md 7: who blocks somebody has been told since its last grant.
    fn check_notices(&mut self) -> Result<(), String> {
        let oracle = &self.oracle;
        self.callbacks.retain(|&number, _| oracle.at(number).is_some());
        match oracle.blockers().into_iter().find(|n| !self.callbacks[n].told) {
            Some(n) => Err(format!("lock {n} blocks and was not told: {oracle:?}")),
            None => Ok(()),
        }
    }
}

fn count(seen: &mut BTreeMap<String, u64>, told: &Told) {
    let flags = told.status_flags.iter_names().map(|(name, _)| name.to_string());
    let lvb = told.lvb.iter().map(|_| "LVB".to_string());
    for what in [format!("{:?}", told.status)].into_iter().chain(flags).chain(lvb) {
        *seen.entry(what).or_insert(0) += 1;
    }
}

/// The value block of a call with these flags, if it has one.
fn block(flags: u32, value: u8) -> Option<Vec<u8>> {
    (flags & LockFlags::VALBLK.bits() != 0).then(|| vec![value; LVB_LEN])
}
