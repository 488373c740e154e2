//! Order. A queue that promises FIFO grants its requests in that order (docs/design/semantics.md 4).
//!
//! A history does not show when a call reached the master. So the rule judges only pairs whose order
//! there follows from the history:
//! - Both calls are from the same node (its messages to a master stay in order), on the same resource.
//!   Both ask for a new lock, or both convert upwards and the later one has QUECVT.
//! - Neither gave up its place (NOORDER, HEADQUE, EXPEDITE, ORPHAN, NOTIFY, CONVDEADLK, or
//!   `"ordered":false`), and the earlier one was not cancelled.
//! - Between them, no view changed and no claim was refused for the resource. A new master does not know
//!   the old order. The resource had a granted lock all the time, or else its master may have changed. From
//!   the call of its unlock on, a lock may be gone.
//! - The node was granted a lock of the resource in this time, before the earlier call. Otherwise it may
//!   have sent that to a former master, and the later one straight to the new one.
//!
//! Then the later request must not be granted while the earlier one waits. A new lock is granted at once
//! only if no request waits. It is granted from the queue only if it is first.

use hashbrown::{HashMap, HashSet};
use lockify_history::{Flags, Kind, Resource};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{Life, LockKey, Op, OpKind, is_unlocked};

const NAME: &str = "order";

const UNORDERED: Flags = Flags::NOORDER
    .union(Flags::HEADQUE)
    .union(Flags::EXPEDITE)
    .union(Flags::ORPHAN)
    .union(Flags::NOTIFY)
    .union(Flags::CONVDEADLK);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: LockKey,
    kind: OpKind,
    line: u64,
    views: u64,
}

#[derive(Default, Debug)]
struct Queue {
    /// Calls that keep their place, oldest first.
    waiting: Vec<Waiting>,
    /// Locks that were granted and are not known to be gone.
    granted: HashSet<LockKey>,
    /// Who was granted a lock since there has always been one, and at which line first.
    knows_master: HashMap<Life, u64>,
}

/// FIFO where promised.
#[derive(Default, Debug)]
pub struct Order {
    queues: HashMap<Resource, Queue>,
    views: u64,
}

