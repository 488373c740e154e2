//! Repairs that consist of several transactions, and changes of the array's state (docs/design/array.md 3). Any host may
//! repeat all of it: there is no coordinator.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{Later, Owner, Role, Task};
use super::repair::{Found, Pass, Survey};
use super::{ArrayHost, HostOutput};
use crate::agreement::{Proposer, Step};
use crate::message::{Action, Answer};
use crate::recovery::column::{Rule, Trace};
use crate::{
    Agreed, ArrayState, Change, DeviceId, Extent, Group, Header, HostAnswer, HostId, Layout, Life,
    OpError, OpId, Peer, Stamp, Ticket, Time, Work,
};

/// After this number of repairs for one operation, it waits before the next one.
const REPAIRS_AT_ONCE: u32 = 4;
/// After so many more, it fails: devices lose what repairs write, or start again and again.
const MOST_REPAIRS: u32 = 20;

/// Returns true if a host gets its number by this.
fn attaches(work: &Work) -> bool {
    matches!(work, Work::Change { change: Change::Attach { .. } })
}

/// A pass over a stripe of so many blocks per unit ends by itself after fewer passes, unless a medium loses what is written.
fn most_passes(layout: &Layout) -> u32 {
    layout.unit.saturating_mul(8).saturating_add(32)
}

pub(super) struct RepairJob {
    pub(super) done: Then,
    /// The work as histories name it for passes and messages.
    work: Work,
    pub(super) op: Option<(OpId, Stamp)>,
    /// The errors that the first pass found, and the losses of the last one.
    found: Found,
    passes: u32,
    /// Passes over the present stripe.
    in_a_row: u32,
    stage: RepairStage,
}

/// The step after it.
pub(super) enum Then {
    Answer(Ticket),
    /// A host operation that could not go on before.
    Resume(Box<Task>),
    /// A flush, which needs to know what the stripe has.
    Flush(Box<Task>),
    /// The one that waited has been told that it takes too long.
    Nobody,
}

enum RepairStage {
    /// Passes over one stripe, until nothing is left to mend.
    Stripe(Pass),
    /// Devices are told that the stripe is good.
    Repaired,
    /// Devices fence a life and report its unfinished writes. `asked` is that life, or another one that has left something in one of
    /// its stripes, and `more` are further such.
    Fencing { life: Life, asked: Life, more: BTreeSet<Life>, known: Known },
    /// Passes over its unfinished writes.
    Repairing { life: Life, known: Known, left: BTreeMap<u64, Vec<Trace>>, pass: Pass },
    /// Devices drop the locks and pre-writes of these lives, one after the other. The stripes of all have been repaired.
    Clearing(BTreeSet<Life>),
    /// What was rebuilt of a device becomes durable, before it counts.
    Flushing(DeviceId),
    /// The array's next state is voted on.
    Proposing { proposer: Box<Proposer>, seq: u64 },
    /// Devices are told the state.
    Installing,
    /// A device is to be rebuilt: the others report the fenced lives.
    Gathering(DeviceId),
    /// And the device is told.
    Handing { device: DeviceId, lives: Vec<Life> },
}

impl RepairStage {
    /// The same, but its pass only looks what a loss would leave.
    fn surveying(self, survey: Survey) -> RepairStage {
        match self {
            RepairStage::Stripe(pass) => RepairStage::Stripe(Pass { survey: Some(survey), ..pass }),
            other => other,
        }
    }
}

/// All that devices have told of some fenced lives.
#[derive(Default)]
struct Known {
    lives: BTreeSet<Life>,
    left: Left,
}

/// The answers of one stage.
#[derive(Default)]
struct Gathered {
    left: Left,
    /// The fenced hosts, and the last fenced incarnation of each.
    fenced: BTreeMap<HostId, u64>,
}

/// The reason why a stage does not end with its answers.
enum Unusable {
    /// A device has a newer state of the array.
    Stale(Box<ArrayState>),
    /// A device answers as none should.
    Odd(String),
}

