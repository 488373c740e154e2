//! A search for deadlocks has no false victims. A request that ended with EDEADLK was in a circle
//! of waiting clients at some moment of its wait.
//!
//! The rule assumes many waits, because a history does not show the master's queues. A request
//! waits for every client that holds a conflicting mode of the resource or waits for one.
//! Time-outs, cancels and crashes end circles as well as victims do. So the rule looks for circles
//! before each event that can end one. It does not judge conversions, because one resource alone
//! decides their EDEADLK.

use std::collections::{BTreeMap, BTreeSet};

use lockify_history::{EDEADLK, Flags, Kind};
use petgraph::algo::kosaraju_scc;
use petgraph::graphmap::DiGraphMap;

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{Life, Lock, LockKey, OpKind, State};

const NAME: &str = "deadlock";

/// No false victims.
#[derive(Clone, Default, Debug)]
pub struct Deadlock {
    /// Requests that were in a circle, by lock and line.
    circled: BTreeSet<(LockKey, u64)>,
}

/// A client of one life of a node.
type Client<'a> = (Life, &'a str);

impl Invariant for Deadlock {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Request, Field::Grant, Field::Deadlock]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        if !seen.fields.has(Field::Deadlock) {
            return Ok(());
        }
        match seen.event.kind {
            Kind::Convert | Kind::Unlock | Kind::Grant | Kind::Complete | Kind::Gone => {}
            Kind::Crash | Kind::Leave | Kind::Lost => {}
            _ => return Ok(()),
        }
        if !may_end_circle(seen) {
            return Ok(());
        }
        let now = circled(seen.state);
        self.circled.retain(|(key, line)| {
            seen.state.lock(*key).is_some_and(|l| l.ops.iter().any(|op| op.line == *line))
        });
        self.circled.extend(now);
        let ended = seen.event.status.is_some_and(|s| s.unsigned_abs() == EDEADLK as u64);
        match (seen.key, seen.op) {
            (Some(key), Some(op)) if ended && op.kind == OpKind::Request => {
                counts.deadlocks += 1;
                if !self.circled.contains(&(key, op.line)) {
                    let what = format!(
                        "the request of {key} ended with EDEADLK, and never was in a deadlock"
                    );
                    return Err(seen.violation(NAME, vec![op.line], what));
                }
                if op.flags.contains(Flags::NODLCKWT) {
                    let what =
                        format!("the request of {key} ended with EDEADLK in spite of NODLCKWT");
                    return Err(seen.violation(NAME, vec![op.line], what));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

/// Returns true if the event's lock waits, or others wait for it. Only such locks form a circle.
fn may_end_circle(seen: &Seen<'_>) -> bool {
    let (Some(key), Some(lock)) = (seen.key, seen.lock) else { return true };
    let waits = |lock: &Lock| lock.ops.iter().any(|op| op.mode.is_some());
    let waited_for = || {
        let mut others = seen.state.locks().filter(|(other, _)| *other != key);
        others.any(|(_, other)| other.resource == lock.resource && waits(other))
    };
    waits(lock) || (lock.granted.is_some() && waited_for())
}

/// The requests that are in circles.
fn circled(state: &State) -> Vec<(LockKey, u64)> {
    let waits = |lock: &Lock| lock.ops.iter().any(|op| op.mode.is_some());
    let mut wanted = BTreeSet::new();
    for (_, lock) in state.locks().filter(|(_, l)| waits(l)) {
        wanted.extend(lock.resource.as_ref().map(|r| r.as_bytes()));
    }
    let mut by_resource: BTreeMap<&[u8], Vec<(LockKey, &Lock)>> = BTreeMap::new();
    for (key, lock) in state.locks() {
        let name = lock.resource.as_ref().map(|r| r.as_bytes()).filter(|r| wanted.contains(r));
        if let Some(name) = name {
            by_resource.entry(name).or_default().push((key, lock));
        }
    }
    // Which clients wait for which, and what each waiting request waits for.
    let mut waits_for = DiGraphMap::<Client<'_>, ()>::new();
    let mut requests: Vec<(Client<'_>, Client<'_>, (LockKey, u64))> = Vec::new();
    for locks in by_resource.values() {
        for (key, lock) in locks {
            let Some(client) = client_of(*key, lock) else { continue };
            for op in lock.ops.iter().filter(|op| op.mode.is_some()) {
                let others = locks.iter().filter(|(other, l)| other != key && stands(l, op.mode));
                let others = others.filter_map(|(other, l)| client_of(*other, l));
                for other in others.filter(|c| *c != client) {
                    waits_for.add_edge(client, other, ());
                    requests.push((client, other, (*key, op.line)));
                }
            }
        }
    }
    // Both ends of a wait are in one strongly connected component if and only if it is in a circle.
    let components = kosaraju_scc(&waits_for).into_iter().enumerate();
    let component: BTreeMap<_, _> =
        components.flat_map(|(i, clients)| clients.into_iter().map(move |c| (c, i))).collect();
    let in_circle = requests.iter().filter(|(from, to, _)| component[from] == component[to]);
    in_circle.map(|(_, _, op)| *op).collect()
}

fn client_of(key: LockKey, lock: &Lock) -> Option<Client<'_>> {
    lock.client.as_deref().map(|client| (key.life, client))
}

/// Returns true if a lock may delay a request for this mode.
fn stands(lock: &Lock, wanted: Option<lockify_history::Mode>) -> bool {
    let conflicts = lock.granted.zip(wanted).is_some_and(|(held, w)| !held.compatible(w));
    conflicts || lock.ops.iter().any(|op| op.mode.is_some())
}
