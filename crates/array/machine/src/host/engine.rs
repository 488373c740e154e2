//! The way of a host operation, the same for every scheme.
//!
//! ```text
//! submit -> start -> [Gate]    a lock server is asked for all locks, if the scheme has one (`server_locks.rs`)
//!                    [First]   siblings lock, pre-write and read
//!                              -> given up and started again, with a new id and stamp
//!                    [Second]  siblings write
//!                              -> a part was refused: another try goes on from here (`changes.rs`), this one is [Superseded]
//!                    [Last]    the caller has its answer; locks are released, or abandoned requests are cancelled
//! ```

use std::collections::BTreeSet;

use rand::RngExt as _;

use super::control::{Context, Control};
use super::job::{self, New, Unfit};
use super::overdue;
use super::repair::Pass;
use super::unflushed::Flush;
use super::{ArrayHost, HostOutput};
use crate::message::{Action, Answer, Blocks, Call, Content, Past, Request};
use crate::plan::{self, Columns, Plan, WriteRules};
use crate::{DeviceId, Epoch, HostAnswer, OpError, OpId, Peer, Scheme, Stamp, Ticket, Time, Work};

/// Where a try is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Before phase 1: requests to a lock server.
    Gate,
    /// Phase 1.
    First,
    /// Phase 2.
    Second,
    /// It has written a part, and another try continues the operation. It keeps its locks and pre-writes until that try is
    /// done.
    Superseded,
    /// Nobody waits for it any more but its own last messages.
    Last,
}

/// The recipient of a task's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Caller(Ticket),
    /// The host itself flushes.
    Own,
    /// The caller has had an error already. What is written in part goes on (`overdue.rs`).
    Answered(Ticket),
    /// A repair that consists of several tasks.
    RepairJob(u64),
}

/// The purpose of a task.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Its work, as the caller wants it.
    Work,
    /// One pass of a repair.
    Pass(Pass),
    /// Send the same to all of these peers, and gather their answers.
    Tell { to: Vec<Peer>, action: Action, answers: Vec<(Peer, Answer)> },
}

/// A piece of work, from one try to the next.
pub(super) struct Task {
    pub owner: Owner,
    pub work: Work,
    pub role: Role,
    pub since: Time,
    pub restarts: u32,
    pub rejections: u32,
    pub denials: u32,
    pub delayed: bool,
    /// Stripes of which parts are written: parity need not fit (docs/design/array.md 3.4).
    pub parity_unfit: BTreeSet<u64>,
    /// The tries that wrote them.
    pub superseded: Vec<u64>,
    /// Repairs that it needed before it could go on.
    pub repairs: u32,
    /// Stripes in which such a repair has left a block that is bad: nobody knows which one is right, or its medium does not return it.
    pub left_bad: BTreeSet<u64>,
    /// Why it fails, while the stripes that it has written in part are repaired.
    pub failed: Option<OpError>,
    /// Stripes to look at, as long as its last try may be there as a whole. Then it is done.
    pub looks: Option<BTreeSet<u64>>,
    /// Parts that parity has got and their devices may not have, which have left since. Parity says so before the write is answered.
    pub unheld: Vec<Unheld>,
    /// If it is a flush that has begun.
    pub flush: Option<Flush>,
}

/// A part of a write that its device has not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unheld {
    pub stripe: u64,
    /// The data unit.
    pub unit: u16,
    pub columns: Columns,
}

impl Unheld {
    /// That of one block.
    pub fn block(stripe: u64, unit: usize, column: u32) -> Unheld {
        let unit = u16::try_from(unit).unwrap_or(u16::MAX);
        Unheld { stripe, unit, columns: column..column.saturating_add(1) }
    }
}

/// The known state of a sibling at its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// No lock and no pre-write.
    Nothing,
    /// Maybe some, maybe a waiting request.
    Unknown,
    /// Everything that phase 1 requested.
    All,
}