impl Gathered {
    fn from(layout: &Layout, answers: Vec<(Peer, Answer)>) -> Result<Gathered, Unusable> {
        let mut all = Gathered::default();
        for (peer, answer) in answers {
            match (peer, answer) {
                (
                    Peer::Device(device),
                    Answer::InFlight { in_flight, written, forgotten, forgot },
                ) => {
                    let left = &mut all.left;
                    let awaited = in_flight.into_iter();
                    left.awaited.extend(awaited.map(|(extent, stamp)| (device, extent, stamp)));
                    let written = written.into_iter();
                    left.written.extend(written.map(|(extent, header)| (device, extent, header)));
                    let known = left.forgotten.entry(device).or_default();
                    // The larger bound is the safe one: no write above it is missing from the
                    // answers.
                    *known = forgotten.max(*known);
                    left.forgetful.extend(layout.group(device).filter(|_| forgot));
                }
                (_, Answer::Fences(lives)) => {
                    for life in lives {
                        let floor = all.fenced.entry(life.host).or_default();
                        *floor = (*floor).max(life.incarnation);
                    }
                }
                (_, Answer::Done) => {}
                (_, Answer::Stale(state)) => return Err(Unusable::Stale(state)),
                (peer, answer) => {
                    let what = format!("{peer:?} answered a repair with {answer:?}");
                    return Err(Unusable::Odd(what));
                }
            }
        }
        Ok(all)
    }
}

/// A fenced life's leftovers, as devices report them.
#[derive(Default)]
struct Left {
    /// Pre-written or locked.
    awaited: Vec<(DeviceId, Extent, Stamp)>,
    written: Vec<(DeviceId, Extent, Header)>,
    /// Up to which timestamps each device may have forgotten its writes.
    forgotten: BTreeMap<DeviceId, Time>,
    /// Groups with a device that has forgotten the writes it was to do.
    forgetful: BTreeSet<u16>,
}

impl Left {
    /// Adds another life's, or what has come to light since.
    fn add(&mut self, other: Left) {
        self.awaited.extend(other.awaited);
        self.written.extend(other.written);
        for (device, time) in other.forgotten {
            let known = self.forgotten.entry(device).or_default();
            *known = time.max(*known);
        }
        self.forgetful.extend(other.forgetful);
    }

    /// The stripes to repair, with all knowledge about each. It concerns whole stripes: an operation's traces may be in
    /// other columns than its missing writes.
    fn stripes(&self, layout: &Layout) -> BTreeMap<u64, Vec<Trace>> {
        let mut stripes: BTreeMap<u64, Vec<Trace>> = BTreeMap::new();
        for &(device, extent, stamp) in &self.awaited {
            let Some(stripe) = layout.stripe_of(device, extent.start) else { continue };
            let traces = stripes.entry(stripe).or_default();
            let data = (0..layout.data).find(|unit| layout.data(stripe, *unit) == device);
            if let Some(unit) = data
                && self.may_be_in_parity(layout, stripe, extent, stamp)
            {
                let start = (extent.start - layout.unit_start(stripe)) as u32;
                let (unit, columns) =
                    (usize::from(unit), start..start.saturating_add(extent.count));
                traces.push(Trace::Awaited { unit, columns, stamp });
            }
        }
        for &(device, extent, header) in &self.written {
            let Some(stripe) = layout.stripe_of(device, extent.start) else { continue };
            // The other devices of the group show what a device has forgotten.
            if layout.group(device).is_some_and(|group| self.forgetful.contains(&group)) {
                stripes.entry(stripe).or_default();
            }
            if let Some(traces) = stripes.get_mut(&stripe) {
                let trace = Trace::Written(header);
                if !traces.contains(&trace) {
                    traces.push(trace);
                }
            }
        }
        stripes
    }

    /// Returns true if a data unit's missing write may have reached a parity of the stripe without a record of it.
    fn may_be_in_parity(&self, layout: &Layout, stripe: u64, data: Extent, stamp: Stamp) -> bool {
        let may_have = |parity: DeviceId| {
            let waits = |&(device, extent, other): &(DeviceId, Extent, Stamp)| {
                (device, other) == (parity, stamp)
                    && extent.start <= data.start
                    && data.end() <= extent.end()
            };
            let forgotten = self.forgotten.get(&parity).is_some_and(|time| *time >= stamp.time);
            forgotten && !self.awaited.iter().any(waits)
        };
        may_have(layout.parity(stripe)) || layout.second_parity(stripe).is_some_and(may_have)
    }
}

impl ArrayHost {
    pub(super) fn run_repair_job(&mut self, now: Time, ticket: Ticket, work: Work) {
        #[cfg(feature = "mutations")]
        if let Work::Change { change: Change::Grow { stripes, .. } } = &work
            && self.mutated(crate::mutation::Mutation::GrowsUnagreed)
        {
            self.config.layout.stripes = *stripes;
        }
        let stage = match self.first_stage(&work) {
            Ok(Some(stage)) => Ok(stage),
            Ok(None) => Err(Ok(HostAnswer::Done)),
            Err(error) => Err(Err(error)),
        };
        match stage {
            Ok(_) if self.fenced => {
                let result = Err(OpError::Fenced);
                self.output.push_back(HostOutput::Done { ticket, op: None, result });
            }
            Ok(stage) => self.begin(now, Then::Answer(ticket), work, stage),
            Err(result) => self.output.push_back(HostOutput::Done { ticket, op: None, result }),
        }
    }

