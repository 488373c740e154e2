//! A device keeps blocks, and keeps the operations of hosts apart at them.
//!
//! | file | subject |
//! |---|---|
//! | `requests.rs` | admission of requests |
//! | `tso.rs` | timestamp ordering |
//! | `locks.rs` | device-served locking |
//! | `memory.rs` | siblings that have ended: tombstones, and requests that come twice |
//! | `disk.rs` | the order in which the disk is used |
//! | `medium.rs` | blocks that the medium does not return, and writes that it has lost |
//! | `epoch.rs` | the array's state, and the durable record |
//! | `view.rs` | the record, for people who look at a medium |
//! | `report.rs` | operations under way, for people |
//! | `fence.rs` | fenced lives and their unfinished writes |
//! | `durable.rs` | which writes a power loss does not undo |
//! | `marks.rs` | marks in the record, made before a request is served |
//! | `term.rs` | after a time away: the device serves when it has been let in again |
//! | `readmission.rs` | after a restart: hosts finish their writes before others are served |
//! | `suspect.rs` | stripes that have to be checked after a restart before they are used |
//! | `attendance.rs` | how long no lock server has served |
//!
//! The other schemes need nothing here: their reads and writes go to the disk as they come.

mod attendance;
mod covered;
mod disk;
mod durable;
mod epoch;
mod fence;
mod locks;
mod marks;
mod medium;
mod memory;
mod readmission;
mod record;
mod report;
mod requests;
mod suspect;
mod term;
mod tso;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::message::{Answer, Blocks, Call, Content, Flaw, Mark, Reply, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{
    ArrayState, BadBlock, Block, DeviceEvent, DeviceId, DiskAnswer, DiskAsk, DiskError, DiskToken,
    Extent, Header, Layout, Life, Scheme, Stamp, Time,
};

use attendance::Attendance;
use disk::{Begin, Disk, Job, Purpose};
use durable::Durable;
use locks::Locks;
use marks::Marks;
use medium::Medium;
use memory::{Ended, Memory};
use readmission::Readmission;
use record::Record;
use suspect::Suspects;
use tso::Tso;

pub use attendance::Attended;
pub use medium::MediumCounts;
pub use record::BootError;
pub use view::RecordView;

/// A device's configuration. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// Which one it is.
    pub id: DeviceId,
    /// How the array is laid out.
    pub layout: Layout,
    /// How many agree on the array's state: the devices that it was made with, and witnesses.
    pub voters: u16,
    /// How hosts keep out of each other's way.
    pub scheme: Scheme,
    /// Writes are answered when they will survive a power loss. Otherwise only a flush makes them durable.
    pub durable: bool,
    /// A host that has locks or pre-writes here and says nothing for this long is reported.
    pub lease: Time,
    /// How long timestamps of blocks, and siblings that have ended, are remembered (T of docs/design/array.md 2.4). More than
    /// the longest latency and the clocks' differences together.
    pub remember: Time,
    /// How far ahead of this device's clock timestamps may be (d_max of docs/design/array.md 2.4).
    pub ahead: Time,
    /// Timestamp ordering as in the textbook: writes wait for all older reads.
    pub basic: bool,
    /// Stripe units per region. After a restart, all stripes of recently written regions are checked before they are used.
    pub region_units: u64,
    /// A rule that is left out, to show that checks find it.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

impl DeviceConfig {
    /// The defaults.
    pub fn new(id: DeviceId, scheme: Scheme, layout: Layout) -> Self {
        const MS: Time = 1_000_000;
        DeviceConfig {
            id,
            layout,
            voters: layout.devices(),
            scheme,
            durable: true,
            lease: 4_000 * MS,
            remember: 5_000 * MS,
            ahead: 100 * MS,
            basic: false,
            region_units: 1024,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// The durable state with which a device starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceBoot {
    /// The clock. It should be right by now: later service relies on it (docs/design/array.md 2.4).
    pub now: Time,
    /// The record that it saved last ([`DiskAsk::Save`]); none at its first start.
    pub record: Option<Bytes>,
    /// The array's state, for its first start.
    pub state: ArrayState,
    /// A random number, another one at each start.
    pub random: u64,
}

/// An input of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceInput {
    /// A request has come. Its sender must be the life that its call names; the transport sees to that.
    Request {
        /// The life that sent the request.
        from: Life,
        /// The request.
        request: Request,
    },
    /// The disk is done.
    Disk {
        /// With what.
        token: DiskToken,
        /// The disk's answer.
        result: Result<DiskAnswer, DiskError>,
    },
    /// A host's connection has broken.
    Gone {
        /// The life that has connected.
        life: Life,
    },
    /// [`Device::next_timer`] has come.
    Tick,
}

/// An output of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceOutput {
    /// Send an answer, if there is a connection.
    Send {
        /// Whom to.
        to: Life,
        /// The reply.
        reply: Reply,
    },
    /// Ask the disk.
    Disk(DiskAsk),
    /// For histories.
    Event(DeviceEvent),
    /// A host that holds something here has said nothing for the length of a lease: it should be fenced. Told once.
    Silent {
        /// The fenced life.
        life: Life,
    },
    /// The device has a newer state of the array now.
    State(ArrayState),
    /// The disk has failed: the device should be taken out of the array.
    Broken(DiskError),
}

/// The state that a life has here: a lock, a pre-write or a waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    life: Life,
    /// Blocks that it may write.
    writes: Option<Extent>,
    /// Under which it asked for that.
    stamp: Stamp,
}

