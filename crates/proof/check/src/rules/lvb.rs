//! Lock value blocks: a read returns the last write (docs/design/semantics.md 6).
//!
//! A conversion or unlock of PW or EX writes a block, as the table says. A grant with VALBLK reads it. Grants of CW,
//! PR, PW and EX exclude every writer, so they are judged against the last write called. Grants of NL and CR are
//! judged only if no write was under way meanwhile.
//!
//! IVVALBLK invalidates the block, and so does the end of a client or node that held PW or EX. VALNOTVALID then has
//! to be reported until the next write. It must not be reported otherwise, unless a node died since the last write.
//! The block vanishes with the last lock. Provisional grants are not judged.

use hashbrown::HashMap;
use lockify_history::{Event, Flags, Kind, Lvb, Mode, Resource, SbFlags};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{LockKey, Op, OpKind, is_unlocked};

const NAME: &str = "lvb";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Read,
    Write,
    None,
}

/// The table of docs/design/semantics.md 6.
fn action(from: Option<Mode>, to: Mode) -> Action {
    use Action::{None as Not, Read as R, Write as W};
    const TABLE: [[Action; 6]; 6] = [
        [R, R, R, R, R, R],
        [Not, R, R, R, R, R],
        [Not, Not, R, R, R, R],
        [Not, Not, Not, R, R, R],
        [W, W, W, W, W, R],
        [W, W, W, W, W, W],
    ];
    from.map_or(R, |from| TABLE[from as usize][to as usize])
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    /// Nobody can tell.
    Unknown,
    /// The resource has none.
    Absent,
    /// Written, or read by somebody who excluded all writers.
    Bytes(Lvb),
}

#[derive(Debug)]
struct Block {
    content: Content,
    /// True if the block is valid; `None` if the history does not show it.
    valid: Option<bool>,
    /// The line of the last write or invalidation.
    written: u64,
    /// Writes and invalidations that may still be on their way to the master: their locks, and the lines. A forced
    /// unlock may write, even while another lock's write is on its way.
    under_way: HashMap<LockKey, u64>,
    /// The line from which on there is none.
    applied: u64,
    /// For a moment, no lock was known to be granted: the resource may have vanished.
    maybe_gone: bool,
    /// A client has ended while its request to write was under way. It may still be granted, and then invalidates
    /// the block.
    haunted: bool,
    /// The number of faults when it was last written.
    faults: u64,
    /// Locks that exist or may exist; true: granted for certain.
    locks: HashMap<LockKey, bool>,
}

/// LVB per the table.
#[derive(Default, Debug)]
pub struct LvbContent {
    blocks: HashMap<Resource, Block>,
    faults: u64,
}