    fn first_stage(&self, work: &Work) -> Result<Option<RepairStage>, OpError> {
        let layout = &self.config.layout;
        let whole = |stripe: u64, repair: bool, rule: Rule, onto: Option<DeviceId>| {
            if stripe >= layout.stripes {
                return Err(OpError::Range);
            }
            #[cfg(feature = "mutations")]
            let rule = match self.mutated(crate::mutation::Mutation::ZerosAreData) {
                true => Rule::ZerosAreData,
                false => rule,
            };
            Ok(Some(RepairStage::Stripe(Pass { onto, ..Pass::over(stripe, repair, rule) })))
        };
        match work {
            &Work::Scrub { stripe, repair } => whole(stripe, repair, Rule::Leave, None),
            &Work::AcceptLoss { stripe } => whole(stripe, true, Rule::FitParity, None),
            Work::Survey { .. } | Work::Change { change: Change::Return(..) }
                if layout.parities() > 1 =>
            {
                // Two missing units need no old blocks, and with three nobody could tell which are old.
                let what = "a device of an array with two parities does not come back with old blocks: rebuild it";
                Err(OpError::State(what.to_owned()))
            }
            &Work::Survey { device, whole_to, without, stripe } => {
                let stage = whole(stripe, false, Rule::FitParity, None)?;
                let survey = Survey { device, whole_to, without };
                self.surveyed(survey, stripe)?;
                Ok(stage.map(|stage| stage.surveying(survey)))
            }
            &Work::Rebuild { device, stripe } => {
                match self.state.condition(device) {
                    Some(condition) if condition.is_out() => {
                        Err(OpError::State(format!("{device} is not being rebuilt")))
                    }
                    // Also if it has the stripe: this host may know an old state only. Devices tell.
                    // A missing unit cannot wait for an operator: nothing else would have its content.
                    Some(_) => whole(stripe, true, Rule::FitParity, Some(device)),
                    None => Err(OpError::State(format!("the array has no device {device}"))),
                }
            }
            &Work::Fence { life } if life == self.config.life => {
                Err(OpError::State("a host cannot fence itself".to_owned()))
            }
            &Work::Fence { life } => {
                let (more, known) = (BTreeSet::new(), Known::default());
                Ok(Some(RepairStage::Fencing { life, asked: life, more, known }))
            }
            // Its device may lose its cache. The others may then miss as much as the redundancy replaces.
            &Work::Change { change: Change::Rebuilt(device, ..) } if !self.config.durable => {
                Ok(Some(RepairStage::Flushing(device)))
            }
            Work::Change { change } => {
                match change {
                    Change::Grow { stripes, .. } => self.may_have(*stripes)?,
                    Change::Add { group, .. } => self.may_get(group)?,
                    _ => {}
                }
                Ok(Some(self.proposing(self.next_repair_job + 1, change.clone())))
            }
            Work::Read { .. } | Work::Write { .. } | Work::Patch { .. } | Work::Flush => Ok(None),
        }
    }

    /// Refuses a number of stripes that the array cannot have.
    fn may_have(&self, stripes: u64) -> Result<(), OpError> {
        let layout = &self.config.layout;
        if stripes < layout.stripes || stripes == layout.stripes && self.state.stripes != stripes {
            let now = layout.stripes;
            return Err(OpError::State(format!(
                "the array has {now} stripes: it may have more, and not {stripes}"
            )));
        }
        let wanted = Layout { stripes, ..*layout };
        wanted
            .check()
            .map_err(|why| OpError::State(format!("{stripes} stripes are too many: {why}")))
    }

    /// Refuses a group that does not fit the layout. Of an older state than the array has by now, the agreement is.
    fn may_get(&self, group: &Group) -> Result<(), OpError> {
        if self.state.added.last() == Some(group) {
            return Ok(());
        }
        let layout = &self.config.layout;
        let behind_voters = layout.devices() + self.config.witnesses;
        let size = usize::from(layout.group_size());
        let free = match layout.added.last() {
            Some(last) => last.first.0.saturating_add(layout.group_size()),
            None => behind_voters,
        };
        if group.members.len() != size || group.first.0 != free || group.from != layout.stripes {
            return Err(OpError::State(format!(
                "the next group of this array has {size} devices, from number {free} and stripe {} on; not {} devices, from {} and {} on",
                layout.stripes,
                group.members.len(),
                group.first.0,
                group.from
            )));
        }
        Ok(())
    }