/// Why a sibling of phase 2 has not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The array's state is newer. Lock or pre-write are still there.
    Epoch,
    /// The device has forgotten lock or pre-write.
    Forgotten,
    /// The device has restarted, and the stripe is to be repaired first: by schemes whose locks are elsewhere.
    Suspect { stripe: u64 },
    /// The device is out of the array.
    Gone,
    /// The device's medium does not take the blocks.
    Unwritable,
}

/// A request without an answer yet.
pub(super) struct Out {
    pub step: u8,
    pub action: Action,
    /// The caller does not wait for it.
    pub hidden: bool,
}

pub(super) struct Sibling {
    pub peer: Peer,
    /// Its access in the plan; none if the work has none.
    pub access: bool,
    pub out: Option<Out>,
    pub steps: u8,
    pub held: Held,
    pub refused: Option<Refused>,
    /// It has blocks to write.
    pub writes: bool,
    /// The device's start that has answered last.
    pub boot: Option<u64>,
    /// The blocks that it writes, until that is done.
    pub blocks: Option<Blocks>,
}

pub(super) struct Try {
    pub id: OpId,
    pub stamp: Stamp,
    pub epoch: Epoch,
    /// None when its caller has been answered or another try goes on.
    pub task: Option<Task>,
    pub plan: Plan,
    pub phase: Phase,
    pub past: Past,
    /// Those of the plan's accesses, in its order, then others.
    pub siblings: Vec<Sibling>,
    /// The content that the siblings have read.
    pub contents: Vec<Option<Content>>,
}

/// A request, and whom it is for.
type Asked = (Peer, Request);

impl Try {
    /// Returns true if the caller has nothing to wait for in this phase.
    pub fn phase_done(&self) -> bool {
        self.siblings.iter().all(|s| s.out.as_ref().is_none_or(|out| out.hidden))
    }

    /// Returns true if it is a pass of a repair.
    pub fn repairs(&self) -> bool {
        self.task.as_ref().is_some_and(|task| matches!(task.role, Role::Pass(_)))
    }

    /// Notes a peer's additional findings.
    pub fn note(&mut self, found: Vec<(Peer, Answer)>) {
        if let Some(Task { role: Role::Tell { answers, .. }, .. }) = &mut self.task {
            answers.extend(found);
        }
    }

    pub fn quiet(&self) -> bool {
        self.siblings.iter().all(|s| s.out.is_none())
    }

    /// Returns true if nothing of it is left: no caller, and no request without an answer.
    fn is_over(&self) -> bool {
        self.phase == Phase::Last && self.task.is_none() && self.quiet()
    }

    /// The requests of phase 1.
    fn begin_first(&mut self, asked: Vec<(usize, Action)>) -> Vec<Asked> {
        let asked = asked.into_iter().map(|(index, action)| {
            self.siblings[index].held = Held::Unknown;
            self.ask(index, action, false)
        });
        asked.collect()
    }

    /// Begins phase 2: the requests that write these blocks, or that end what phase 1 has begun.
    fn begin_second(&mut self, control: &dyn Control, writes: Vec<Option<Blocks>>) -> Vec<Asked> {
        self.phase = Phase::Second;
        self.contents.clear();
        let repairs = self.repairs();
        let mut requests = Vec::new();
        for (index, blocks) in writes.into_iter().enumerate() {
            let sibling = &mut self.siblings[index];
            sibling.writes = blocks.is_some();
            sibling.blocks.clone_from(&blocks);
            let access = &self.plan.accesses[index];
            let Some(second) = control.second(access, blocks, repairs) else { continue };
            if second.hidden {
                sibling.held = Held::Nothing;
            }
            requests.push(self.ask(index, second.action, second.hidden));
        }
        requests
    }