/// A piece of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    extent: Extent,
    /// It is written; else there is something newer already.
    applies: bool,
}

/// An effect of a scheme's rules.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Effect {
    Answer {
        call: Call,
        waited: bool,
        answer: Answer,
    },
    Read {
        call: Call,
        extent: Extent,
        waited: bool,
        /// The read of a lock that is there now.
        locked: bool,
        /// A repair's.
        repairs: bool,
    },
    Write {
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        parts: Vec<Part>,
        waited: bool,
    },
    /// A write has come again: it is answered when, or as, the first was.
    WrittenBefore {
        call: Call,
    },
}

impl Effect {
    fn answer(call: Call, answer: Answer) -> Self {
        Effect::Answer { call, waited: false, answer }
    }

    fn not_prepared(call: Call) -> Self {
        Effect::answer(call, Answer::NotPrepared)
    }

    /// The pre-write exists; the requested blocks are read.
    fn granted(call: Call, read: Option<Extent>, repairs: bool, waited: bool) -> Self {
        match read {
            Some(extent) => Effect::Read { call, extent, waited, locked: false, repairs },
            None => Effect::Answer { call, waited, answer: Answer::Done },
        }
    }

    /// The lock exists; the requested blocks are read.
    fn locked(ask: &locks::Ask, waited: bool, seen: Time) -> Self {
        let (call, repairs) = (ask.call, ask.repairs);
        match ask.read {
            Some(extent) => Effect::Read { call, extent, waited, locked: true, repairs },
            None => Effect::Answer { call, waited, answer: Answer::Locked { seen, content: None } },
        }
    }
}

/// Refuses a timestamp that is too far ahead of the device's clock (docs/design/array.md 2.4). A restarted device relies on
/// that bound: it assumes the newest timestamp that can exist.
fn ahead(now: Time, allowed: Time, stamp: Stamp) -> Option<Answer> {
    let excess = stamp.time.saturating_sub(now.saturating_add(allowed));
    (excess > 0).then(|| Answer::Ahead { excess, ahead: stamp.time.saturating_sub(now) })
}

/// A device.
pub struct Device {
    config: DeviceConfig,
    record: Record,
    /// Of this start: the numbers of the medium are made of it.
    random: u64,
    /// The number that the medium had asked for before this start; 0: none (`term.rs`).
    inherited: u64,
    saving: epoch::Saving,
    /// Serves nothing of timestamp ordering before (docs/design/array.md 2.4).
    starting_until: Time,
    tso: Tso,
    locks: Locks,
    memory: Memory,
    suspects: Suspects,
    marks: Marks,
    readmission: Readmission,
    attendance: Attendance,
    /// Writes that were taken up again.
    taken: u64,
    disk: Disk,
    durable: Durable,
    medium: Medium,
    /// True once the disk's content from before the start is durable.
    started: bool,
    heard: BTreeMap<Life, Time>,
    reported: BTreeMap<Life, Time>,
    /// When to look for lives that have been silent for a lease.
    silence: Option<Time>,
    broken: bool,
    /// Lives that are fenced for good, of which histories have not been told.
    fencing: Vec<Life>,
    output: VecDeque<DeviceOutput>,
}

