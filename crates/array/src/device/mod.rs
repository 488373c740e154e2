//! A device: keeps blocks, and keeps the operations of hosts apart at them.
//!
//! | file | subject |
//! |---|---|
//! | `tso.rs` | timestamp ordering |
//! | `locks.rs` | device-served locking |
//! | `memory.rs` | siblings that have ended: tombstones, and requests that come twice |
//! | `disk.rs` | the order in which the disk is used |
//! | `epoch.rs` | the array's state, and the record that is kept durably |
//! | `fence.rs` | lives that are fenced, and what they had in flight |
//! | `suspect.rs` | stripes that have to be checked after a restart before they are used |
//!
//! The other schemes need nothing here: their reads and writes go to the disk as they come.

mod disk;
mod epoch;
mod fence;
mod locks;
mod memory;
mod suspect;
mod tso;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::message::{Action, Answer, Blocks, Call, Content, Flaw, Reply, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{
    ArrayState, Block, DeviceEvent, DeviceId, DiskAnswer, DiskAsk, DiskError, DiskToken, Extent,
    Header, Layout, Life, Scheme, Stamp, Time,
};

use disk::{Begin, Disk, Job, Purpose};
use epoch::Record;
use locks::{Ask, Locks};
use memory::{Ended, Memory};
use suspect::Suspects;
use tso::{Prepare, Tso};

pub use epoch::BootError;

/// What a device is told when it starts. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// Which one it is.
    pub id: DeviceId,
    /// How the array is laid out.
    pub layout: Layout,
    /// How hosts keep out of each other's way.
    pub scheme: Scheme,
    /// Writes are answered when they will survive a power loss.
    pub durable: bool,
    /// A host that has locks or pre-writes here and says nothing for this long is reported.
    pub lease: Time,
    /// How long timestamps of blocks, and siblings that have ended, are remembered (T of section 2.4). More than the longest
    /// latency and the clocks' differences together.
    pub remember: Time,
    /// How far ahead of this device's clock timestamps may be (d_max of section 2.4).
    pub ahead: Time,
    /// Timestamp ordering as in the textbook: writes wait for all older reads.
    pub basic: bool,
    /// Stripe units per region: after a restart, all stripes of regions in which something was written of late are checked
    /// before they are used.
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

/// What a device finds when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceBoot {
    /// The clock. It should be right by now: what is served afterwards counts on it (section 2.4).
    pub now: Time,
    /// What it saved last ([`DiskAsk::Save`]); none at its first start.
    pub record: Option<Bytes>,
    /// The array's state, for its first start.
    pub state: ArrayState,
}

/// What happens to a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceInput {
    /// A request has come. Its sender must be the life that its call names; the transport sees to that.
    Request {
        /// Whose.
        from: Life,
        /// What for.
        request: Request,
    },
    /// The disk is done.
    Disk {
        /// With what.
        token: DiskToken,
        /// What came of it.
        result: Result<DiskAnswer, DiskError>,
    },
    /// A host's connection has broken.
    Gone {
        /// Whose.
        life: Life,
    },
    /// [`Device::next_timer`] has come.
    Tick,
}

/// What a device does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceOutput {
    /// Send an answer, if there is a connection.
    Send {
        /// Whom to.
        to: Life,
        /// What.
        reply: Reply,
    },
    /// Ask the disk.
    Disk(DiskAsk),
    /// For histories.
    Event(DeviceEvent),
    /// A host that holds something here has said nothing for the length of a lease: it should be fenced. Told once.
    Silent {
        /// Which.
        life: Life,
    },
    /// The device has a newer state of the array now.
    State(ArrayState),
    /// The disk has failed: the device should be taken out of the array.
    Broken(DiskError),
}

/// A piece of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    extent: Extent,
    /// It is written; else there is something newer already.
    applies: bool,
}

/// What a scheme's rules lead to.
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
        headers: bool,
        waited: bool,
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

    /// Lock or pre-write is there; what is to be read is read.
    fn granted(call: Call, read: Option<Extent>, headers: bool, waited: bool) -> Self {
        match read {
            Some(extent) => Effect::Read { call, extent, headers, waited },
            None => Effect::Answer { call, waited, answer: Answer::Done },
        }
    }
}

