//! A history in order: operations, their tries, and the accesses to each block of each device.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use lockify_history::array::{Event, Kind, Layout, Life, Stamp, Tag};

use crate::invariant::Violation;

/// More blocks at once than any request has: such a line is a mistake, and would need much memory.
const MOST_BLOCKS: u64 = 1 << 16;

/// The kind of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// It reads.
    Read,
    /// It writes these.
    Write(Vec<Tag>),
    /// It makes durable what its host has answered.
    Flush,
    /// It checks, repairs or rebuilds: what applications see stays the same.
    Repair,
}

/// How an operation was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// In which line.
    pub line: u64,
    /// The content that was read.
    pub tags: Vec<Tag>,
    /// It failed, and why.
    pub error: Option<String>,
}

/// A host operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// The life whose operation it is.
    pub by: Life,
    /// Its number.
    pub id: u64,
    /// The kind of operation.
    pub what: What,
    /// Its first sector of the array.
    pub start: u64,
    /// Its sectors.
    pub count: u64,
    /// The line in which it was asked for.
    pub line: u64,
    /// Its answer.
    pub answer: Option<Answer>,
    /// Its tries, by index, in their order.
    pub tries: Vec<usize>,
}

impl Op {
    /// Returns true if it was answered well. Then its last try is a transaction that took effect as a whole.
    pub fn is_done(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.error.is_none())
    }

    /// The value that it writes to a sector of the array.
    pub fn writes(&self, sector: u64) -> Option<Tag> {
        let What::Write(tags) = &self.what else { return None };
        tags.get(usize::try_from(sector.checked_sub(self.start)?).ok()?).copied()
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.what {
            What::Read => "read",
            What::Write(_) => "write",
            What::Flush => "flush",
            What::Repair => "repair",
        };
        write!(f, "{what} {} of {}", self.id, self.by)
    }
}

/// A try of an operation.
#[derive(Clone, Debug)]
pub struct Try {
    /// The life whose try it is.
    pub by: Life,
    /// Its number.
    pub seq: u64,
    /// Its operation, by index; unknown if no `try` event told it.
    pub op: Option<usize>,
    /// Its timestamp.
    pub stamp: Option<Stamp>,
}

/// An access of a device to a block.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// For which try, by index.
    pub attempt: usize,
    /// In which line.
    pub line: u64,
    /// The kind of access.
    pub did: Did,
}

/// The kind of an access to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Read it.
    Read,
    /// Wrote it.
    Write(Option<Stamp>),
    /// Dropped a write of it.
    Drop(Option<Stamp>),
}

/// The content of a block at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dumped {
    /// Its content, or something of it that is linear in XOR.
    pub bytes: Vec<u8>,
    /// It is marked as lost.
    pub lost: bool,
    /// In which line it was told.
    pub line: u64,
}

/// All of a history.
#[derive(Debug)]
pub struct Run {
    /// The layout.
    pub layout: Layout,
    /// The scheme.
    pub scheme: String,
    /// Only flushes make writes durable.
    pub volatile: bool,
    /// Operations, in the order in which they were asked for.
    pub ops: Vec<Op>,
    /// All tries, in the order of their lines.
    pub tries: Vec<Try>,
    /// Sectors of the array that were written in part at some time: their values are not known.
    pub partial: BTreeSet<u64>,
    /// The accesses to each block of each device, in order.
    pub blocks: BTreeMap<(u16, u64), Vec<Access>>,
    /// Lines in which devices went down.
    pub downs: BTreeMap<u16, Vec<u64>>,
    /// Since which line a life is fenced at a device.
    pub fenced: BTreeMap<(u16, Life), u64>,
    /// Lives that ended.
    pub crashed: BTreeMap<Life, u64>,
    /// The content of devices at the end.
    pub dumped: BTreeMap<(u16, u64), Dumped>,
    /// State that was left at the end: place, kind, amount, line.
    pub left: Vec<(String, String, u64, u64)>,
    /// The line of the `end`, if it is the last.
    pub end: Option<u64>,
    /// The last event's time.
    pub t: u64,
    /// Lines that contradict others.
    pub malformed: Vec<Violation>,
    by_op: HashMap<(Life, u64), usize>,
    by_try: HashMap<(Life, u64), usize>,
}

impl Run {
    /// A run of which nothing is known yet.
    pub fn new(layout: Layout, scheme: String) -> Run {
        Run {
            layout,
            scheme,
            volatile: false,
            ops: Vec::new(),
            tries: Vec::new(),
            partial: BTreeSet::new(),
            blocks: BTreeMap::new(),
            downs: BTreeMap::new(),
            fenced: BTreeMap::new(),
            crashed: BTreeMap::new(),
            dumped: BTreeMap::new(),
            left: Vec::new(),
            end: None,
            t: 0,
            malformed: Vec::new(),
            by_op: HashMap::new(),
            by_try: HashMap::new(),
        }
    }

