//! The event loop of a device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockify_array::message::Action;
use lockify_array::{
    ArrayState, BootError, Change, Condition, Device, DeviceBoot, DeviceConfig, DeviceId,
    DeviceInput, DeviceOutput, DiskAnswer, DiskError, DiskToken, Group, Layout, Life, MediumCounts,
    Time,
};
use lockify_membership::Vote;
use lockify_trust::Mailbox;

use super::checks::Checks;
use super::clocks::{Clocks, describe as describe_clock};
use super::members::{Members, Order};
use super::repairs::{Job, Repairs};
use super::settled::Settled;
use super::{ServeError, Serving};
use crate::clock::{Clock, monotonic, until};
use crate::history::DeviceHistory;
use crate::store::{Disk, LONGEST_KEPT, Store, StoreError, Why as StoreWhy};
use crate::wire::{Event, Frame, Me, Net, Report, Role, Target, Welcome, Whom, Why};
use crate::{ArrayFile, DeviceEntry, Durability, HistoryError, random};

/// How often signals and silent peers are checked.
const TICK: Duration = Duration::from_millis(100);
/// The pause between two rounds of checks. Messages come much more often than there is anything to check.
const CHECKS: Duration = Duration::from_millis(5);
/// How long after a host could not be fenced it is tried again.
const FENCE_AGAIN: Duration = Duration::from_secs(1);
/// How long after this device was refused it asks again to be let in.
const LET_IN_AGAIN: Duration = Duration::from_secs(1);
/// How often the medium of a device that serves gets another number ([`Device::change_key`]).
const KEY_AGE: Duration = Duration::from_secs(60);
/// How often new errors of the medium are logged at most.
const TELL_ERRORS: Duration = Duration::from_secs(10);
/// More disk operations under way than this, and hosts are not heard until there are fewer.
const DISK_OPERATIONS: usize = 512;

/// The number of a state of the membership, and the reason if its write has failed.
type Kept = (u64, Option<DiskError>);

type Answered = (DiskToken, Result<DiskAnswer, DiskError>);

pub(super) struct Process {
    file: ArrayFile,
    me: DeviceId,
    net: Net,
    device: Device,
    disk: Disk,
    answered: Mailbox<Answered>,
    /// Disk operations under way.
    asked: usize,
    kept: Mailbox<Kept>,
    members: Members,
    repairs: Repairs,
    checks: Checks,
    clock: Clock,
    clocks: Clocks,
    /// When the others were last asked for the time.
    asked_time: Instant,
    /// Its clock has been found right once, since it is there with the others.
    clock_checked: bool,
    /// Why nobody is served: its clock.
    off: Option<String>,
    /// Devices whose clocks are wrong, and since when.
    wrong_clocks: BTreeMap<DeviceId, Instant>,
    /// The connection of each host that is there.
    hosts: BTreeMap<Life, usize>,
    /// The connection of each device that has connected to this one.
    callers: BTreeMap<DeviceId, usize>,
    /// True for devices that had served before they were met.
    in_service: BTreeMap<DeviceId, bool>,
    settled: Settled,
    /// How many groups have been added, as others were told last.
    groups: usize,
    /// Why others have refused this device last, as it was logged.
    refused: BTreeMap<DeviceId, String>,
    /// Hosts that the state machine has found silent, and when something is done about it.
    silent: BTreeMap<Life, Instant>,
    /// When this device may ask to be let in.
    let_in_at: Instant,
    /// When the medium gets another number, and the number of requests that had come when it got the last one.
    key_due: (Instant, u64),
    requests: u64,
    /// When the next round of checks is due.
    checks_at: Instant,
    /// Something has happened since the last round of checks.
    unchecked: bool,
    /// The device begins anew when its disk has done the earlier requests.
    anew: bool,
    /// Of the array's state that others were told of last.
    terms: Vec<u64>,
    /// For how many stripes the medium gets room, and which connections wait for that.
    growing: Option<(u64, Vec<usize>)>,
    grown: Mailbox<Result<(), String>>,
    broken: Option<String>,
    /// The errors of the medium that were logged, and when.
    told_errors: (MediumCounts, Option<Instant>),
    /// The errors of the medium of former lives of the device in this process.
    former_errors: MediumCounts,
    history: Option<DeviceHistory>,
    log: fn(&str),
}