impl Invariant for LvbContent {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Request, Field::Grant, Field::LvbWritten]
    }

    fn wants(&self) -> &'static [(Field, &'static str)] {
        &[(Field::LvbRead, "the values read (only VALNOTVALID)")]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        match seen.event.kind {
            Kind::Request => self.request(seen),
            Kind::Convert | Kind::Unlock => self.call(seen),
            Kind::Grant => return self.grant(seen, counts),
            Kind::Complete => self.complete(seen),
            Kind::Lost => self.lost(seen),
            Kind::Refuse | Kind::Merge | Kind::Conflict => self.doubt(seen.event.resource.as_ref()),
            Kind::Gone => self.gone(seen),
            Kind::Crash | Kind::Leave => self.crash(seen),
            Kind::View | Kind::Recover => self.faults += 1,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

impl LvbContent {
    fn request(&mut self, seen: &Seen<'_>) {
        let (Some(resource), Some(key)) = (&seen.event.resource, seen.key) else {
            return;
        };
        let faults = self.faults;
        let block = self.blocks.entry(resource.clone()).or_insert_with(|| Block::new(seen, faults));
        block.locks.insert(key, false);
    }

    fn block(&mut self, seen: &Seen<'_>) -> Option<&mut Block> {
        self.blocks.get_mut(seen.resource()?)
    }

    fn call(&mut self, seen: &Seen<'_>) {
        let faults = self.faults;
        let (Some(key), Some(lock)) = (seen.key, seen.lock) else {
            return;
        };
        let Some(block) = self.block(seen) else {
            return;
        };
        let unlock = seen.event.kind == Kind::Unlock;
        let does = match (lock.granted, seen.event.mode) {
            (from, Some(to)) if !unlock => action(from, to),
            (Some(from), _) if from.writes() => Action::Write,
            _ => Action::None,
        };
        // It may be granted in the alternative mode, which from PW or EX writes.
        let alternative = !unlock
            && lock.granted.is_some_and(Mode::writes)
            && seen.event.flags.intersects(Flags::ALTPR | Flags::ALTCW);
        let forced_over = unlock && lock.ops.iter().any(|op| op.kind != OpKind::Unlock);
        let block_flags = Flags::VALBLK | Flags::IVVALBLK;
        let touches = seen.event.flags.intersects(block_flags)
            || (forced_over && lock.ops.iter().any(|op| op.flags.intersects(block_flags)));
        if (forced_over || alternative) && touches {
            // The pending operation may have been granted in the meantime, or not.
            block.may_write(key, seen.line);
        } else if does == Action::Write && !lock.lost {
            block.write(key, seen.event, seen.line, faults);
        }
        if unlock {
            block.release(key);
        }
    }

    fn grant(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let (Some(key), Some(op), Some(mode)) = (seen.key, seen.op, seen.event.mode) else {
            return Ok(());
        };
        let faults = self.faults;
        let Some(block) = self.block(seen) else {
            return Ok(());
        };
        let excludes = !mode.compatible(Mode::PW);
        // What goes down from PW or EX is granted where it is, before its master hears of it.
        let local = op.had.is_some_and(Mode::writes);
        // A provisional grant is none of the master's.
        if excludes && !local && !seen.event.provisional {
            block.all_arrived(seen.line);
        }
        let reads = action(op.had, mode) == Action::Read && op.flags.contains(Flags::VALBLK);
        let still = block.under_way.is_empty() && block.applied < op.line && block.faults == faults;
        let mut verdict = Ok(());
        if reads && !seen.event.provisional && (excludes || still) {
            verdict = block.judge(seen, op, faults, counts);
        }
        if excludes && !seen.event.provisional {
            block.learn(seen.event, reads, faults);
        }
        let unlocking = seen.lock.is_some_and(|l| l.ops.iter().any(|o| o.kind == OpKind::Unlock));
        block.locks.insert(key, !unlocking);
        verdict
    }

    fn complete(&mut self, seen: &Seen<'_>) {
        let (Some(resource), Some(key)) = (seen.resource(), seen.key) else {
            return;
        };
        let Some(block) = self.blocks.get_mut(resource) else {
            return;
        };
        let unlocked = is_unlocked(seen.event);
        if !unlocked && seen.op.is_some_and(|op| op.line == block.written) {
            // Cancelled, timed out or refused before it could write.
            block.may_write(key, seen.line);
        }
        if unlocked {
            block.arrived(key, seen.line);
        }
        if unlocked || seen.op.is_some_and(|op| op.kind == OpKind::Request) {
            block.release(key);
            block.locks.remove(&key);
            if !block.is_known() {
                self.blocks.remove(resource);
            }
        }
    }

    /// The client no longer knows what its lock was worth; the master may.
    fn lost(&mut self, seen: &Seen<'_>) {
        let Some(key) = seen.key else { return };
        if let Some(block) = self.block(seen) {
            block.doubt();
            block.release(key);
        }
    }

    fn doubt(&mut self, resource: Option<&Resource>) {
        if let Some(block) = resource.and_then(|r| self.blocks.get_mut(r)) {
            block.doubt();
        }
    }

    fn gone(&mut self, seen: &Seen<'_>) {
        let client = seen.event.client.as_deref().unwrap_or_default();
        for (key, lock) in seen.state.locks_of(seen.life, client) {
            let Some(block) = lock.resource.as_ref().and_then(|r| self.blocks.get_mut(r)) else {
                continue;
            };
            let settled = lock.ops.is_empty() && !lock.persistent;
            match lock.granted {
                Some(mode) if mode.writes() && settled => {
                    block.invalidate(self.faults);
                    block.sent(key, seen.line);
                    block.faults = self.faults;
                }
                Some(mode) if !mode.writes() && settled => {}
                _ => {
                    block.doubt();
                    block.haunted = true;
                }
            }
            block.release(key);
            // No event tells when the lock is gone for good. Until then the content is uncertain only if no other
            // lock keeps the resource; `release` has noted that.
            block.locks.remove(&key);
        }
        self.blocks.retain(|_, block| block.is_known());
    }

    fn crash(&mut self, seen: &Seen<'_>) {
        self.faults += 1;
        self.blocks.retain(|_, block| {
            if !block.under_way.is_empty() {
                // The write may have died on its way to the master, or with it.
                block.doubt();
            }
            if block.locks.keys().any(|key| key.life == seen.life) {
                block.doubt();
                block.locks.retain(|key, _| key.life != seen.life);
            }
            block.is_known()
        });
    }
}

impl Block {
    fn new(seen: &Seen<'_>, faults: u64) -> Block {
        // After a fault, a resource may have outlived all locks that the history knows of.
        let fresh = seen.whole && faults == 0;
        Block {
            content: if fresh { Content::Absent } else { Content::Unknown },
            valid: fresh.then_some(true),
            written: 0,
            under_way: HashMap::new(),
            applied: 0,
            maybe_gone: false,
            haunted: false,
            faults,
            locks: HashMap::new(),
        }
    }

    /// Its locks may all have ended; a request that nobody waits for may still come, and invalidate the next block.
    fn is_known(&self) -> bool {
        self.haunted || !self.locks.is_empty()
    }

    fn doubt(&mut self) {
        self.content = Content::Unknown;
        self.valid = None;
    }

    /// A recovery may have left no block that could be reported as invalid.
    fn invalidate(&mut self, faults: u64) {
        if self.faults != faults {
            self.content = Content::Unknown;
        }
        self.valid = Some(false);
    }

    /// A write may be under way: a read may return the former or the new value.
    fn may_write(&mut self, key: LockKey, line: u64) {
        self.doubt();
        self.sent(key, line);
    }

    /// A write or an invalidation is on its way to the master.
    fn sent(&mut self, key: LockKey, line: u64) {
        self.written = line;
        self.under_way.insert(key, line);
    }

    /// The master has handled all of this lock's calls. Other locks' calls may still be on their way.
    fn arrived(&mut self, key: LockKey, line: u64) {
        if self.under_way.remove(&key).is_some() {
            self.applied = line;
        }
    }

    /// A lock is granted that excludes all writers: they have all been there.
    fn all_arrived(&mut self, line: u64) {
        if !self.under_way.is_empty() {
            self.under_way.clear();
            self.applied = line;
        }
    }

    fn write(&mut self, key: LockKey, event: &Event, line: u64, faults: u64) {
        if event.flags.contains(Flags::IVVALBLK) {
            self.invalidate(faults);
        } else if event.flags.contains(Flags::VALBLK) {
            self.content = event.lvb.clone().map_or(Content::Unknown, Content::Bytes);
            self.valid = Some(true);
            self.maybe_gone = false;
        } else {
            return;
        }
        self.sent(key, line);
        self.faults = faults;
    }

    fn release(&mut self, key: LockKey) {
        if let Some(granted) = self.locks.get_mut(&key) {
            *granted = false;
        }
        self.maybe_gone |= !self.locks.values().any(|granted| *granted);
    }

    /// A read that excluded all writers shows the block's content.
    fn learn(&mut self, event: &Event, read: bool, faults: u64) {
        let invalid = event.sb_flags.contains(SbFlags::VALNOTVALID);
        let Some(lvb) = event.lvb.as_ref().filter(|_| read && !invalid) else {
            return;
        };
        if self.content == Content::Unknown {
            self.content = Content::Bytes(lvb.clone());
            self.valid = Some(true);
            self.maybe_gone = false;
            self.faults = faults;
        }
    }

    fn judge(
        &self,
        seen: &Seen<'_>,
        op: &Op,
        faults: u64,
        counts: &mut Counts,
    ) -> Result<(), Violation> {
        let invalid = seen.event.sb_flags.contains(SbFlags::VALNOTVALID);
        let certain = self.faults == faults && !self.maybe_gone;
        let resource = seen.resource();
        let wrong = |what: String| {
            let name = resource.map(|r| format!("{r:?}: ")).unwrap_or_default();
            Err(seen.violation(NAME, [self.written, op.line], name + &what))
        };
        match self.valid {
            // A resource without a block has no flag to report either (kernel: set_lvb_lock).
            Some(false) if certain && !invalid && matches!(self.content, Content::Bytes(_)) => {
                return wrong(
                    "the lock value block was invalidated, but VALNOTVALID is not reported".into(),
                );
            }
            // A resource that vanished has no invalid block; one that did not is as it was.
            Some(true) if self.faults == faults && invalid && !self.haunted => {
                return wrong(
                    "VALNOTVALID is reported, but nothing invalidated the lock value block".into(),
                );
            }
            _ => {}
        }
        if invalid || self.valid == Some(false) {
            return Ok(());
        }
        counts.lvb_reads += 1;
        let nothing = seen.event.lvb.as_ref().is_none_or(Lvb::is_zero);
        match (&self.content, &seen.event.lvb) {
            (Content::Unknown, _) => Ok(()),
            (Content::Absent, Some(lvb)) if !nothing => {
                wrong(format!("read the lock value block {lvb}, but nobody wrote one"))
            }
            (Content::Absent, _) => Ok(()),
            (Content::Bytes(_), _) if nothing && self.maybe_gone => Ok(()),
            (Content::Bytes(wrote), Some(read)) if wrote != read => wrong(format!(
                "read the lock value block {read}, but the last one written is {wrote}"
            )),
            // A recovery that finds no lock with a copy makes a resource without a block.
            (Content::Bytes(_), None) if self.faults != faults => Ok(()),
            (Content::Bytes(wrote), None) if seen.fields.has(Field::LvbRead) => {
                wrong(format!("read no lock value block, but the last one written is {wrote}"))
            }
            _ => Ok(()),
        }
    }
}