    /// The operation of a try that took effect as a whole: the last one of an operation that was answered well.
    pub fn whole(&self, attempt: usize) -> Option<usize> {
        let op = self.tries[attempt].op?;
        (self.ops[op].is_done() && self.ops[op].tries.last() == Some(&attempt)).then_some(op)
    }

    /// Returns true if an operation was answered before this line.
    pub fn was_answered(&self, op: usize, line: u64) -> bool {
        self.ops[op].answer.as_ref().is_some_and(|answer| answer.line < line)
    }

    /// The line after this one in which a device went down.
    pub fn down_after(&self, device: u16, line: u64) -> Option<u64> {
        self.downs.get(&device)?.iter().copied().find(|down| *down > line)
    }

    /// Returns true if devices may have lost writes that they had answered. A history does not tell which.
    pub fn may_lose_writes(&self) -> bool {
        self.volatile && !self.downs.is_empty()
    }

    /// Returns true if a write's host was told that the write is durable, in an answer before this line.
    fn is_flushed(&self, write: usize, before: u64) -> bool {
        let write = &self.ops[write];
        let answer_of = |op: &Op| op.answer.as_ref().map_or(u64::MAX, |answer| answer.line);
        let mut flushes = self.ops.iter().filter(|op| op.what == What::Flush && op.is_done());
        write.is_done()
            && flushes.any(|flush| {
                flush.by == write.by && answer_of(write) < flush.line && answer_of(flush) < before
            })
    }

    /// Returns true if a write of a block may be lost when this operation shows an older value. Nobody was told that it is durable,
    /// and more was lost than redundancy replaces. Two devices of its group went down, or one and a host; and one of them since
    /// the write. With two parities it takes one more.
    pub fn may_lose(&self, write: usize, block: u64, shown: &Op) -> bool {
        let answered = shown.answer.as_ref().map_or(u64::MAX, |answer| answer.line);
        let lines = self.ops[write].line..answered;
        let Layout { redundancy, data, unit, .. } = self.layout;
        let first = self.layout.first_of_stripe(block / (u64::from(data) * u64::from(unit)));
        let members = self.layout.members();
        let devices = (first..first + members).filter_map(|device| self.downs.get(&device));
        let before = |line: &&u64| **line < lines.end;
        let downs = devices.clone().filter(|downs| downs.iter().any(|line| *line < lines.end));
        let hosts = self.crashed.values().filter(before);
        let since = devices.flatten().filter(|line| lines.contains(line));
        let Some(last) = since.max() else { return false };
        // The operation may have waited for them. A flush that they have not outlived came too late.
        !self.is_flushed(write, shown.line.max(*last))
            && downs.count() + hosts.count() > usize::from(redundancy.units())
    }

    /// Takes the event of this line in.
    pub fn take(&mut self, event: &Event, line: u64) {
        self.t = event.t;
        self.end = None;
        if let Err(what) = self.note(event, line) {
            let violation = Violation { rule: "well_formed", t: event.t, lines: vec![line], what };
            self.malformed.push(violation);
        }
    }

    fn note(&mut self, event: &Event, line: u64) -> Result<(), String> {
        match &event.kind {
            Kind::Begin { .. } => Err("a history begins once; merge histories by `t`".to_owned()),
            Kind::Read { by, op, start, count } => {
                self.called(*by, *op, What::Read, (*start, *count), line)
            }
            Kind::Write { by, op, start, tags, partial } => {
                let count = tags.len() as u64;
                self.called(*by, *op, What::Write(tags.clone()), (*start, count), line)?;
                let sectors = partial.iter().map(|index| start.saturating_add(*index));
                self.partial.extend(sectors);
                Ok(())
            }
            Kind::Flush { by, op } => self.called(*by, *op, What::Flush, (0, 0), line),
            Kind::Repair { by, op, .. } => self.called(*by, *op, What::Repair, (0, 0), line),
            Kind::Try { by, op, seq, stamp } => self.tried(*by, *op, *seq, *stamp),
            Kind::Done { by, op, tags, error } => {
                let answer = Answer { line, tags: tags.clone(), error: error.clone() };
                self.answered(*by, *op, answer)
            }
            Kind::DevRead { device, by, seq, start, count } => {
                self.access(*device, (*by, *seq), (*start, *count), Did::Read, line)
            }
            Kind::DevWrite { device, by, seq, start, count, stamp, dropped } => {
                let did = if *dropped { Did::Drop(*stamp) } else { Did::Write(*stamp) };
                self.access(*device, (*by, *seq), (*start, *count), did, line)
            }
            Kind::Crash { by } => {
                self.crashed.entry(*by).or_insert(line);
                Ok(())
            }
            Kind::Down { device } => {
                self.downs.entry(*device).or_default().push(line);
                Ok(())
            }
            Kind::Fenced { device, by } => {
                self.fenced.entry((*device, *by)).or_insert(line);
                Ok(())
            }
            Kind::Grown { stripes, groups } => {
                // Each process tells it when it learns of it.
                let layout = self.layout.with_stripes(self.layout.stripes.max(*stripes))?;
                self.layout = layout.with_groups(groups)?;
                Ok(())
            }
            Kind::Fault { .. } => Ok(()),
            Kind::Dump { device, start, blocks, lost } => {
                self.dump(*device, *start, blocks, lost, line)
            }
            Kind::Left { at, what, count } => {
                self.left.push((at.clone(), what.clone(), *count, line));
                Ok(())
            }
            Kind::End {} => {
                self.end = Some(line);
                Ok(())
            }
        }
    }