impl Process {
    pub fn new(
        file: &ArrayFile,
        entry: &DeviceEntry,
        serving: &Serving,
        store: Store,
    ) -> Result<Process, ServeError> {
        let me = serving.device;
        let mut clock = Clock::new();
        let path = || serving.path.clone();
        let (allowed, forget) =
            (file.timing.clock_ms * 1_000_000, file.timing.forget_ms * 1_000_000);
        let clocks = Clocks::new(file.voters().count(), allowed, forget);
        // It has had a record before it was put in service. Without it, it would take part as a new one.
        if store.is_in_service() && store.record().is_none() {
            return Err(StoreError { path: path(), why: StoreWhy::Record }.into());
        }
        let device = boot(file, me, clock.now(), store.record(), random()?)
            .map_err(|error| ServeError::Boot { path: path(), error })?;
        let witnesses = device.state().added.first().map(|group| group.first);
        if let Some(first) = witnesses.filter(|first| usize::from(first.0) != file.voters().count())
        {
            return Err(ServeError::OtherWitnesses { first: first.0 });
        }
        if store.is_kept_damaged() {
            (serving.log)(
                "what this device had kept of who is there is damaged: it begins as one whose medium was replaced, and learns it from \
                 the others",
            );
        }
        let members = Members::new(file, me, store.kept().as_deref(), random()?)
            .map_err(|error| ServeError::Kept { path: path(), error })?;
        let in_service = store.is_in_service();
        let role = Role::Device { id: me, life: members.life(), in_service };
        // Each device calls those below it.
        let below: Vec<Target> =
            file.voters().filter(|other| other.id < me.0).map(Target::of).collect();
        let log = serving.log;
        let mut net = Net::new(Me::new(file, serving.identity.clone(), role), &below, log)?;
        net.welcome = Welcome { life: members.life(), in_service };
        net.closed = Some("it has just started".into());
        let address = serving.listen.unwrap_or_else(|| entry.address.listens());
        net.listen(address).map_err(|error| ServeError::Listen { address, error })?;
        let answered = Mailbox::new(net.waker());
        let kept = Mailbox::new(net.waker());
        let grown = Mailbox::new(net.waker());
        let post = answered.clone();
        let disk = Disk::start(store, Box::new(move |token, result| post.post((token, result))))?;
        let identity = serving.identity.clone();
        let repairs = Repairs::start(file, identity, net.waker(), log)?;
        let terms = device.state().terms.clone();
        let mut process = Process {
            file: file.clone(),
            me,
            net,
            device,
            disk,
            answered,
            asked: 0,
            kept,
            members,
            repairs,
            checks: Checks::new(log),
            clock,
            clocks,
            asked_time: Instant::now(),
            clock_checked: false,
            off: None,
            wrong_clocks: BTreeMap::new(),
            hosts: BTreeMap::new(),
            callers: BTreeMap::new(),
            in_service: BTreeMap::new(),
            settled: Settled::new(file.layout, me, log),
            groups: 0,
            refused: BTreeMap::new(),
            silent: BTreeMap::new(),
            let_in_at: Instant::now(),
            key_due: (Instant::now(), 0),
            requests: 0,
            checks_at: Instant::now(),
            unchecked: false,
            anew: false,
            terms,
            growing: None,
            grown,
            broken: None,
            told_errors: Default::default(),
            former_errors: MediumCounts::default(),
            history: None,
            log,
        };
        let state = process.device.state().clone();
        process.note_added(&state);
        Ok(process)
    }

    pub fn record(&mut self, path: &Path) -> Result<(), HistoryError> {
        let mut history = DeviceHistory::create(path, &self.file, self.me, self.log)?;
        history.grown(self.device.layout());
        self.history = Some(history);
        Ok(())
    }

    pub fn run(mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        let mut events = mio::Events::with_capacity(256);
        self.act();
        while !stop.load(Relaxed) {
            let now = self.clock.now();
            let wait = self.wait(now);
            self.net.turn(wait, &mut events)?;
            while let Some(event) = self.net.event() {
                self.handle_net_event(event);
            }
            for (token, result) in self.answered.take() {
                self.asked -= 1;
                self.handle(DeviceInput::Disk { token, result });
            }
            self.note_kept();
            self.follow_orders();
            self.check();
            if let Some(why) = self.broken.take() {
                self.farewell();
                return Err(ServeError::Disk(why));
            }
        }
        self.farewell();
        if let Some(history) = self.history.take() {
            self.disk.settle();
            let is_good = self.device.state().is_good(self.me);
            let good = is_good && self.disk.store().is_in_service();
            history.end(self.disk.store(), good)?;
        }
        Ok(())
    }

    /// How long it may wait for messages.
    fn wait(&mut self, now: Time) -> Duration {
        let checks = self.checks_at.saturating_duration_since(Instant::now());
        let due = self.members.wait().min(self.checks.rests().unwrap_or(TICK)).max(checks);
        // A round of checks that was left out follows soon.
        let due = if self.unchecked { due.min(checks) } else { due };
        until(self.device.next_timer(), now).min(due).min(TICK)
    }

    /// The duties that no message asks for, in rounds.
    fn check(&mut self) {
        let now = self.clock.now();
        let is_due = |time: Time| time <= now;
        self.unchecked = Instant::now() < self.checks_at;
        if !self.unchecked || self.device.next_timer().is_some_and(is_due) {
            self.handle(DeviceInput::Tick);
        }
        if self.unchecked {
            return;
        }
        self.members.tick();
        self.put_fenced_hosts_out();
        self.follow_orders();
        self.periodic_checks();
        self.checks_at = Instant::now() + CHECKS;
    }

    /// The others need not wait for this device's lease.
    fn farewell(&mut self) {
        for other in self.all() {
            self.vote(other, Vote::Goodbye);
        }
        self.net.flush();
    }