impl Device {
    /// A device that has just started. Fails if its record makes no sense.
    pub fn new(mut config: DeviceConfig, boot: DeviceBoot) -> Result<Self, BootError> {
        let (record, inherited) = Record::at_start(config.id, &boot)?;
        let again = inherited.is_some();
        config.layout = config.layout.grown(record.state());
        // Reads accepted before the restart may have had timestamps up to this; nothing older may be written now.
        let floor = if again { boot.now.saturating_add(config.ahead) } else { 0 };
        let starting = again && config.scheme == Scheme::TimestampOrdering;
        let suspects = Suspects::at_start(&config, &record);
        let readmission = Readmission::at_start(&record.holders, &record.fenced);
        #[cfg(feature = "mutations")]
        let readmission = match config.mutation {
            Some(Mutation::DeltaAfterPartialWrite) => Readmission::default(),
            _ => readmission,
        };
        // Stamps of locking were taken by what other devices had seen as well.
        let newest = if again { floor.saturating_add(config.ahead) } else { 0 };
        let mut device = Device {
            random: boot.random,
            inherited: inherited.unwrap_or_default(),
            saving: epoch::Saving::default(),
            starting_until: if starting { floor.saturating_add(1) } else { 0 },
            tso: Tso::new(config.remember, config.ahead, config.basic, floor),
            locks: Locks::new(newest),
            memory: Memory::new(config.remember, config.ahead, floor),
            suspects,
            marks: Marks::default(),
            heard: record.holders.iter().map(|life| (*life, boot.now)).collect(),
            silence: (!record.holders.is_empty()).then(|| boot.now.saturating_add(config.lease)),
            readmission,
            attendance: Attendance::at_start(boot.now, record.state()),
            taken: 0,
            disk: Disk::new(config.durable),
            durable: Durable::at_start(&record),
            medium: Medium::default(),
            started: !again,
            reported: BTreeMap::new(),
            broken: false,
            fencing: Vec::new(),
            output: VecDeque::new(),
            record,
            config,
        };
        let fenced = device.record.fenced.clone();
        device.tso.fence(boot.now, &fenced, &mut device.memory, &mut Vec::new());
        device.locks.fence(&fenced, &mut Vec::new());
        #[cfg(feature = "mutations")]
        {
            device.tso.mutation = device.config.mutation;
            device.locks.mutation = device.config.mutation;
        }
        // Its term is not durable yet.
        device.save(None);
        // The content that is found on the disk must be durable before it is used. A host may take up a write by it.
        if again {
            device.disk.add(None, Job::Flush, Purpose::Start);
        }
        device.use_disk(boot.now);
        Ok(device)
    }

    /// Takes one step. `now` must not go back.
    pub fn handle(&mut self, now: Time, input: DeviceInput) {
        self.memory.expire(now);
        self.medium.expire(now, self.config.remember);
        self.tso.forget(now);
        let mut effects = Vec::new();
        match input {
            DeviceInput::Request { from, request } => {
                self.request(now, from, request, &mut effects);
            }
            DeviceInput::Disk { token, result } => self.disk_done(now, token, result),
            // A host that lost a connection may come back. One that does not is silent.
            DeviceInput::Gone { .. } | DeviceInput::Tick => {}
        }
        self.locks.expire(now, &mut self.memory, &mut effects);
        self.carry_out(effects);
        self.tidy_record(now);
        self.use_disk(now);
        self.report_silent(now);
    }

    /// The next output, in order; call until it returns `None`.
    pub fn poll(&mut self) -> Option<DeviceOutput> {
        self.output.pop_front()
    }

    /// When [`DeviceInput::Tick`] is due; the past if it is overdue.
    pub fn next_timer(&self) -> Option<Time> {
        self.locks.next_timer().into_iter().chain(self.silence).min()
    }

    /// How the array is laid out by the state that this device has.
    pub fn layout(&self) -> &Layout {
        &self.config.layout
    }

    /// Which device this is.
    pub fn id(&self) -> DeviceId {
        self.config.id
    }

    /// The array's state as this device has it durably.
    pub fn state(&self) -> &ArrayState {
        self.record.state()
    }

    /// Returns true if the device has no locks, no pre-writes, no waiting requests and no disk operation.
    pub fn is_idle(&self) -> bool {
        self.disk.is_idle() && self.in_flight().next().is_none()
    }

    /// Returns true if a request waits here for a lock.
    pub fn awaits_lock(&self) -> bool {
        self.locks.next_timer().is_some()
    }

    /// Siblings that have ended and are still remembered.
    pub fn remembered(&self) -> usize {
        self.memory.len()
    }