    /// Ends it early: the requests that tell devices so. A failed device gets none: nobody would answer, and its
    /// locks are gone with it.
    fn take_back(
        &mut self,
        control: &dyn Control,
        has_failed: impl Fn(DeviceId) -> bool,
    ) -> Vec<Asked> {
        self.phase = Phase::Last;
        let mut requests = Vec::new();
        for index in 0..self.siblings.len() {
            let sibling = &mut self.siblings[index];
            if sibling.held == Held::Nothing {
                if sibling.out.as_ref().is_some_and(|out| !out.hidden) {
                    sibling.out = None;
                }
                continue;
            }
            let answered = sibling.held == Held::All;
            sibling.held = Held::Nothing;
            sibling.out = None;
            let Some(access) = self.plan.accesses.get(index) else { continue };
            if has_failed(access.device) {
                continue;
            }
            if let Some(action) = control.give_up(access, answered) {
                requests.push(self.ask(index, action, true));
            }
        }
        requests
    }

    /// Gives a sibling its next request.
    pub fn ask(&mut self, index: usize, action: Action, hidden: bool) -> Asked {
        let sibling = &mut self.siblings[index];
        sibling.steps = sibling.steps.wrapping_add(1);
        sibling.out = Some(Out { step: sibling.steps, action: action.clone(), hidden });
        self.request(index, self.siblings[index].steps, action)
    }

    /// A sibling's request that has no answer yet.
    fn unanswered(&self, index: usize) -> Option<Asked> {
        let Out { step, action, .. } = self.siblings[index].out.as_ref()?;
        Some(self.request(index, *step, action.clone()))
    }

    fn request(&self, index: usize, step: u8, action: Action) -> Asked {
        let call = Call { op: self.id, sibling: index as u32, step };
        let request = Request { call, stamp: self.stamp, epoch: self.epoch, action };
        (self.siblings[index].peer, request)
    }
}

/// A task for a later time.
pub(super) enum Later {
    /// Start a task again.
    Start(Box<Task>),
    /// Repair a stripe, then start a task again.
    Repair { task: Box<Task>, stripe: u64 },
    /// Try again to have a change of the array's state accepted.
    Propose { job: u64 },
    /// Decide a vote without those who have not answered.
    Decide { job: u64, seq: u64 },
    /// Ask a sibling's device again, unless the step has been answered.
    Again { seq: u64, sibling: usize, step: u8 },
}

impl Task {
    pub fn new(now: Time, owner: Owner, work: Work, role: Role) -> Self {
        Task {
            owner,
            work,
            role,
            since: now,
            restarts: 0,
            rejections: 0,
            denials: 0,
            delayed: false,
            parity_unfit: BTreeSet::new(),
            superseded: Vec::new(),
            repairs: 0,
            left_bad: BTreeSet::new(),
            failed: None,
            looks: None,
            unheld: Vec::new(),
            flush: None,
        }
    }
}

impl ArrayHost {
    pub(super) fn submit(&mut self, now: Time, ticket: Ticket, work: Work) {
        self.watch(now);
        #[cfg(feature = "mutations")]
        let work = self.with_own_copy(work);
        match work {
            Work::Read { .. } | Work::Write { .. } | Work::Patch { .. } | Work::Flush => {
                self.start(now, Task::new(now, Owner::Caller(ticket), work, Role::Work));
            }
            Work::Scrub { .. }
            | Work::AcceptLoss { .. }
            | Work::Rebuild { .. }
            | Work::Survey { .. }
            | Work::Fence { .. }
            | Work::Change { .. } => self.run_repair_job(now, ticket, work),
        }
    }