    /// Refuses a survey of anything but a stripe of two devices of which the first one is out.
    fn surveyed(&self, survey: Survey, stripe: u64) -> Result<(), OpError> {
        let layout = &self.config.layout;
        let group = layout.group_of(stripe);
        let is_there = |device: DeviceId| layout.group(device) == Some(group);
        let Survey { device, without, .. } = survey;
        let fits = is_there(device) && is_there(without) && device != without;
        match fits && self.state.is_failed(device) {
            true => Ok(()),
            false => Err(OpError::State(format!("{device} cannot come back without {without}"))),
        }
    }

    /// The stage in which the job of this number has a change voted on.
    fn proposing(&self, job: u64, change: Change) -> RepairStage {
        let voters = (self.config.layout, self.config.witnesses);
        let proposer = Proposer::new((self.config.life, job), change, voters, self.state.clone());
        RepairStage::Proposing { proposer: Box::new(proposer), seq: 0 }
    }

    fn begin(&mut self, now: Time, done: Then, work: Work, stage: RepairStage) {
        self.next_repair_job += 1;
        let id = self.next_repair_job;
        let (found, op) = (Found::default(), None);
        let job = RepairJob { done, work, op, found, passes: 0, in_a_row: 0, stage };
        self.repair_jobs.insert(id, job);
        self.go_on(now, id);
    }