/// A device.
pub struct Device {
    config: DeviceConfig,
    record: Record,
    saving: epoch::Saving,
    /// Serves nothing of timestamp ordering before (section 2.4, device restart).
    starting_until: Time,
    tso: Tso,
    locks: Locks,
    memory: Memory,
    suspects: Suspects,
    disk: Disk,
    heard: BTreeMap<Life, Time>,
    reported: BTreeMap<Life, Time>,
    /// When to look who has been silent for a lease.
    silence: Option<Time>,
    broken: bool,
    output: VecDeque<DeviceOutput>,
}

impl Device {
    /// A device that has just started. Fails if its record makes no sense.
    pub fn new(config: DeviceConfig, boot: DeviceBoot) -> Result<Self, BootError> {
        let (record, again) = Record::at_start(&boot)?;
        // Reads accepted before the restart may have had timestamps up to this; nothing older may be written now.
        let floor = if again { boot.now.saturating_add(config.ahead) } else { 0 };
        let starting = again && config.scheme == Scheme::TimestampOrdering;
        let suspects = Suspects::at_start(&config, &record);
        let mut device = Device {
            record,
            saving: epoch::Saving::default(),
            starting_until: if starting { floor.saturating_add(1) } else { 0 },
            tso: Tso::new(config.remember, config.ahead, config.basic, floor),
            locks: Locks::default(),
            memory: Memory::new(config.remember),
            suspects,
            disk: Disk::new(config.durable),
            heard: BTreeMap::new(),
            reported: BTreeMap::new(),
            silence: None,
            broken: false,
            output: VecDeque::new(),
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
        if !again {
            device.save(None);
            device.use_disk(boot.now);
        }
        Ok(device)
    }

    /// Takes one step. `now` must not go back.
    pub fn handle(&mut self, now: Time, input: DeviceInput) {
        self.memory.expire(now);
        self.tso.forget(now);
        let mut effects = Vec::new();
        match input {
            DeviceInput::Request { from, request } => {
                self.request(now, from, request, &mut effects);
            }
            DeviceInput::Disk { token, result } => self.disk_done(now, token, result),
            // Whoever lost a connection may come back; whoever does not is silent.
            DeviceInput::Gone { .. } | DeviceInput::Tick => {}
        }
        self.locks.expire(now, &mut self.memory, &mut effects);
        self.carry_out(effects);
        self.tidy_regions(now);
        self.use_disk(now);
        self.report_silent(now);
    }

    /// What is to be done, in order; call until there is nothing.
    pub fn poll(&mut self) -> Option<DeviceOutput> {
        self.output.pop_front()
    }

    /// When [`DeviceInput::Tick`] is due; the past if it is overdue.
    pub fn next_timer(&self) -> Option<Time> {
        self.locks.next_timer().into_iter().chain(self.silence).min()
    }

    /// Which device this is.
    pub fn id(&self) -> DeviceId {
        self.config.id
    }

    /// The array's state as this device has it durably.
    pub fn state(&self) -> &ArrayState {
        self.record.state()
    }

    /// Whether nothing is under way here: no locks, no pre-writes, no waiting requests, and no disk operation.
    pub fn is_idle(&self) -> bool {
        self.disk.is_idle() && self.in_flight().next().is_none()
    }

    /// Whether a request waits here for a lock.
    pub fn awaits_lock(&self) -> bool {
        self.locks.next_timer().is_some()
    }

    /// Siblings that have ended and are still remembered.
    pub fn remembered(&self) -> usize {
        self.memory.len()
    }

    /// Who has locks, pre-writes or waiting requests here; blocks that may be partly written by an operation under way.
    fn in_flight(&self) -> impl Iterator<Item = (Life, Option<Extent>)> {
        self.tso.holders().chain(self.locks.holders())
    }

    fn request(&mut self, now: Time, from: Life, request: Request, effects: &mut Vec<Effect>) {
        if let Some(region) = self.clean_region(now, &request) {
            return self.park(region, from, request);
        }
        let Request { call, stamp, epoch, action } = request;
        if call.op.life != from {
            return self.reply_to(from, call, Answer::Invalid);
        }
        self.heard.insert(from, now);
        self.silence.get_or_insert(now.saturating_add(self.config.lease));
        self.reported.remove(&from);
        if let Err(answer) = self.admit(now, from, epoch, &action) {
            return effects.push(Effect::answer(call, answer));
        }
        match action {
            Action::Read { extent, headers } => {
                effects.push(Effect::Read { call, extent, headers, waited: false });
            }
            Action::Write(blocks) => self.write(now, call, stamp, blocks, effects),
            Action::Prepare { read, write, headers, starving, past } => {
                let asked = Prepare { call, stamp, read, write, headers, starving, past };
                self.tso.prepare(now, asked, &self.memory, effects);
            }
            Action::Commit(blocks) => {
                self.tso.commit(now, call, blocks, &mut self.memory, effects);
            }
            Action::Cancel => self.tso.cancel(now, call, &mut self.memory, effects),
            Action::Lock { extent, mode, read, headers, patience, past } => {
                let ask = Ask { call, extent, mode, read, headers, patience, past };
                self.locks.lock(now, ask, &self.memory, effects);
            }
            Action::WriteUnlock(blocks) => {
                self.locks.write_unlock(now, call, stamp, blocks, &mut self.memory, effects);
            }
            Action::Unlock => self.locks.unlock(now, call, &mut self.memory, effects),
            Action::Flush => self.disk.add(None, Job::Flush, Purpose::Flush { call }),
            Action::Lease => effects.push(Effect::answer(call, Answer::Done)),
            Action::Install(state) => self.install(now, call, state, effects),
            Action::Agree(ask) => self.vote(call, ask, effects),
            Action::Fence { life } => self.fence(now, call, life, effects),
            Action::Clear { life } => self.clear(now, call, life, effects),
            Action::ListFences => self.list_fences(call, effects),
            Action::LearnFences { lives } => self.learn_fences(now, call, &lives, effects),
            Action::Repaired { stripe } => {
                self.suspects.repaired(stripe);
                effects.push(Effect::answer(call, Answer::Done));
            }
            Action::Doubt { stripe } => {
                self.suspects.doubt(stripe);
                effects.push(Effect::answer(call, Answer::Done));
            }
        }
    }

    /// Whether a request may be served at all.
    fn admit(
        &self,
        now: Time,
        from: Life,
        epoch: crate::Epoch,
        action: &Action,
    ) -> Result<(), Answer> {
        if self.is_fenced(from) {
            return Err(Answer::Fenced);
        }
        if self.broken {
            return Err(Answer::Broken);
        }
        let (first, second) = match action {
            Action::Read { extent, .. } => (Some(*extent), None),
            Action::Prepare { read, write, .. } => (*read, *write),
            Action::Lock { extent, read, .. } => (Some(*extent), *read),
            Action::Write(blocks) | Action::Commit(blocks) | Action::WriteUnlock(blocks) => {
                let length = blocks.extent.count as usize * self.config.layout.block_size as usize;
                if blocks.data.len() != length {
                    return Err(Answer::Invalid);
                }
                (Some(blocks.extent), None)
            }
            // By an older state a device would be left out that is back by now. That device has been told of the fences that
            // others knew when they had its state, and whoever fences by an older one begins anew.
            Action::Fence { .. } => (None, None),
            Action::ListFences => (None, None),
            // They take something back or change nothing, so that they are right in any state.
            Action::Cancel
            | Action::Unlock
            | Action::Flush
            | Action::Lease
            | Action::Install(_)
            | Action::Agree(_)
            | Action::Clear { .. }
            | Action::LearnFences { .. }
            | Action::Repaired { .. }
            | Action::Doubt { .. } => return Ok(()),
        };
        if ![first, second].into_iter().flatten().all(|extent| self.is_valid(extent)) {
            return Err(Answer::Invalid);
        }
        if epoch < self.record.state().epoch {
            return Err(Answer::Stale(self.record.state().clone()));
        }
        if epoch > self.record.state().epoch {
            return Err(Answer::Behind(self.record.state().epoch));
        }
        let timestamped = matches!(action, Action::Prepare { .. } | Action::Commit(_));
        if timestamped && now < self.starting_until {
            return Err(Answer::Starting { wait: self.starting_until - now });
        }
        self.unsuspected(action, [first, second])
    }

    /// Extents are within one unit, so that no request makes a device keep more than that.
    fn is_valid(&self, extent: Extent) -> bool {
        let layout = &self.config.layout;
        let unit = u64::from(layout.unit);
        extent.count > 0
            && extent.count <= layout.unit
            && extent.start / unit == (extent.end() - 1) / unit
            && layout.stripe_of(self.config.id, extent.start).is_some()
    }

    fn write(
        &mut self,
        now: Time,
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        effects: &mut Vec<Effect>,
    ) {
        if self.memory.get(call) == Some(Ended::Written) {
            return effects.push(Effect::WrittenBefore { call });
        }
        self.memory.put(now, call, Ended::Written);
        let parts = vec![Part { extent: blocks.extent, applies: true }];
        effects.push(Effect::Write { call, stamp, blocks, parts, waited: false });
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { call, waited, answer } => self.reply(call, waited, answer),
                Effect::Read { call, extent, headers, waited } => {
                    let purpose = Purpose::Read { call, waited, headers };
                    self.disk.add(Some(call.op), Job::Read(extent), purpose);
                }
                Effect::Write { call, stamp, blocks, parts, waited } => {
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
        let block = |index: u32| Block {
            header: Header { lost: blocks.lost.contains(&index), ..blocks.header },
            data: blocks.data.slice(index as usize * size..(index as usize + 1) * size),
        };
        let all = (first..first + part.extent.count).map(block).collect();
        Job::Write { start: part.extent.start, blocks: all, stamp }
    }

    /// Gives the disk what it can begin with.
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
    }

    fn disk_done(&mut self, now: Time, token: DiskToken, result: Result<DiskAnswer, DiskError>) {
        let Some(purpose) = self.disk.end(token) else { return };
        match result {
            Ok(answer) => self.answer_for(now, purpose, answer),
            Err(error) => {
                if !std::mem::replace(&mut self.broken, true) {
                    self.output.push_back(DeviceOutput::Broken(error));
                }
                match purpose {
                    Purpose::Read { call, .. }
                    | Purpose::Write { call, .. }
                    | Purpose::Flush { call } => self.reply(call, false, Answer::Broken),
                    Purpose::Save { .. } => {}
                }
            }
        }
    }

    fn answer_for(&mut self, now: Time, purpose: Purpose, answer: DiskAnswer) {
        match (purpose, answer) {
            (Purpose::Read { call, waited, headers }, DiskAnswer::Read(blocks)) => {
                let content = self.content(blocks, headers);
                self.reply(call, waited, Answer::Content(content));
            }
            // A disk that answers a read with nothing has not read.
            (Purpose::Read { call, .. }, DiskAnswer::Done) => {
                self.reply(call, false, Answer::Broken);
            }
            (Purpose::Write { call, waited }, _) => {
                if !self.disk.writes(call) && !self.broken {
                    self.reply(call, waited, Answer::Written);
                }
            }
            (Purpose::Flush { call }, _) => self.reply(call, false, Answer::Done),
            (Purpose::Save { number }, _) => {
                self.saved(number);
                self.unpark(now, number);
            }
        }
    }

    fn content(&self, blocks: Vec<Result<Block, crate::BlockError>>, headers: bool) -> Content {
        let size = self.config.layout.block_size as usize;
        let mut data = BytesMut::with_capacity(blocks.len() * size);
        let mut content = Content { data: Bytes::new(), flaws: Vec::new(), headers: Vec::new() };
        for (index, block) in blocks.into_iter().enumerate() {
            let header = match block {
                Ok(block) => {
                    data.extend_from_slice(&block.data);
                    if block.header.lost {
                        content.flaws.push((index as u32, Flaw::Lost));
                    }
                    block.header
                }
                Err(error) => {
                    data.resize(data.len() + size, 0);
                    content.flaws.push((index as u32, Flaw::Unreadable(error)));
                    Header::default()
                }
            };
            if headers {
                content.headers.push(header);
            }
        }
        content.data = data.freeze();
        content
    }

    fn reply(&mut self, call: Call, waited: bool, answer: Answer) {
        let reply = Reply { call, waited, answer };
        self.output.push_back(DeviceOutput::Send { to: call.op.life, reply });
    }

    fn reply_to(&mut self, to: Life, call: Call, answer: Answer) {
        let reply = Reply { call, waited: false, answer };
        self.output.push_back(DeviceOutput::Send { to, reply });
    }

    /// When the first of those who hold something here will have been silent for a lease, and who.
    fn silent(&self) -> impl Iterator<Item = (Life, Time)> {
        let holders = self.in_flight().map(|(life, _)| life);
        let holders = holders.filter(|life| !self.reported.contains_key(life));
        holders.filter_map(|life| {
            let heard = self.heard.get(&life)?;
            Some((life, heard.saturating_add(self.config.lease)))
        })
    }

    /// Takes a look at everything under way, so that it is done when the time may have come, not with every step.
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
        let holders: BTreeSet<Life> = self.in_flight().map(|(life, _)| life).collect();
        let lease = self.config.lease;
        self.heard.retain(|life, last| holders.contains(life) || last.saturating_add(lease) > now);
        self.reported.retain(|life, _| holders.contains(life));
        self.silence = self.silent().map(|(_, time)| time).min();
    }
}