    /// Puts a state of the membership on the medium.
    fn keep(&mut self, number: u64, image: Vec<u8>) {
        if image.len() > LONGEST_KEPT {
            let (found, most) = (image.len(), LONGEST_KEPT);
            (self.log)(&format!(
                "cannot keep who is there: that takes {found} bytes, and there is room for {most}; this device does not vote until it can"
            ));
            return self.members.kept(number, false);
        }
        let post = self.kept.clone();
        self.disk.keep(image, Box::new(move |result| post.post((number, result.err()))));
    }

    fn note_kept(&mut self) {
        for (number, failed) in self.kept.take() {
            self.members.kept(number, failed.is_none());
            if let Some(error) = failed {
                self.broken = Some(error.to_string());
            }
        }
    }

    fn handle(&mut self, input: DeviceInput) {
        let now = self.clock.now();
        self.device.handle(now, input);
        self.act();
    }

    fn act(&mut self) {
        let mut asks = Vec::new();
        while let Some(output) = self.device.poll() {
            match output {
                DeviceOutput::Send { to, reply } => {
                    if let Some(&key) = self.hosts.get(&to) {
                        self.net.say(key, &Frame::Reply(reply));
                    }
                }
                DeviceOutput::Disk(ask) => asks.push(ask),
                DeviceOutput::Event(event) => {
                    if let Some(history) = &mut self.history {
                        history.did(event);
                    }
                }
                DeviceOutput::Silent { life } => {
                    // The lowest member decides first. The pause lets a slow host's message arrive.
                    let lease = Duration::from_millis(self.file.timing.lease_ms);
                    let rank = self.members.list().iter().filter(|&&id| id < self.me).count();
                    let pause = lease / 8 + lease * u32::try_from(rank).unwrap_or(0) / 4;
                    self.silent.insert(life, Instant::now() + pause);
                }
                DeviceOutput::State(state) => {
                    if let Some(history) = &mut self.history {
                        history.grown(self.device.layout());
                    }
                    self.note_added(&state);
                    (self.log)(&format!("the array's state: {}", describe(&state)));
                    self.note_terms(&state);
                    let news = Frame::State(state);
                    for &key in self.hosts.values() {
                        self.net.say(key, &news);
                    }
                }
                DeviceOutput::Broken(error) => self.broken = Some(error.to_string()),
            }
        }
        if let Some(history) = &mut self.history {
            history.flush();
        }
        self.asked += asks.len();
        asks.into_iter().for_each(|ask| self.disk.ask(ask));
        self.net.hold = self.asked > DISK_OPERATIONS;
    }

    fn handle_net_event(&mut self, event: Event) {
        match event {
            Event::Came { key, role: Role::Host(life) } => {
                if let Some(old) = self.hosts.insert(life, key) {
                    self.net.refuse(old, "this host has connected again".into());
                }
                self.net.say(key, &Frame::State(self.device.state().clone()));
            }
            Event::Came { key, role: Role::Device { id, life, in_service } } => {
                if id <= self.me || !self.is_known(id) {
                    return self.turn_away(key, id);
                }
                if let Some(old) = self.callers.insert(id, key) {
                    self.net.refuse(old, "this device has connected again".into());
                }
                self.in_service.insert(id, in_service);
                self.met(id, life);
            }
            Event::Up { whom: Whom::Device(id), welcome, .. } => {
                self.in_service.insert(id, welcome.in_service);
                self.met(id, welcome.life);
            }
            Event::Heard { key, role, frame } => self.heard(key, role, frame),
            Event::Answered { whom: Whom::Device(id), frame } if frame.is_between_devices() => {
                self.heard_device(id, frame);
            }
            Event::Answered { whom, .. } => self.net.hang_up(whom, "it says what makes no sense"),
            Event::Left { key, role: Role::Host(life) } => {
                if self.hosts.get(&life) == Some(&key) {
                    self.hosts.remove(&life);
                    self.handle(DeviceInput::Gone { life });
                }
            }
            Event::Left { key, role: Role::Device { id, .. } } => {
                if self.callers.get(&id) == Some(&key) {
                    self.callers.remove(&id);
                    self.lost(id);
                }
            }
            Event::Down { whom: Whom::Device(id), why } => {
                self.lost(id);
                if let Why::Refused(why) = why
                    && self.refused.get(&id) != Some(&why)
                {
                    (self.log)(&format!("device {}: {why}", id.0));
                    self.refused.insert(id, why);
                }
            }
            Event::Up { .. } | Event::Down { .. } => {}
            Event::Came { role: Role::Watcher | Role::Server(_), .. }
            | Event::Left { role: Role::Watcher | Role::Server(_), .. } => {}
        }
        self.follow_orders();
    }

    fn met(&mut self, id: DeviceId, life: u64) {
        self.members.connected(id, life);
        self.ask_time(id);
        self.settled.met(id);
        self.inform(id);
    }

    /// All devices and witnesses, this one included.
    fn all(&self) -> Vec<DeviceId> {
        let voters = self.file.voters().map(|entry| DeviceId(entry.id));
        let added = self.device.state().added.iter().flat_map(Group::devices);
        voters.chain(added.map(|(device, _)| device)).collect()
    }