impl Invariant for Order {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Request, Field::Grant]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        match seen.event.kind {
            Kind::Request | Kind::Convert => {
                self.call(seen);
                Ok(())
            }
            Kind::Grant => self.grant(seen, counts),
            Kind::Complete | Kind::Lost => {
                self.complete(seen);
                Ok(())
            }
            Kind::Cancel => {
                self.with_queue(seen, |queue, key| queue.waiting.retain(|w| w.key != key));
                Ok(())
            }
            Kind::Unlock => {
                let forced = seen.event.flags.contains(Flags::FORCE);
                self.with_queue(seen, |queue, key| {
                    queue.waiting.retain(|w| !forced || w.key != key);
                    queue.granted.remove(&key);
                });
                Ok(())
            }
            Kind::Settled => {
                let line = seen.line;
                self.with_queue(seen, |queue, key| queue.add_granted(key, line));
                Ok(())
            }
            Kind::Refuse | Kind::Merge | Kind::Conflict => {
                if let Some(resource) = &seen.event.resource {
                    self.queues.remove(resource);
                }
                Ok(())
            }
            Kind::View | Kind::Recover => {
                self.views += 1;
                Ok(())
            }
            Kind::Crash | Kind::Leave => {
                self.views += 1;
                self.forget(|key| key.life == seen.life);
                Ok(())
            }
            Kind::Gone => {
                self.gone(seen);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

impl Order {
    fn call(&mut self, seen: &Seen<'_>) {
        let (Some(resource), Some(key)) = (seen.resource(), seen.key) else {
            return;
        };
        let event = seen.event;
        let kind = if event.kind == Kind::Request { OpKind::Request } else { OpKind::Convert };
        let granted = seen.lock.and_then(|lock| lock.granted);
        // Other conversions may wait at their own node, behind the claim barrier, or not at all.
        let alternative = event.flags.intersects(Flags::ALTPR | Flags::ALTCW);
        let queues = kind == OpKind::Request
            || !alternative
                && matches!((granted, event.mode), (Some(from), Some(to)) if from.is_up(to));
        if !queues || event.flags.intersects(UNORDERED) || event.ordered == Some(false) {
            return;
        }
        let waiting = Waiting { key, kind, line: seen.line, views: self.views };
        self.queues.entry(resource.clone()).or_default().waiting.push(waiting);
    }

    fn grant(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let (Some(resource), Some(key)) = (seen.resource(), seen.key) else {
            return Ok(());
        };
        let views = self.views;
        let queue = self.queues.entry(resource.clone()).or_default();
        let mut verdict = Ok(());
        if let Some(op) = seen.op {
            let overtaken = queue.overtaken(key.life, op, views, counts);
            queue.waiting.retain(|w| w.line != op.line);
            if let Some(earlier) = overtaken {
                let what = format!(
                    "{resource:?}: the {} of {key} was granted before the earlier one of {}",
                    op.kind, earlier.key
                );
                verdict = Err(seen.violation(NAME, [earlier.line, op.line], what));
                // One overtaking is one violation, however many follow.
                queue.waiting.retain(|w| w.line != earlier.line);
            }
        }
        if seen.event.provisional {
            self.drop_if_empty(resource);
        } else {
            queue.add_granted(key, seen.line);
        }
        verdict
    }

    fn complete(&mut self, seen: &Seen<'_>) {
        let lost = seen.event.kind == Kind::Lost;
        let gone =
            lost || is_unlocked(seen.event) || seen.op.is_some_and(|op| op.kind == OpKind::Request);
        let line = seen.op.map(|op| op.line);
        self.with_queue(seen, |queue, key| {
            queue.waiting.retain(|w| Some(w.line) != line && !(gone && w.key == key));
            if gone {
                queue.granted.remove(&key);
            }
        });
    }

    fn gone(&mut self, seen: &Seen<'_>) {
        let client = seen.event.client.as_deref().unwrap_or_default();
        for (key, lock) in seen.state.locks_of(seen.life, client) {
            if let Some(queue) = lock.resource.as_ref().and_then(|r| self.queues.get_mut(r)) {
                queue.waiting.retain(|w| w.key != key);
                queue.granted.remove(&key);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    fn with_queue(&mut self, seen: &Seen<'_>, f: impl FnOnce(&mut Queue, LockKey)) {
        let (Some(resource), Some(key)) = (seen.resource(), seen.key) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(resource) else {
            return;
        };
        f(queue, key);
        if queue.is_empty() {
            self.queues.remove(resource);
        }
    }

    fn drop_if_empty(&mut self, resource: &Resource) {
        if self.queues.get(resource).is_some_and(Queue::is_empty) {
            self.queues.remove(resource);
        }
    }

    fn forget(&mut self, which: impl Fn(&LockKey) -> bool) {
        self.queues.retain(|_, queue| {
            queue.waiting.retain(|w| !which(&w.key));
            queue.granted.retain(|key| !which(key));
            !queue.is_empty()
        });
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.granted.is_empty()
    }

    fn add_granted(&mut self, key: LockKey, line: u64) {
        if self.granted.is_empty() {
            self.knows_master.clear();
        }
        self.granted.insert(key);
        self.knows_master.entry(key.life).or_insert(line);
    }

    /// A call that should have been granted before this one.
    fn overtaken(&self, life: Life, op: &Op, views: u64, counts: &mut Counts) -> Option<Waiting> {
        let keeps_place = self.waiting.iter().any(|w| w.line == op.line)
            && (op.kind == OpKind::Request || op.flags.contains(Flags::QUECVT));
        if !keeps_place || self.granted.is_empty() {
            return None;
        }
        let known_since = *self.knows_master.get(&life)?;
        let earlier = self.waiting.iter().filter(|w| {
            w.key.life == life
                && w.kind == op.kind
                && w.line < op.line
                && w.views == views
                && w.line > known_since
        });
        counts.order_judged += 1;
        earlier.min_by_key(|w| w.line).copied()
    }
}