    /// Begins a try of a task.
    pub(super) fn start(&mut self, now: Time, mut task: Task) {
        if self.fenced {
            return self.done(now, task, None, Err(OpError::Fenced));
        }
        if let Some(error) = task.failed.take() {
            return self.fail_task(now, task, error);
        }
        if let Some(looks) = &mut task.looks {
            return match looks.pop_first() {
                Some(stripe) => self.repair_first(now, task, stripe),
                None => self.is_there(now, task),
            };
        }
        if matches!((&task.role, &task.work), (Role::Work, Work::Flush)) {
            task.flush.get_or_insert_with(|| self.begin_flush());
        }
        let plan = match self.plan(&task) {
            Ok(plan) => plan,
            Err(error) => return self.fail_task(now, task, error),
        };
        if let Some(error) = self.is_hopeless(now, &task, &self.peers_of(&task, &plan)) {
            return self.fail_task(now, task, error);
        }
        let id = OpId { life: self.config.life, seq: self.next_seq };
        self.next_seq += 1;
        let stamp = self.clock.stamp(now);
        let past = match &task.role {
            Role::Pass(pass) => pass.past.clone(),
            _ => self.past_tries(&task),
        };
        let sibling = |peer, access| Sibling {
            peer,
            access,
            out: None,
            steps: 0,
            held: Held::Nothing,
            refused: None,
            writes: false,
            boot: None,
            blocks: None,
        };
        let accesses =
            plan.accesses.iter().map(|access| sibling(Peer::Device(access.device), true));
        let mut siblings: Vec<_> = accesses.collect();
        let told = match (&task.role, &task.work) {
            (Role::Tell { to, action, .. }, _) => Some((to.clone(), action.clone())),
            (Role::Work, Work::Flush) => {
                let newest = self.clock.newest();
                Some((self.serving_devices().map(Peer::Device).collect(), Action::Flush { newest }))
            }
            _ => None,
        };
        let peers = told.iter().flat_map(|(to, _)| to);
        siblings.extend(peers.map(|peer| sibling(*peer, false)));
        let contents = vec![None; siblings.len()];
        let epoch = self.state.since;
        let phase = Phase::First;
        let task = Some(task);
        let this = Try { id, stamp, epoch, task, plan, phase, past, siblings, contents };
        self.tries.insert(id.seq, this);
        match told {
            Some((_, action)) => self.start_second_phase(now, id.seq, &action),
            None => self.gate(now, id.seq),
        }
    }

    /// The peers that a task needs.
    fn peers_of(&self, task: &Task, plan: &Plan) -> Vec<Peer> {
        match task.work {
            Work::Flush => self.serving_devices().map(Peer::Device).collect(),
            _ => plan.accesses.iter().map(|access| Peer::Device(access.device)).collect(),
        }
    }

    /// Past the earlier tries of a task, which have written a part.
    pub(super) fn past_tries(&self, task: &Task) -> Past {
        let life = self.config.life;
        let tries: Vec<_> = task.superseded.iter().map(|&seq| OpId { life, seq }).collect();
        if tries.is_empty() { Past::Nobody } else { Past::Tries(tries) }
    }