    /// Returns true if the array has such a device or witness. That the array's file has it is not enough for a device of a group that
    /// was added.
    fn is_known(&self, id: DeviceId) -> bool {
        self.file.voter(id).is_some() || self.device.state().member(id).is_some()
    }

    /// Refuses a device that does not connect here. One that the array is to get tries until it has it.
    fn turn_away(&mut self, key: usize, id: DeviceId) {
        let why = match id > self.me {
            true => format!(
                "the array has no device {} yet, as far as device {} knows: `lockify array grow --group` adds it",
                id.0, self.me.0
            ),
            false => format!("device {} does not connect here", id.0),
        };
        if self.refused.get(&id) == Some(&why) {
            return self.net.dismiss(key, &Frame::Refused(why));
        }
        self.refused.insert(id, why.clone());
        self.net.refuse(key, why);
    }

    /// The array has got devices, as far as this device knows it: they may connect, and are members.
    fn note_added(&mut self, state: &ArrayState) {
        self.settled.grown(*self.device.layout());
        self.net.unwanted = !self.is_known(self.me);
        let targets = Target::added(&self.file, state);
        if targets.is_empty() {
            return;
        }
        self.clocks.count(self.all().len());
        self.members.added(&targets);
        for target in targets {
            let allows = self.net.allows_at(&target.address);
            match target.whom {
                Whom::Device(id) if id < self.me && allows => self.net.add_target(target),
                whom => self.net.know(whom, target.node),
            }
        }
        let known = std::mem::replace(&mut self.groups, state.added.len());
        let is_new = known != state.added.len();
        // Nobody else tells a device that is out and does not vote.
        let is_out = |id: &DeviceId| state.member(*id).is_some() && state.is_failed(*id);
        let to: Vec<DeviceId> = self.all().into_iter().filter(|id| is_new || is_out(id)).collect();
        to.into_iter().for_each(|id| self.inform(id));
    }

    /// Tells another device or witness of the array's state, if groups have been added. A device that knows fewer groups refuses the
    /// devices of the others, and those who are there have to reach each other. So it must know before it is one of them.
    fn inform(&mut self, id: DeviceId) {
        if id != self.me && !self.device.state().added.is_empty() {
            let state = self.device.state().clone();
            self.tell_device(id, &Frame::State(state));
        }
    }

    fn lost(&mut self, id: DeviceId) {
        self.members.disconnected(id);
        self.clocks.forget(id);
        self.settled.lost(id);
    }

    fn heard(&mut self, key: usize, role: Role, frame: Frame) {
        match (role, frame) {
            (Role::Host(from), Frame::Request(request)) => {
                self.silent.remove(&from);
                self.requests += 1;
                // The host was let in before this device was left behind. Or the device is new, and its blocks are not
                // the array's. Or its clock is wrong. It then answers only requests that do not concern blocks. The asker
                // continues as soon as the array's state changes. A host with a newer state learns that this device is
                // behind.
                if is_of_blocks(&request.action) {
                    self.begin_service();
                }
                let in_service = self.disk.store().is_in_service() && self.off.is_none();
                let serves = in_service
                    || !is_of_blocks(&request.action)
                    || request.epoch > self.device.state().since;
                if self.members.may_act() && serves && !self.anew {
                    self.handle(DeviceInput::Request { from, request });
                }
            }
            (Role::Device { id, .. }, frame) if frame.is_between_devices() => {
                self.heard_device(id, frame);
            }
            (Role::Server(_), Frame::State(state)) => {
                if self.members.may_act() && !self.anew {
                    self.device.learn(self.clock.now(), state);
                    self.act();
                }
            }
            (Role::Watcher, Frame::Recover) => self.members.recover(key as u64),
            (Role::Watcher, Frame::Grow(stripes)) => self.asked_to_grow(key, stripes),
            // One that is cut off from the others knows neither the state nor who is there.
            (Role::Server(_), Frame::Attend(serving)) => {
                if self.members.may_act() && !self.anew {
                    let attended = self.device.attended(self.clock.now(), serving);
                    self.net.say(key, &Frame::Attended(attended));
                }
            }
            (_, Frame::Query) => {
                let report = self.report();
                self.net.report(key, report);
            }
            (_, _) => self.net.refuse(key, "this is not said to a device".into()),
        }
    }

    /// Handles the messages between devices.
    fn heard_device(&mut self, from: DeviceId, frame: Frame) {
        // One that refuses this device says nothing else.
        self.refused.remove(&from);
        match frame {
            Frame::Vote(vote) => self.members.voted(from, vote),
            Frame::AskTime { asked } => {
                let time = self.clock.now();
                self.tell_device(from, &Frame::Time { asked, time });
            }
            Frame::Time { asked, time } => {
                let took = monotonic().saturating_sub(asked);
                let now = self.clock.now();
                self.clocks.heard(from, time, now, took);
            }
            Frame::Settled(is) => self.settled.heard(from, is),
            Frame::State(state) => {
                self.device.learn(self.clock.now(), state);
                self.act();
            }
            _ => {}
        }
    }