    /// The stripe has to be repaired before this try can go on: it is started again afterwards.
    pub(super) fn repair_needed(&mut self, now: Time, seq: u64, stripe: u64) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(mut task) = this.task.take() else { return };
        self.give_up(now, seq);
        task.delayed = true;
        task.restarts += 1;
        task.repairs += 1;
        self.counts.restarts += 1;
        match task.repairs.checked_sub(REPAIRS_AT_ONCE) {
            Some(MOST_REPAIRS..) => {
                let what = format!("stripe {stripe} does not stay repaired");
                self.fail_task(now, task, OpError::State(what));
            }
            Some(further) => {
                let wait = self.backoff(further);
                self.at(now.saturating_add(wait), Later::Repair { task: Box::new(task), stripe });
            }
            None => self.repair_first(now, task, stripe),
        }
    }

    /// The stripe is repaired, then the task goes on.
    pub(super) fn repair_first(&mut self, now: Time, task: Task, stripe: u64) {
        let work = Work::Scrub { stripe, repair: true };
        match self.first_stage(&work) {
            Ok(Some(mut stage)) => {
                if let RepairStage::Stripe(pass) = &mut stage {
                    // The server's locks of earlier tries stay until this one is done.
                    if self.locks.is_some() || task.failed.is_some() || task.looks.is_some() {
                        pass.past = self.past_tries(&task);
                    }
                    if !task.unheld.is_empty() {
                        let here = task.unheld.iter().filter(|unheld| unheld.stripe == stripe);
                        pass.unheld = here.cloned().collect();
                    } else if task.looks.is_some() {
                        pass.wanted = self.wanted(&task, stripe);
                    }
                    // Nobody continues it. Others may have hidden its record since.
                    if task.failed.is_some() {
                        pass.rule = Rule::FitParity;
                        pass.traces = self.cut_short(&task, stripe);
                    }
                }
                self.begin(now, Then::Resume(Box::new(task)), work, stage)
            }
            _ => self.fail_task(now, task, OpError::Range),
        }
    }

    /// A stripe is repaired for a flush, which then looks what is there.
    pub(super) fn look_at(&mut self, now: Time, task: Task, pass: Pass) {
        let work = Work::Scrub { stripe: pass.stripe, repair: true };
        self.begin(now, Then::Flush(Box::new(task)), work, RepairStage::Stripe(pass));
    }

    /// Running repairs, one line each, for people.
    pub(super) fn repair_jobs_under_way(&self) -> impl Iterator<Item = String> {
        self.repair_jobs.values().map(|job| {
            let stage = match &job.stage {
                RepairStage::Stripe(pass) => {
                    format!("pass {} over stripe {}", job.passes, pass.stripe)
                }
                RepairStage::Repaired => "tells that the stripe is repaired".to_owned(),
                RepairStage::Fencing { asked, .. } => format!("fences {asked:?}"),
                RepairStage::Repairing { life, left, pass, .. } => {
                    format!("repairs stripe {} after {life:?}, {} to come", pass.stripe, left.len())
                }
                RepairStage::Clearing(_) => "clears".to_owned(),
                RepairStage::Gathering(device) => format!("asks who is fenced, for {device}"),
                RepairStage::Handing { device, lives } => {
                    format!("tells {device} of {} fenced lives", lives.len())
                }
                RepairStage::Flushing(device) => format!("has {device} flush"),
                RepairStage::Proposing { seq, .. } => format!("proposes by try {seq}"),
                RepairStage::Installing => "installs".to_owned(),
            };
            format!("job {stage}")
        })
    }

    /// Starts what an job's stage consists of.
    fn go_on(&mut self, now: Time, id: u64) {
        let Some(job) = self.repair_jobs.get(&id) else { return };
        let serving: Vec<Peer> = self.serving_devices().map(Peer::Device).collect();
        let tell = |action: Action| {
            let to = serving.clone();
            Role::Tell { to, action, answers: Vec::new() }
        };
        // The server fences a life and frees its locks at the lock server.
        let tell_all = |action: Action| {
            let to = serving.iter().copied().chain(self.lock_server()).collect();
            Role::Tell { to, action, answers: Vec::new() }
        };
        let role = match &job.stage {
            RepairStage::Stripe(pass) | RepairStage::Repairing { pass, .. } => {
                Role::Pass(pass.clone())
            }
            RepairStage::Repaired => match (&job.work, job.op) {
                (&(Work::Scrub { stripe, .. } | Work::AcceptLoss { stripe }), Some((pass, _))) => {
                    tell(Action::Repaired { stripe, pass })
                }
                _ => return self.over(now, id, Ok(HostAnswer::Done)),
            },
            RepairStage::Fencing { asked, .. } => tell_all(Action::Fence { life: *asked }),
            RepairStage::Clearing(lives) => match lives.first() {
                Some(&life) => tell_all(Action::Clear { life }),
                None => return self.over(now, id, Ok(HostAnswer::Done)),
            },
            RepairStage::Installing => {
                // No device's condition changes when a host attaches: this waits for nobody who is away.
                let waits = !attaches(&job.work);
                let connected = |peer: &Peer| waits || self.owed.is_connected(*peer);
                let (to, away): (Vec<Peer>, Vec<Peer>) =
                    serving.iter().copied().partition(connected);
                away.into_iter().for_each(|peer| self.owed.inform_later(peer));
                let action = Action::Install(Box::new(self.state.clone()));
                Role::Tell { to, action, answers: Vec::new() }
            }
            RepairStage::Gathering(device) => {
                let good = |peer: &Peer| match peer {
                    Peer::Device(other) => other != device && self.state.is_good(*other),
                    Peer::Server => false,
                };
                let to = serving.iter().copied().filter(good).collect();
                Role::Tell { to, action: Action::ListFences, answers: Vec::new() }
            }
            RepairStage::Handing { device, .. } | RepairStage::Flushing(device)
                if self.is_out(*device) =>
            {
                let what = format!("{device} has failed again");
                return self.over(now, id, Err(OpError::State(what)));
            }
            RepairStage::Handing { device, lives } => {
                let action = Action::LearnFences { lives: lives.clone() };
                Role::Tell { to: vec![Peer::Device(*device)], action, answers: Vec::new() }
            }
            RepairStage::Flushing(device) => {
                let action = Action::Flush { newest: 0 };
                Role::Tell { to: vec![Peer::Device(*device)], action, answers: Vec::new() }
            }
            RepairStage::Proposing { .. } => return self.propose(now, id),
        };
        let task = Task::new(now, Owner::RepairJob(id), job.work.clone(), role);
        self.start(now, task);
    }

    /// A task of an job is done.
    pub(super) fn repair_job_step(
        &mut self,
        now: Time,
        id: u64,
        task: Task,
        op: Option<(OpId, Stamp)>,
        error: Option<OpError>,
    ) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        job.op = op.or(job.op);
        if let Some(error) = error {
            return self.over(now, id, Err(error));
        }
        match task.role {
            Role::Pass(pass) => self.passed(now, id, &pass),
            Role::Tell { answers, .. } => self.stage_answered(now, id, answers),
            Role::Work => {}
        }
    }

    /// Other fenced lives have left something where a job repairs: it asks the devices for their writes, too, before it goes on.
    fn repair_with(&mut self, now: Time, id: u64, unknown: &BTreeSet<Life>) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        let RepairStage::Repairing { life, known, .. } = &mut job.stage else { return };
        let mut more = unknown.clone();
        let Some(asked) = more.pop_first() else { return };
        let (life, known) = (*life, std::mem::take(known));
        self.next_stage(now, id, RepairStage::Fencing { life, asked, more, known });
    }

    fn passed(&mut self, now: Time, id: u64, pass: &Pass) {
        if !pass.unknown.is_empty() {
            return self.repair_with(now, id, &pass.unknown);
        }
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        if let RepairStage::Stripe(next) | RepairStage::Repairing { pass: next, .. } =
            &mut job.stage
        {
            // First those of one run of columns are read, until nothing is left to mend there, and then those of the next one.
            if let Some((first, end)) = pass.found.vouched {
                (next.reads_old, next.has_read_to) = (Some(first..end), end);
                return self.go_on(now, id);
            }
            if !pass.found.wrote && next.reads_old.take().is_some() {
                return self.go_on(now, id);
            }
        }
        if job.passes == 0 {
            job.found.mismatches = pass.found.mismatches;
        }
        (job.found.lost, job.found.undecided) = (pass.found.lost, pass.found.undecided);
        job.found.unreadable = pass.found.unreadable;
        job.found.missing = pass.found.missing;
        job.found.outlook = pass.found.outlook;
        job.found.marked = pass.found.marked;
        if let RepairStage::Stripe(next) = &mut job.stage {
            next.marked.clone_from(&pass.marked);
        }
        job.passes += 1;
        job.in_a_row += 1;
        let is_endless = job.in_a_row >= most_passes(&self.config.layout);
        #[cfg(feature = "mutations")]
        let is_endless = is_endless
            && self.config.mutation != Some(crate::mutation::Mutation::ReadErrorsAreForgotten);
        if pass.found.wrote && is_endless {
            let stripe = pass.stripe;
            let what = format!(
                "stripe {stripe} does not stay repaired: a device loses what it has written"
            );
            return self.over(now, id, Err(OpError::State(what)));
        }
        if pass.found.wrote {
            return self.go_on(now, id);
        }
        job.in_a_row = 0;
        match &mut job.stage {
            RepairStage::Stripe(Pass { repair: true, onto: None, .. }) => {
                job.stage = RepairStage::Repaired
            }
            RepairStage::Stripe(pass) => {
                let Found { lost, marked, .. } = job.found;
                let answer = match (pass.onto, pass.survey) {
                    (_, Some(_)) => HostAnswer::Surveyed(job.found.outlook),
                    (Some(_), None) => HostAnswer::Rebuilt { lost, marked },
                    (None, None) => job.found.answer(),
                };
                return self.over(now, id, Ok(answer));
            }
            _ => {}
        }
        if matches!(job.stage, RepairStage::Repairing { .. }) {
            return self.next_stripe(now, id);
        }
        self.go_on(now, id);
    }

    /// The next stripe that a fenced life has left.
    fn next_stripe(&mut self, now: Time, id: u64) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        if let RepairStage::Repairing { life, known, left, pass } = &mut job.stage {
            match left.pop_first() {
                None => job.stage = RepairStage::Clearing(std::mem::take(&mut known.lives)),
                Some((stripe, traces)) => {
                    *pass = Pass::after(*life, stripe, traces, known.lives.clone());
                }
            }
        }
        self.go_on(now, id);
    }

    /// All have answered what a stage asks: on to the next stage.
    fn stage_answered(&mut self, now: Time, id: u64, answers: Vec<(Peer, Answer)>) {
        if !self.repair_jobs.contains_key(&id) {
            return;
        }
        let layout = self.config.layout;
        let Gathered { left, fenced } = match Gathered::from(&layout, answers) {
            Ok(gathered) => gathered,
            // Devices have come or gone. By the new state, other devices have to be told.
            Err(Unusable::Stale(state)) => {
                self.adopt(now, *state);
                return self.go_on(now, id);
            }
            Err(Unusable::Odd(what)) => return self.over(now, id, Err(OpError::State(what))),
        };
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        match &mut job.stage {
            RepairStage::Fencing { life, asked, more, known } => {
                known.lives.insert(*asked);
                known.left.add(left);
                if let Some(next) = more.pop_first() {
                    *asked = next;
                    return self.go_on(now, id);
                }
                let (life, known) = (*life, std::mem::take(known));
                let mut left = known.left.stripes(&layout);
                if self.locks.is_some() {
                    // No other host writes under a dead host's locks at the server, so headers show everything.
                    left.values_mut().for_each(Vec::clear);
                }
                // The repair's stamp must be newer than those of all traces.
                let stamps = left.values().flatten().map(Trace::stamp);
                stamps.for_each(|stamp| self.clock.learn(stamp.time));
                let pass = Pass::over(0, true, Rule::FitParity);
                job.stage = RepairStage::Repairing { life, known, left, pass };
                self.next_stripe(now, id);
            }
            RepairStage::Clearing(lives) => {
                lives.pop_first();
                self.go_on(now, id);
            }
            RepairStage::Repaired => {
                let answer = job.found.answer();
                self.over(now, id, Ok(answer));
            }
            RepairStage::Installing => match job.work {
                Work::Change { change: Change::Rebuild(device) | Change::Return(device, ..) } => {
                    self.next_stage(now, id, RepairStage::Gathering(device));
                }
                _ => self.over(now, id, Ok(HostAnswer::Done)),
            },
            RepairStage::Gathering(device) => {
                let life = |(host, incarnation)| Life { host, incarnation };
                let lives = fenced.into_iter().map(life).collect();
                // The device learns all fences before its rebuild, so that no late write of a
                // fenced life lands there.
                let stage = RepairStage::Handing { device: *device, lives };
                self.next_stage(now, id, stage);
            }
            RepairStage::Flushing(_) => match job.work.clone() {
                Work::Change { change } => {
                    let stage = self.proposing(id, change);
                    self.next_stage(now, id, stage);
                }
                _ => self.over(now, id, Ok(HostAnswer::Done)),
            },
            _ => self.over(now, id, Ok(HostAnswer::Done)),
        }
    }

    /// Returns true if a repair job tells devices a state that is agreed on.
    pub(super) fn is_installing(&self, id: u64) -> bool {
        let job = self.repair_jobs.get(&id);
        job.is_some_and(|job| matches!(job.stage, RepairStage::Installing))
    }

    /// A connection has broken: that a host has attached, this device learns later.
    pub(super) fn not_informed(&mut self, now: Time, peer: Peer) {
        let installs = |task: &Option<Task>| {
            task.as_ref().is_some_and(|task| {
                let tells = matches!(task.role, Role::Tell { action: Action::Install(_), .. });
                tells && attaches(&task.work)
            })
        };
        let all = self.tries.iter().filter(|(_, this)| installs(&this.task));
        for seq in all.map(|(seq, _)| *seq).collect::<Vec<_>>() {
            self.skip(now, seq, |other| other == peer);
        }
    }

    /// A try goes on without those who have not answered.
    pub(super) fn skip_unanswered(&mut self, now: Time, seq: u64) {
        self.skip(now, seq, |_| true);
    }

    fn skip(&mut self, now: Time, seq: u64, whom: impl Fn(Peer) -> bool) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        for sibling in this.siblings.iter_mut().filter(|sibling| whom(sibling.peer)) {
            if sibling.out.take().is_some() {
                self.owed.inform_later(sibling.peer);
            }
        }
        self.phase_ends(now, seq);
    }

    fn next_stage(&mut self, now: Time, id: u64, stage: RepairStage) {
        if let Some(job) = self.repair_jobs.get_mut(&id) {
            job.stage = stage;
        }
        self.go_on(now, id);
    }

    /// Another attempt at having a change accepted.
    pub(super) fn propose(&mut self, now: Time, id: u64) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        if let RepairStage::Proposing { proposer, .. } = &mut job.stage {
            let learned = proposer.learn(self.state.clone());
            let step = learned.unwrap_or_else(|| proposer.again());
            self.proposer_step(now, id, step);
        }
    }

    fn proposer_step(&mut self, now: Time, id: u64, step: Step) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        let RepairStage::Proposing { proposer, seq } = &mut job.stage else { return };
        let asked = std::mem::take(seq);
        let known = proposer.state().clone();
        let work = job.work.clone();
        self.tries.remove(&asked);
        match step {
            Step::AskAll(ask) => {
                let voters = self.config.layout.devices() + self.config.witnesses;
                let to = (0..voters).map(|voter| Peer::Device(DeviceId(voter))).collect();
                let action = Action::Agree(ask);
                let role = Role::Tell { to, action, answers: Vec::new() };
                let seq = self.next_seq;
                if let Some(job) = self.repair_jobs.get_mut(&id)
                    && let RepairStage::Proposing { seq: asked, .. } = &mut job.stage
                {
                    *asked = seq;
                }
                self.start(now, Task::new(now, Owner::RepairJob(id), work, role));
            }
            Step::BackOff(attempts) => {
                let wait = self.backoff(attempts);
                self.at(now.saturating_add(wait), Later::Propose { job: id });
            }
            Step::Refused(why) => {
                self.adopt(now, known.clone());
                self.tell_entering_device(now, &work);
                self.over(now, id, Err(why));
            }
            Step::Chosen(state) => {
                if let Some(job) = self.repair_jobs.get_mut(&id) {
                    job.stage = RepairStage::Installing;
                }
                self.adopt(now, state);
                self.tell_entering_device(now, &work);
                self.go_on(now, id);
            }
        }
        self.adopt(now, known);
    }

    /// A device that is out is not informed with the others. It asks to be let in until it knows; or until it knows why not.
    fn tell_entering_device(&mut self, now: Time, work: &Work) {
        if let Work::Change { change: Change::LetIn(device, _) } = work {
            self.install_at(now, Peer::Device(*device));
        }
    }

    /// A peer has answered what a repair told it.
    pub(super) fn repair_job_heard(&mut self, now: Time, id: u64, seq: u64) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        let RepairStage::Proposing { proposer, seq: asked } = &mut job.stage else {
            return self.phase_ends(now, seq);
        };
        if *asked != seq {
            return;
        }
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(Task { role: Role::Tell { answers, .. }, .. }) = &mut this.task else { return };
        let Some((peer, answer)) = answers.pop() else { return };
        let (Peer::Device(voter), Answer::Agreed(answer)) = (peer, answer) else { return };
        let answer = *answer;
        if let Agreed::Missing(_) = answer {
            return self.teach(now, peer, seq);
        }
        let step = proposer.answer(voter, answer);
        if let Some(step) = step {
            return self.proposer_step(now, id, step);
        }
        if proposer.is_unsure() {
            let until = now.saturating_add(self.config.lease);
            self.at(until, Later::Decide { job: id, seq });
        }
        // All have answered, and there is no majority for anything.
        if self.tries.get(&seq).is_some_and(|this| this.phase_done()) {
            let wait = self.backoff(1);
            self.at(now.saturating_add(wait), Later::Propose { job: id });
        }
    }

    /// The votes so far count, whoever else has a better memory.
    pub(super) fn decide(&mut self, now: Time, id: u64, seq: u64) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        let RepairStage::Proposing { proposer, seq: asked } = &mut job.stage else { return };
        if *asked == seq
            && let Some(step) = proposer.wait_no_more()
        {
            self.proposer_step(now, id, step);
        }
    }

    /// A voter does not know the state that the next one is to follow: it is told, and asked again.
    fn teach(&mut self, now: Time, peer: Peer, seq: u64) {
        self.install_at(now, peer);
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(Task { role: Role::Tell { action, .. }, .. }) = &this.task else { return };
        let action = action.clone();
        if let Some(index) = this.siblings.iter().position(|sibling| sibling.peer == peer) {
            let request = this.ask(index, action, false);
            self.send(now, vec![request]);
        }
    }

    fn over(&mut self, now: Time, id: u64, result: Result<HostAnswer, OpError>) {
        if let Some(job) = self.repair_jobs.remove(&id) {
            if let RepairStage::Proposing { seq, .. } = job.stage {
                self.tries.remove(&seq);
            }
            self.repair_job_over(now, job, result);
        }
    }

    /// Why a write that has this stripe looked at is not there as a whole. It is not done again: others may have seen the part that
    /// is there, and have come over it since (docs/design/array.md 3.4).
    fn is_in_part(&self, task: &Task, stripe: u64, found: &Found) -> Option<OpError> {
        let block =
            |unit: u16, column: u32| self.config.layout.logical(stripe, unit) + u64::from(column);
        match (found.missing, found.undecided) {
            // What parity alone had is gone.
            (Some((unit, column)), _) if !task.unheld.is_empty() => {
                Some(OpError::Lost { block: block(unit, column) })
            }
            (Some((unit, column)), _) => Some(OpError::Medium { block: block(unit, column) }),
            (None, 0) => None,
            (None, _) => Some(OpError::Medium { block: block(0, 0) }),
        }
    }

    pub(super) fn repair_job_over(
        &mut self,
        now: Time,
        job: RepairJob,
        result: Result<HostAnswer, OpError>,
    ) {
        match (job.done, result) {
            (Then::Answer(ticket), result) => {
                self.output.push_back(HostOutput::Done { ticket, op: job.op, result });
            }
            (Then::Resume(mut task), Ok(answer)) => {
                let stays = job.found.unreadable || matches!(answer, HostAnswer::Undecided { .. });
                if let (true, Work::Scrub { stripe, .. }) = (stays, &job.work) {
                    task.left_bad.insert(*stripe);
                }
                if let (true, Work::Scrub { stripe, .. }) = (task.looks.is_some(), &job.work)
                    && let Some(error) = self.is_in_part(&task, *stripe, &job.found)
                {
                    return self.fail_task(now, *task, error);
                }
                self.start(now, *task);
            }
            (Then::Flush(task), Ok(_)) => {
                if let Work::Scrub { stripe, .. } = job.work {
                    self.looked_at(now, *task, stripe, job.found.missing);
                }
            }
            (Then::Resume(task), Err(error @ OpError::Unreachable(_))) => {
                self.repair_was_late(now, *task, &job.work, &error);
            }
            (Then::Resume(task) | Then::Flush(task), Err(error)) => {
                self.fail_task(now, *task, error);
            }
            (Then::Nobody, _) => {}
        }
    }
}