    /// The amounts of state that the device keeps for hosts, by kind. All are zero once hosts have been idle for as long as
    /// finished siblings are remembered.
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("locks, pre-writes and waiting requests", self.in_flight().count()),
            ("siblings that have ended", self.remembered()),
            ("fenced lives with writes to repair", self.memory.pinned().count()),
        ]
    }

    /// Writes that hosts took up again after this device had restarted.
    pub fn taken_up(&self) -> u64 {
        self.taken
    }

    /// Locks, pre-writes and waiting requests.
    fn in_flight(&self) -> impl Iterator<Item = Holding> {
        self.tso.holders().chain(self.locks.holders())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { call, waited, answer } => self.reply(call, waited, answer),
                Effect::Read { call, extent, waited, locked, repairs } => {
                    let purpose = Purpose::Read { call, extent, waited, locked, repairs };
                    self.disk.add(Some(call.op), Job::Read(extent), purpose);
                }
                Effect::Write { call, stamp, blocks, parts, waited } => {
                    self.memory.wrote(call, blocks.extent, blocks.header);
                    for part in parts {
                        let purpose = Purpose::Write { call, waited };
                        let job = self.part(stamp, &blocks, part);
                        self.disk.add(Some(call.op), job, purpose);
                    }
                }
                Effect::WrittenBefore { call } => {
                    if !self.disk.writes(call) {
                        self.reply(call, false, Answer::Written);
                    }
                }
            }
        }
    }

    fn part(&self, stamp: Stamp, blocks: &Blocks, part: Part) -> Job {
        if !part.applies {
            return Job::After { extent: part.extent, stamp };
        }
        let size = self.config.layout.block_size as usize;
        let first = (part.extent.start - blocks.extent.start) as u32;
        let marks: BTreeMap<u32, &Mark> =
            blocks.marks.iter().map(|mark| (mark.index, mark)).collect();
        let header = |index: u32| {
            let Some(mark) = marks.get(&index) else { return blocks.header };
            let of_all = match mark.content {
                Some(content) => {
                    let Header { stamp, skipped, .. } = blocks.header;
                    Header { skipped, ..Header::of_repair(stamp, content) }
                }
                None => blocks.header,
            };
            Header { lost: mark.lost, lost_data: mark.lost_data, ..of_all }
        };
        let block = |index: u32| Block {
            header: header(index),
            data: blocks.data.slice(index as usize * size..(index as usize + 1) * size),
        };
        let all = (first..first + part.extent.count).map(block).collect();
        Job::Write { start: part.extent.start, blocks: all, stamp }
    }

    /// Gives the disk the operations that it can begin.
    fn use_disk(&mut self, now: Time) {
        while let Some(begin) = self.disk.begin() {
            match begin {
                Begin::Ask(ask, event) => {
                    self.output.extend(event.map(DeviceOutput::Event));
                    self.output.push_back(DeviceOutput::Disk(ask));
                }
                Begin::Over(purpose, event) => {
                    self.output.extend(event.map(DeviceOutput::Event));
                    self.answer_for(now, purpose, DiskAnswer::Done);
                }
            }
        }
        self.tell_fenced();
    }

    fn disk_done(&mut self, now: Time, token: DiskToken, result: Result<DiskAnswer, DiskError>) {
        let Some((job, purpose)) = self.disk.end(token) else { return };
        match (result, purpose) {
            (Ok(answer), purpose) => {
                if let Job::Write { start, blocks, .. } = &job {
                    self.note_written(now, *start, blocks);
                }
                self.answer_for(now, purpose, answer);
            }
            // The array cannot go on without this device, and needs its other blocks.
            (Err(_), Purpose::Write { call, waited }) if !self.is_group_whole() => {
                self.not_taken(now, call, waited, &job);
            }
            (Err(error), purpose) => {
                self.break_down(error);
                match purpose {
                    Purpose::Read { call, .. }
                    | Purpose::TakeUp { call, .. }
                    | Purpose::Write { call, .. }
                    | Purpose::Flush { call: Some(call), .. } => {
                        self.reply(call, false, Answer::Broken);
                    }
                    Purpose::Start | Purpose::Flush { call: None, .. } | Purpose::Save { .. } => {}
                }
            }
        }
    }

    fn answer_for(&mut self, now: Time, purpose: Purpose, answer: DiskAnswer) {
        match (purpose, answer) {
            (Purpose::Read { call, extent, waited, repairs: false, .. }, DiskAnswer::Read(_))
                if self.lacks_a_write(extent) =>
            {
                self.refuse_read(now, call, extent, waited);
            }
            (Purpose::Read { call, extent, waited, locked, .. }, DiskAnswer::Read(mut blocks)) => {
                self.note_read(extent, &mut blocks);
                let content = self.content(extent, blocks);
                let answer = if locked {
                    let seen = self.locks.newest();
                    Answer::Locked { seen, content: Some(content) }
                } else {
                    Answer::Content(content)
                };
                self.reply(call, waited, answer);
            }
            (Purpose::TakeUp { call, stamp, blocks }, DiskAnswer::Read(mut found)) => {
                self.note_read(blocks.extent, &mut found);
                self.taken_up_after(now, call, stamp, blocks, &found);
            }
            // A disk that answers a read with nothing has not read.
            (Purpose::Read { call, .. } | Purpose::TakeUp { call, .. }, DiskAnswer::Done) => {
                self.reply(call, false, Answer::Broken);
            }
            (Purpose::Write { call, waited }, _) => {
                let failed = self.broken || self.memory.get(call) == Some(Ended::GivenUp);
                if !self.disk.writes(call) && !failed {
                    self.reply(call, waited, Answer::Written);
                }
            }
            (Purpose::Start, _) => self.started = true,
            (Purpose::Flush { call, number }, _) => {
                self.flushed(number, call);
            }
            (Purpose::Save { number }, _) => {
                self.saved(number);
                self.unpark(now, number);
                let mut effects = Vec::new();
                self.release_fenced(now, &mut effects);
                self.carry_out(effects);
            }
        }
    }

    fn content(&self, extent: Extent, blocks: Vec<Result<Block, BadBlock>>) -> Content {
        let size = self.config.layout.block_size as usize;
        let mut data = BytesMut::with_capacity(blocks.len() * size);
        let mut content = Content {
            data: Bytes::new(),
            flaws: Vec::new(),
            headers: Vec::with_capacity(blocks.len()),
            doubt: self.doubt(extent),
            durable_to: self.durable_to(extent),
            left: self.left_in(extent),
        };
        for (index, block) in blocks.into_iter().enumerate() {
            let header = match block {
                Ok(block) => {
                    data.extend_from_slice(&block.data);
                    if block.header.lost {
                        content.flaws.push((index as u32, Flaw::Lost));
                    }
                    block.header
                }
                Err(bad) => {
                    data.resize(data.len() + size, 0);
                    content.flaws.push((index as u32, Flaw::Unreadable(bad.error)));
                    Header::default()
                }
            };
            content.headers.push(header);
        }
        content.data = data.freeze();
        content
    }

    fn reply(&mut self, call: Call, waited: bool, answer: Answer) {
        let reply = Reply { call, waited, boot: self.random, answer };
        self.output.push_back(DeviceOutput::Send { to: call.op.life, reply });
    }

    fn reply_to(&mut self, to: Life, call: Call, answer: Answer) {
        let reply = Reply { call, waited: false, boot: self.random, answer };
        self.output.push_back(DeviceOutput::Send { to, reply });
    }

    /// The lives that hold something here, are awaited after a restart, have left something, or are fenced and have writes that the
    /// device remembers. The device expects to hear from each, or that it is repaired.
    fn holders(&self) -> impl Iterator<Item = Life> {
        let after_restart = self.readmission.awaited().chain(self.readmission.leftovers());
        let of_fenced = self.memory.pinned();
        self.in_flight().map(|held| held.life).chain(after_restart).chain(of_fenced)
    }

    /// When the first of those will have been silent for a lease, and who.
    fn silent(&self) -> impl Iterator<Item = (Life, Time)> {
        let holders = self.holders().filter(|life| !self.reported.contains_key(life));
        holders.filter_map(|life| {
            let heard = self.heard.get(&life)?;
            Some((life, heard.saturating_add(self.config.lease)))
        })
    }

    /// Looks at everything under way. It runs when a lease may have ended, not with every step.
    fn report_silent(&mut self, now: Time) {
        if self.silence.is_none_or(|time| time > now) {
            return;
        }
        let due: Vec<_> = self.silent().filter(|(_, time)| *time <= now).collect();
        for (life, _) in due {
            if self.reported.insert(life, now).is_none() {
                self.output.push_back(DeviceOutput::Silent { life });
            }
        }
        let holders: BTreeSet<Life> = self.holders().collect();
        let lease = self.config.lease;
        self.heard.retain(|life, last| holders.contains(life) || last.saturating_add(lease) > now);
        self.reported.retain(|life, _| holders.contains(life));
        self.silence = self.silent().map(|(_, time)| time).min();
    }
}