    fn follow_orders(&mut self) {
        while let Some(order) = self.members.order() {
            match order {
                Order::Send { to, vote } => self.vote(to, vote),
                Order::Disconnect(id) => self.disconnect(id, "it was silent for too long"),
                Order::Halt(why) => {
                    (self.log)(&format!("this device stops serving for now: {why}"));
                    self.farewell();
                    self.all()
                        .into_iter()
                        .for_each(|id| self.disconnect(id, "this device begins anew"));
                    self.put_hosts_out("this device has lost touch with the others");
                    self.net.part_from_devices();
                    self.members.reborn();
                    self.introduce();
                    self.anew = true;
                }
                Order::Reconnect => {
                    self.net.part_from_devices();
                    self.members.parted();
                    self.introduce();
                }
                Order::Keep { number, image } => self.keep(number, image),
                Order::Answer { id, result } => {
                    if result.is_ok() {
                        (self.log)(
                            "an operator has this device begin a new era: the others join it",
                        );
                    }
                    let key = usize::try_from(id).unwrap_or(usize::MAX);
                    self.net.say(key, &Frame::Recovered(result));
                }
            }
        }
    }

    /// After hosts were disconnected, their state here is of no use to them. As after a crash, the device continues with its
    /// record only. It serves when it has been let in again, and it then knows the others' changes.
    fn begin_anew(&mut self) {
        if !self.anew || self.asked > 0 {
            return;
        }
        let (now, record) = (self.clock.now(), Some(self.device.record()));
        let booted = random().map_err(|e| format!("the system has no random numbers: {e}"));
        let booted = booted.and_then(|random| {
            boot(&self.file, self.me, now, record, random).map_err(|e| e.to_string())
        });
        match booted {
            Ok(device) => {
                self.anew = false;
                self.former_errors = self.medium();
                self.device = device;
                self.act();
            }
            Err(why) => self.broken = Some(why),
        }
    }

    /// A device that has been let in again counts as gone only after the usual time.
    fn note_terms(&mut self, state: &ArrayState) {
        for ((id, term), known) in state.ids().zip(&state.terms).zip(&self.terms) {
            if term != known {
                self.members.excuse(id);
            }
        }
        self.terms.clone_from(&state.terms);
    }

    fn disconnect(&mut self, id: DeviceId, why: &str) {
        self.net.hang_up(Whom::Device(id), why);
        if let Some(key) = self.callers.remove(&id) {
            self.net.refuse(key, why.to_owned());
        }
        self.lost(id);
    }

    fn put_hosts_out(&mut self, why: &str) {
        for (life, key) in std::mem::take(&mut self.hosts) {
            self.net.dismiss(key, &Frame::Refused(why.to_owned()));
            self.handle(DeviceInput::Gone { life });
        }
    }

    /// A fenced host hears that, and its connection ends. So nothing that it has sent and nobody has read is kept for it.
    fn put_fenced_hosts_out(&mut self) {
        let is_fenced = |life: &Life| self.device.is_fenced(*life);
        let fenced: Vec<Life> = self.hosts.keys().copied().filter(is_fenced).collect();
        for life in fenced {
            if let Some(key) = self.hosts.remove(&life) {
                self.net.dismiss(key, &Frame::fenced(life));
                self.handle(DeviceInput::Gone { life });
            }
        }
    }

    /// Sets the identity of this process for connections from now on.
    fn introduce(&mut self) {
        let (life, in_service) = (self.members.life(), self.disk.store().is_in_service());
        self.net.set_role(Role::Device { id: self.me, life, in_service });
        self.net.welcome = Welcome { life, in_service };
    }

    fn vote(&mut self, to: DeviceId, vote: Vote) {
        self.tell_device(to, &Frame::Vote(vote));
    }

    fn tell_device(&mut self, to: DeviceId, frame: &Frame) {
        match self.callers.get(&to) {
            Some(&key) => self.net.say(key, frame),
            None => drop(self.net.send_to(Whom::Device(to), frame)),
        }
    }

    /// To those who have not heard it yet.
    fn tell_settled(&mut self) {
        // One that is about to begin anew knows no more than after a restart.
        let is = !self.anew && !self.device.is_unsettled();
        for device in self.settled.whom_to_tell(is) {
            self.tell_device(device, &Frame::Settled(is));
        }
    }

    fn ask_time(&mut self, of: DeviceId) {
        self.tell_device(of, &Frame::AskTime { asked: monotonic() });
    }