    pub(super) fn serving_devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let serving = self.state.conditions().filter(|(_, condition)| !condition.is_out());
        serving.map(|(device, _)| device).collect::<Vec<_>>().into_iter()
    }

    /// Which siblings a task has in the array's present state.
    fn plan(&self, task: &Task) -> Result<Plan, OpError> {
        let plan = self.sound_plan(task)?;
        #[cfg(feature = "mutations")]
        let plan = Plan { mutation: self.config.mutation, ..plan };
        Ok(plan)
    }

    fn sound_plan(&self, task: &Task) -> Result<Plan, OpError> {
        let layout = &self.config.layout;
        match &task.role {
            Role::Pass(pass) => return pass.plan(layout, &self.state),
            Role::Tell { .. } => return Ok(Plan::default()),
            Role::Work => {}
        }
        if let Work::Read { span } = task.work {
            return plan::read(layout, &self.state, span);
        }
        let Some(new) = New::of(layout, &task.work) else { return Ok(Plan::default()) };
        let new = new?;
        let rules = WriteRules {
            delta_at_half: self.config.delta_at_half,
            parity_unfit: task.parity_unfit.clone(),
            partial_start: new.partial_start(),
            partial_end: new.partial_end(),
        };
        plan::write(layout, &self.state, new.span, &rules)
    }

    fn start_second_phase(&mut self, now: Time, seq: u64, action: &Action) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        this.phase = Phase::Second;
        let all = 0..this.siblings.len();
        let requests = all.map(|index| this.ask(index, action.clone(), false)).collect();
        self.send(now, requests);
        self.phase_ends(now, seq);
    }

    pub(super) fn first(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        this.phase = Phase::First;
        let task = this.task.as_ref();
        let context = Context {
            layout: &self.config.layout,
            past: &this.past,
            repairs: this.repairs(),
            starving: task.is_some_and(|t| t.rejections >= self.config.starving_after),
            patience: self.patience.current(),
        };
        let accesses = this.plan.accesses.iter().enumerate();
        let ask = |(index, access)| Some((index, self.control.first(&context, access)?));
        let asked = accesses.filter_map(ask).collect();
        let requests = this.begin_first(asked);
        self.send(now, requests);
        self.phase_ends(now, seq);
    }

    /// Goes on if the caller has nothing to wait for in this phase.
    pub(super) fn phase_ends(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get(&seq) else { return };
        if !this.phase_done() {
            return;
        }
        match this.phase {
            Phase::First => self.second(now, seq),
            Phase::Second if this.siblings.iter().any(|s| s.refused.is_some()) => {
                self.mend(now, seq);
            }
            Phase::Second if this.task.as_ref().is_some_and(|task| task.flush.is_some()) => {
                self.devices_flushed(now, seq);
            }
            Phase::Second if this.task.as_ref().is_some_and(|task| !task.unheld.is_empty()) => {
                self.disavow(now, seq);
            }
            Phase::Second => self.finish(now, seq, Ok(HostAnswer::Done)),
            Phase::Gate | Phase::Superseded | Phase::Last => self.tidy(seq),
        }
    }

    fn second(&mut self, now: Time, seq: u64) {
        if !self.lease_lasts(now, seq) {
            return self.restart(now, seq, 0);
        }
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let passes = this.repairs();
        if self.config.scheme.locks() {
            // An operation's place in the order is the moment when it has all its locks. This stamp is newer than the stamps
            // that devices have reported and that repairs find. With the stamp of its beginning it would look older than writes
            // that were done while it waited.
            let contents = this.contents.iter().flatten().filter(|_| passes);
            let headers = contents.flat_map(|content| &content.headers);
            headers.for_each(|header| self.clock.learn(header.stamp.time));
            this.stamp = self.clock.stamp(now);
        }
        let (plan, contents) = (&this.plan, &this.contents);
        let layout = &self.config.layout;
        if !job::complete(layout, plan, contents) {
            let error = OpError::State("a device answered with the wrong number of blocks".into());
            return self.fail(now, seq, error);
        }
        let Some(task) = &mut this.task else { return };
        if let Role::Pass(pass) = &mut task.role {
            // Under a lock server's locks, headers show what fenced lives have left.
            if self.locks.is_none() && pass.meets_unknown(contents) {
                self.give_up(now, seq);
                return self.finish(now, seq, Ok(HostAnswer::Done));
            }
            #[cfg(feature = "mutations")]
            {
                let any = crate::mutation::Mutation::VouchesForAnyMedium;
                pass.vouches_for_any = self.config.mutation == Some(any);
            }
            let writes = pass.writes(layout, plan, contents, this.stamp);
            return self.write_all(now, seq, None, writes);
        }
        // A try that continues another one sees what that one has written in part. Without control, everybody sees such.
        if task.superseded.is_empty()
            && self.config.scheme != Scheme::ZeroOverhead
            && let Err(unfit) = job::fits(layout, plan, contents)
        {
            return self.unfit(now, seq, unfit);
        }
        let none = || vec![None; plan.accesses.len()];
        let result = match (&task.work, New::of(layout, &task.work)) {
            (Work::Read { .. }, _) => job::answer(layout, plan, contents)
                .map(|data| (Some(HostAnswer::Read { data }), none())),
            (_, Some(Ok(new))) => {
                job::writes(layout, plan, contents, this.stamp, &new).map(|writes| (None, writes))
            }
            (_, Some(Err(error))) => Err(Unfit::Fail(error)),
            (_, None) => Ok((Some(HostAnswer::Done), none())),
        };
        match result {
            Ok((answer, writes)) => self.write_all(now, seq, answer, writes),
            Err(unfit) => self.unfit(now, seq, unfit),
        }
    }

    /// Phase 2. It does not delay siblings that are already answered.
    fn write_all(
        &mut self,
        now: Time,
        seq: u64,
        answer: Option<HostAnswer>,
        writes: Vec<Option<Blocks>>,
    ) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let requests = this.begin_second(&*self.control, writes);
        self.send(now, requests);
        #[cfg(feature = "mutations")]
        if self.mutated(crate::mutation::Mutation::UnlockBeforeWritten) {
            self.release(now, seq);
        }
        match answer {
            Some(answer) => self.finish(now, seq, Ok(answer)),
            None => self.phase_ends(now, seq),
        }
    }

    fn unfit(&mut self, now: Time, seq: u64, unfit: Unfit) {
        match unfit {
            Unfit::Fail(error) => self.fail(now, seq, error),
            Unfit::Repair { stripe, block } => {
                let task = self.tries.get(&seq).and_then(|this| this.task.as_ref());
                if task.is_some_and(|task| task.left_bad.contains(&stripe)) {
                    return self.fail(now, seq, OpError::Medium { block });
                }
                self.repair_needed(now, seq, stripe);
            }
        }
    }

    /// Answers the caller. The try's remaining messages to devices do not concern the caller.
    pub(super) fn finish(&mut self, now: Time, seq: u64, result: Result<HostAnswer, OpError>) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        this.phase = Phase::Last;
        let Some(task) = this.task.take() else { return };
        if result.is_ok() {
            self.patience.observe(now.saturating_sub(task.since));
        }
        let (id, stamp) = (this.id, this.stamp);
        if matches!(task.role, Role::Work) && result.is_ok() {
            self.note_written(now, seq, &task.work);
        }
        self.release(now, seq);
        self.done(now, task, Some((id, stamp)), result);
        self.tidy(seq);
    }

    /// A try's write is there. It may have to be flushed.
    pub(super) fn note_written(&mut self, now: Time, seq: u64, work: &Work) {
        let Some(Ok(new)) = New::of(&self.config.layout, work) else { return };
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let (stamp, siblings) = (this.stamp, std::mem::take(&mut this.siblings));
        self.note_unflushed(now, new.span, stamp, &siblings);
        if let Some(this) = self.tries.get_mut(&seq) {
            this.siblings = siblings;
        }
    }

    pub(super) fn done(
        &mut self,
        now: Time,
        task: Task,
        op: Option<(OpId, Stamp)>,
        result: Result<HostAnswer, OpError>,
    ) {
        let counted = matches!((task.owner, &task.role), (Owner::Caller(_), Role::Work));
        self.counts.done += u64::from(counted);
        self.counts.delayed += u64::from(counted && task.delayed);
        self.counts.failed += u64::from(counted && result.is_err());
        for &seq in &task.superseded {
            self.give_up(now, seq);
        }
        match task.owner {
            Owner::Caller(ticket) => {
                self.output.push_back(HostOutput::Done { ticket, op, result });
            }
            Owner::Answered(_) => {}
            Owner::RepairJob(id) => self.repair_job_step(now, id, task, op, result.err()),
            Owner::Own => self.own_flush_done(&result),
        }
    }

    /// Ends a task with an error. It gives its locks up when the stripes that it has written in part are repaired. Otherwise another
    /// host's read-modify-write would continue from parity that does not fit, and hide that (docs/design/array.md 3.4).
    pub(super) fn fail_task(&mut self, now: Time, mut task: Task, error: OpError) {
        let error = task.failed.take().unwrap_or(error);
        if !self.fenced
            && let Some(stripe) = task.parity_unfit.pop_first()
        {
            task.failed = Some(error);
            return self.repair_first(now, task, stripe);
        }
        let op = task.superseded.last().and_then(|seq| self.tries.get(seq));
        let op = op.map(|this| (this.id, this.stamp));
        self.done(now, task, op, Err(error));
    }

    pub(super) fn fail(&mut self, now: Time, seq: u64, error: OpError) {
        // First, because a try without a waiting caller is forgotten, and its locks with it.
        self.give_up(now, seq);
        let Some(this) = self.tries.get_mut(&seq) else { return };
        if let Some(task) = this.task.take_if(|task| !task.parity_unfit.is_empty()) {
            self.tidy(seq);
            return self.fail_task(now, task, error);
        }
        self.finish(now, seq, Err(error));
    }

    /// Takes back a try, and starts its task again after a time.
    pub(super) fn restart(&mut self, now: Time, seq: u64, delay: Time) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(mut task) = this.task.take() else { return };
        self.give_up(now, seq);
        self.counts.restarts += 1;
        task.restarts += 1;
        task.delayed = true;
        if delay == 0 {
            self.start(now, task);
        } else {
            self.at(now.saturating_add(delay), Later::Start(Box::new(task)));
        }
    }

    /// Tells devices that phase 1 of a try will not be followed by phase 2.
    pub(super) fn give_up(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let state = &self.state;
        let has_failed = |device| state.is_failed(device);
        let requests = this.take_back(&*self.control, has_failed);
        self.send(now, requests);
        self.release(now, seq);
        self.tidy(seq);
    }

    /// Forgets a try of which nothing is left.
    pub(super) fn tidy(&mut self, seq: u64) {
        if self.tries.get(&seq).is_some_and(Try::is_over) {
            self.tries.remove(&seq);
        }
    }

    /// A random time to wait before the next try: up to the configured one, doubled by every earlier time.
    pub(super) fn backoff(&mut self, earlier: u32) -> Time {
        let longest = self.config.backoff.saturating_mul(1 << earlier.min(10)).max(1);
        self.random.random_range(1..=longest)
    }

    pub(super) fn at(&mut self, time: Time, later: Later) {
        self.next_later += 1;
        self.later.insert((time, self.next_later), later);
    }

    /// Sends a sibling's request again.
    pub(super) fn transmit(&mut self, now: Time, seq: u64, index: usize) {
        let request = self.tries.get(&seq).and_then(|this| this.unanswered(index));
        self.send(now, request.into_iter().collect());
    }

    pub(super) fn send(&mut self, now: Time, requests: Vec<Asked>) {
        for (peer, request) in requests {
            if peer == Peer::Server {
                self.tell_server(&request.action);
                continue;
            }
            self.counts.requests += 1;
            let Call { op, sibling, .. } = request.call;
            let this = self.tries.get(&op.seq);
            let sibling = this.and_then(|this| this.siblings.get(sibling as usize));
            if sibling.is_some_and(overdue::is_about_blocks) {
                self.owed.asked(now, peer);
            }
            self.post(now, peer, request);
        }
    }

    pub(super) fn outstanding(&self, wanted: impl Fn(&Sibling) -> bool) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        for (seq, this) in &self.tries {
            for (index, sibling) in this.siblings.iter().enumerate() {
                if sibling.out.is_some() && wanted(sibling) {
                    found.push((*seq, index));
                }
            }
        }
        found
    }

    /// Does the work that is due.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Later::Start(task) => self.start(now, *task),
                Later::Repair { task, stripe } => self.repair_first(now, *task, stripe),
                Later::Propose { job } => self.propose(now, job),
                Later::Decide { job, seq } => self.decide(now, job, seq),
                Later::Again { seq, sibling, step } => {
                    let current =
                        self.tries.get(&seq).and_then(|t| t.siblings[sibling].out.as_ref());
                    if current.is_some_and(|out| out.step == step) {
                        self.transmit(now, seq, sibling);
                    }
                }
            }
        }
        self.end_waiting(now);
        self.settle(now);
        self.renew(now);
        self.keep_locks(now);
    }
}