    fn called(
        &mut self,
        by: Life,
        id: u64,
        what: What,
        (start, count): (u64, u64),
        line: u64,
    ) -> Result<(), String> {
        let end = start.checked_add(count);
        let has_sectors = !matches!(what, What::Flush | What::Repair);
        let sectors = self.layout.sectors_of(self.layout.blocks()).start;
        if has_sectors && (count == 0 || end.is_none_or(|end| end > sectors)) {
            return Err(format!("operation {id} of {by} is not within the array"));
        }
        let index = self.ops.len();
        if self.by_op.insert((by, id), index).is_some() {
            return Err(format!("{by} begins its operation {id} twice"));
        }
        let tries = Vec::new();
        self.ops.push(Op { by, id, what, start, count, line, answer: None, tries });
        Ok(())
    }

    fn tried(&mut self, by: Life, op: u64, seq: u64, stamp: Option<Stamp>) -> Result<(), String> {
        let Some(&index) = self.by_op.get(&(by, op)) else {
            return Err(format!("{by} tries an operation {op} that it was not asked for"));
        };
        let attempt = self.attempt(by, seq);
        let known = &mut self.tries[attempt];
        if known.op.replace(index).is_some_and(|other| other != index) {
            return Err(format!("try {seq} of {by} belongs to two operations"));
        }
        known.stamp = stamp;
        if self.ops[index].tries.last() != Some(&attempt) {
            self.ops[index].tries.push(attempt);
        }
        Ok(())
    }

    fn answered(&mut self, by: Life, op: u64, answer: Answer) -> Result<(), String> {
        let Some(known) = self.by_op.get(&(by, op)).map(|index| &mut self.ops[*index]) else {
            return Err(format!("{by} answers an operation {op} that it was not asked for"));
        };
        let reads = known.what == What::Read && answer.error.is_none();
        if reads && answer.tags.len() as u64 != known.count {
            return Err(format!(
                "{known} asks for {} sectors, and {} are answered",
                known.count,
                answer.tags.len()
            ));
        }
        if known.answer.is_some() {
            return Err(format!("{known} is answered twice"));
        }
        known.answer = Some(answer);
        Ok(())
    }

    fn access(
        &mut self,
        device: u16,
        (by, seq): (Life, u64),
        (start, count): (u64, u32),
        did: Did,
        line: u64,
    ) -> Result<(), String> {
        let in_array = |block| self.layout.has(device, block);
        let last = start.checked_add(u64::from(count)).and_then(|end| end.checked_sub(1));
        if count == 0 || u64::from(count) > MOST_BLOCKS || !last.is_some_and(in_array) {
            return Err(format!("device {device} has no {count} blocks from {start} on"));
        }
        let attempt = self.attempt(by, seq);
        for block in start..start + u64::from(count) {
            let access = Access { attempt, line, did };
            self.blocks.entry((device, block)).or_default().push(access);
        }
        Ok(())
    }

    fn dump(
        &mut self,
        device: u16,
        start: u64,
        blocks: &[String],
        lost: &[u64],
        line: u64,
    ) -> Result<(), String> {
        for (i, hex) in (0..).zip(blocks) {
            let bytes = unhex(hex).ok_or_else(|| format!("{hex:?} is not hexadecimal"))?;
            let block = start.checked_add(i).ok_or("there is no such block")?;
            self.dumped.insert((device, block), Dumped { bytes, lost: lost.contains(&i), line });
        }
        Ok(())
    }

    fn attempt(&mut self, by: Life, seq: u64) -> usize {
        let next = self.tries.len();
        let index = *self.by_try.entry((by, seq)).or_insert(next);
        if index == next {
            self.tries.push(Try { by, seq, op: None, stamp: None });
        }
        index
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}