    /// Finds out whose clock is wrong.
    fn look_at_clocks(&mut self) {
        if self.asked_time.elapsed() >= self.lease() / 8 {
            self.asked_time = Instant::now();
            // There is no connection to itself.
            self.all().into_iter().for_each(|id| self.ask_time(id));
        }
        self.clock_checked |= self.clocks.agree();
        let to_go = self.clock.to_go();
        let off = self.clocks.own_error().map(|error| {
            format!(
                "this device's clock is {} the others': find out which is wrong (NTP), set it right, and start its device \
                 again; until then this one serves nobody",
                describe_clock(error.saturating_add(to_go))
            )
        });
        match (&self.off, &off) {
            (None, Some(why)) => (self.log)(why),
            // Unanswered requests are repeated on a new connection.
            (Some(_), None) => {
                (self.log)("this device's clock is right again");
                self.put_hosts_out("this device's clock was wrong");
            }
            _ => {}
        }
        self.off = off;
        let wrong: BTreeMap<DeviceId, i64> = self.clocks.wrong().collect();
        self.wrong_clocks.retain(|device, _| wrong.contains_key(device));
        for (device, ahead) in wrong {
            if let Entry::Vacant(new) = self.wrong_clocks.entry(device) {
                new.insert(Instant::now());
                let how = describe_clock(ahead);
                (self.log)(&format!("the clock of device {} is {how} this one's", device.0));
            }
        }
    }

    /// Does what is due without an event. The duties are in this order because each one may change what the next ones see.
    fn periodic_checks(&mut self) {
        self.note_ended_repairs();
        self.look_at_clocks();
        self.tell_settled();
        self.begin_anew();
        self.make_room();
        self.begin_service();
        let now = Instant::now();
        self.tell_errors(now);
        self.open_or_close(now);
        // The rest acts on other processes. Only a device that has agreed with a majority may do
        // that.
        if !self.members.may_act() || self.anew {
            return;
        }
        self.fence_silent_hosts(now);
        // A device that has never served has no blocks of the array to check or to be let in with.
        if !self.disk.store().is_in_service() {
            // An older copy is refused. That tells it when the array goes on without it, which it has to know before it can be rebuilt:
            // nobody else informs a device that is out.
            if self.device.is_out_of_date() {
                self.ask_to_be_let_in();
            }
            return;
        }
        self.give_up_old_copy();
        self.change_key(now);
        self.ask_to_be_let_in();
        self.check_next_stripes();
        self.excuse_failed_devices();
        self.give_up_bad_devices();
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.file.timing.lease_ms)
    }

    fn note_ended_repairs(&mut self) {
        for ended in self.repairs.look() {
            match ended {
                (Job::Fence(life), Err(_)) => {
                    self.silent.insert(life, Instant::now() + FENCE_AGAIN);
                }
                (Job::Check(stripe), result) => self.checks.ended(stripe, result),
                (Job::LetIn(..), Err(_)) => self.let_in_at = Instant::now() + LET_IN_AGAIN,
                _ => {}
            }
        }
    }

    /// Admits hosts, or refuses them with the reason.
    fn open_or_close(&mut self, now: Instant) {
        self.net.closed = self.waits();
        if self.net.closed.is_some() {
            // A refused host cannot renew; its lease starts when we admit it.
            let lease = self.lease();
            self.silent.values_mut().for_each(|at| *at = now + lease);
        }
    }

    fn fence_silent_hosts(&mut self, now: Instant) {
        let due: Vec<Life> =
            self.silent.iter().filter(|(_, at)| **at <= now).map(|(&life, _)| life).collect();
        for life in due {
            self.repairs.ask(Job::Fence(life));
            self.silent.remove(&life);
        }
    }

    fn ask_to_be_let_in(&mut self) {
        if Instant::now() >= self.let_in_at
            && let Some(Change::LetIn(device, term)) = self.device.wants_in()
        {
            self.repairs.ask(Job::LetIn(device, term));
        }
    }

    /// An older copy of the medium counts as a new medium. It serves nobody, the array continues without it, and it is rebuilt.
    fn give_up_old_copy(&mut self) {
        if !self.device.is_out_of_date() || !self.disk.store().is_in_service() {
            return;
        }
        (self.log)(
            "the medium of this device is an older copy of what the array has: it is left out until it has been rebuilt \
             (`lockify array rebuild`)",
        );
        match self.disk.store().put_out_of_service() {
            Ok(()) => {
                self.put_hosts_out("this device has an older copy of its content");
                self.net.part_from_devices();
                self.members.parted();
                self.introduce();
            }
            Err(e) => self.broken = Some(format!("writing the superblock failed: {e}")),
        }
    }

    /// A copy of the medium that is taken now is known to be older a minute later, if something was written since. A medium without a
    /// number gets one at once: it may be the only one that has what was written when its machine fails.
    fn change_key(&mut self, now: Instant) {
        let (due, requests) = self.key_due;
        let state = self.device.state();
        let is_due = self.requests != requests || state.key(self.me) == 0;
        if now >= due && is_due && self.device.is_let_in() && !state.is_unnumbered(self.me) {
            self.key_due = (now + KEY_AGE, self.requests);
            let time = self.clock.now();
            self.device.change_key(time);
            self.act();
        }
    }

    fn check_next_stripes(&mut self) {
        let condition = self.device.state().condition(self.me);
        // A failed device is rebuilt as a whole, so its stripes need no check.
        let counts = condition.is_some_and(|condition| !condition.is_out());
        if !counts || !self.device.is_let_in() || self.off.is_some() {
            return;
        }
        while let Some(stripe) = self.checks.due(&self.device) {
            self.repairs.ask(Job::Check(stripe));
        }
    }

    /// The errors of the medium since the process began.
    fn medium(&self) -> MediumCounts {
        let (now, before) = (self.device.medium(), self.former_errors);
        MediumCounts {
            errors: before.errors + now.errors,
            unreadable: now.unreadable,
            rewritten: before.rewritten + now.rewritten,
            lost_writes: before.lost_writes + now.lost_writes,
            last: now.last.or(before.last),
        }
    }

    /// Logs new errors of the medium, now and then.
    fn tell_errors(&mut self, now: Instant) {
        let (told, last) = self.told_errors;
        let all = self.medium();
        let (errors, lost) = (all.errors - told.errors, all.lost_writes - told.lost_writes);
        let rests = last.is_some_and(|last| now.duration_since(last) < TELL_ERRORS);
        if errors + lost == 0 || rests {
            return;
        }
        self.told_errors = (all, Some(now));
        let block = all.last.unwrap_or_default();
        let MediumCounts { unreadable, rewritten, .. } = all;
        (self.log)(&format!(
            "the medium has not returned blocks {errors} times, and has lost {lost} writes, the last of them at block {block}; hosts \
             write such blocks anew from the other devices: {unreadable} are unreadable now, and {rewritten} were written anew since the \
             start"
        ));
    }

    /// A device that is out of the array is rebuilt before it is good again. Then its blocks are the array's.
    fn excuse_failed_devices(&mut self) {
        for (id, _) in self.device.state().conditions().filter(|(_, now)| now.is_out()) {
            self.in_service.insert(id, true);
            self.members.excuse(id);
        }
    }

    /// Has devices failed that are gone, new, or have a wrong clock.
    fn give_up_bad_devices(&mut self) {
        let lease = self.lease();
        // One proposer is enough: competing proposals delay each other. A device that is not in service does nothing for the array,
        // and may be the one to be given up.
        let new = self.in_service.iter().filter(|(_, in_service)| !**in_service);
        let new: Vec<DeviceId> = new.map(|(&id, _)| id).collect();
        if !self.disk.store().is_in_service() || !self.leads(&new) {
            return;
        }
        let gone: Vec<DeviceId> = self.members.gone(lease).collect();
        let wrong = self.wrong_clocks.iter().filter(|(_, since)| since.elapsed() >= lease);
        let wrong: Vec<DeviceId> = wrong.map(|(&id, _)| id).collect();
        for device in gone.into_iter().chain(new.iter().copied()).chain(wrong) {
            let state = self.device.state();
            let condition = state.condition(device);
            if condition.is_some_and(|condition| !condition.is_out())
                && self.settled.may_give_up(
                    device,
                    |other| state.is_failed(other),
                    |other| new.contains(&other),
                )
            {
                // The term ties the failure to this absence: the device may be let in again
                // meanwhile.
                self.repairs.ask(Job::Fail(device, state.term(device)));
            }
        }
    }

    /// Returns true if this is the lowest member of those whose clocks are right, apart from these.
    fn leads(&self, apart_from: &[DeviceId]) -> bool {
        let acts = |id: &DeviceId| !self.wrong_clocks.contains_key(id) && !apart_from.contains(id);
        self.off.is_none() && self.members.list().into_iter().find(acts) == Some(self.me)
    }

    /// A new device's blocks become the array's: when all are new, or when the array knows that it has nothing.
    fn begin_service(&mut self) {
        // Without a record it would begin as a new one again.
        let begins = self.members.may_act() && self.asked == 0 && self.has_room();
        if self.disk.store().is_in_service() || !begins {
            return;
        }
        let all = self.file.voters().count();
        let all_new = self.members.list().len() == all
            && self.in_service.len() == all - 1
            && self.in_service.values().all(|in_service| !in_service);
        let condition = self.device.state().condition(self.me);
        let known = match condition {
            Some(condition) => condition != Condition::Good,
            // A witness has no blocks. A device that the array does not have yet waits.
            None => self.file.is_witness(self.me),
        };
        let all_new = all_new && self.file.voter(self.me).is_some();
        if !all_new && !known {
            return;
        }
        match self.disk.store().put_in_service() {
            Ok(()) => {
                self.introduce();
                // This device replaces one that had served, and comes back like that one. Hosts' earlier requests were not for
                // it. They do not repeat them because it is let in: they repeat them on new connections.
                self.anew = !all_new && condition.is_some();
                if self.anew {
                    self.put_hosts_out("this device begins");
                }
                // They are about to do the same. A device that does not will say so when it is met
                // again.
                self.in_service.values_mut().for_each(|in_service| *in_service = true);
            }
            Err(e) => self.broken = Some(format!("writing the superblock failed: {e}")),
        }
    }

    /// An operator wants room for so many stripes.
    fn asked_to_grow(&mut self, key: usize, stripes: u64) {
        let stripes = Layout { stripes, ..*self.device.layout() }.room(self.me);
        match &mut self.growing {
            Some((under_way, waiting)) if *under_way == stripes => waiting.push(key),
            Some((under_way, _)) => {
                let why = format!("its medium is getting room for {under_way} stripes just now");
                self.net.say(key, &Frame::Grown(Err(why)));
            }
            None => self.grow(stripes, vec![key]),
        }
    }

    fn grow(&mut self, stripes: u64, waiting: Vec<usize>) {
        self.growing = Some((stripes, waiting));
        let post = self.grown.clone();
        if let Err(error) = self.disk.grow(stripes, move |result| post.post(result)) {
            self.grown.post(Err(format!("the system refuses a thread: {error}")));
        }
    }

    /// Returns true if the medium has room for all blocks that the array has here. A new medium in the place of a former one
    /// is as large as the array was when its file was made.
    fn has_room(&self) -> bool {
        self.disk.store().blocks() >= self.device.layout().blocks_on(self.me)
    }

    /// The medium grows with the array.
    fn make_room(&mut self) {
        for result in self.grown.take() {
            let Some((stripes, waiting)) = self.growing.take() else { continue };
            if let Err(why) = &result {
                (self.log)(&format!("the medium has no room for {stripes} stripes: {why}"));
                if !self.has_room() {
                    self.broken = Some(why.clone());
                }
            }
            for key in waiting {
                self.net.say(key, &Frame::Grown(result.clone()));
            }
        }
        if self.growing.is_none() && self.broken.is_none() && !self.has_room() {
            self.grow(self.device.layout().room(self.me), Vec::new());
        }
    }

    /// Why hosts are not served.
    fn waits(&self) -> Option<String> {
        if !self.is_known(self.me) {
            return Some(
                "the array does not have this device yet: `lockify array grow --group` adds it"
                    .into(),
            );
        }
        if !self.members.may_act() {
            return Some(self.members.waits());
        }
        if !self.clock_checked {
            let unknown = || "it waits until enough others have told it the time".to_owned();
            return Some(self.off.clone().unwrap_or_else(unknown));
        }
        if self.anew {
            return Some("it begins anew".into());
        }
        if !self.disk.store().is_in_service() && self.in_service.values().all(|used| !used) {
            return Some(
                "the array is new: it waits until all its devices and witnesses are there".into(),
            );
        }
        None
    }

    fn report(&self) -> Report {
        let away = if self.device.is_out_of_date() {
            "its medium is an older copy of what the array has: it is rebuilt when the array goes on without it"
        } else {
            "it waits until more than half of the devices and witnesses have let it in again"
        };
        let away = || (!self.device.is_let_in()).then(|| away.into());
        let waits = self.waits().or_else(|| self.off.clone()).or_else(away);
        Report {
            state: self.device.state().clone(),
            serving: waits.is_none(),
            in_service: self.disk.store().is_in_service(),
            waits,
            members: self.members.list().into_iter().map(|id| id.0).collect(),
            life: self.members.life(),
            view: self.members.view(),
            out: self.members.out(),
            hosts: self.hosts.keys().map(|life| (life.host.0, life.incarnation)).collect(),
            requests: self.requests,
            unchecked: self.device.suspects().count() as u64,
            errors: self.medium().errors,
            unreadable: self.medium().unreadable,
            rewritten: self.medium().rewritten,
            lost_writes: self.medium().lost_writes,
            unsettled: self.device.is_unsettled(),
        }
    }
}

/// A device that begins, with its last record if it has one.
fn boot(
    file: &ArrayFile,
    me: DeviceId,
    now: Time,
    record: Option<Bytes>,
    random: u64,
) -> Result<Device, BootError> {
    let mut config = DeviceConfig::new(me, file.scheme, file.layout);
    config.voters = u16::try_from(file.voters().count()).unwrap_or(u16::MAX);
    config.durable = file.durability == Durability::Write;
    config.lease = file.timing.lease_ms * 1_000_000;
    config.remember = file.timing.forget_ms * 1_000_000;
    config.ahead = file.timing.clock_ms * 1_000_000;
    let state = ArrayState::new(file.layout.devices());
    Device::new(config, DeviceBoot { now, record, state, random })
}

fn is_of_blocks(action: &Action) -> bool {
    matches!(
        action,
        Action::Read { .. }
            | Action::Write { .. }
            | Action::Prepare { .. }
            | Action::Commit(_)
            | Action::Lock { .. }
            | Action::WriteUnlock(_)
            | Action::Flush { .. }
    )
}

fn describe(state: &ArrayState) -> String {
    let bad = state.conditions().filter_map(|(DeviceId(id), condition)| match condition {
        Condition::Good => None,
        Condition::Failed => Some(format!("device {id} has failed")),
        Condition::Unfinished => Some(format!("device {id} has failed before it was rebuilt")),
        Condition::Rebuilding { done } | Condition::Returning { done, .. } => {
            Some(format!("device {id} is rebuilt up to stripe {done}"))
        }
    });
    let bad: Vec<String> = bad.collect();
    let bad = if bad.is_empty() { "all devices are good".to_owned() } else { bad.join(", ") };
    format!("epoch {}, {bad}", state.epoch.0)
}
