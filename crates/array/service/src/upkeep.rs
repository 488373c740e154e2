//! Work on all stripes of an array: scrubs and rebuilds.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, Change, Condition, DeviceId, OpError};

use lockify_trust::Identity;

use crate::ArrayFile;
use crate::host::{Array, Rebuilt, Repair, Scrubbed};
pub use crate::pace::{Pace, wait_until};
use crate::status::{Answers, ask};

/// Stripes between two notes of how far a rebuild has come.
const BATCH: u64 = 256;
/// The last stripe of a rebuild: all are done.
const ALL: u64 = u64::MAX;

/// The findings of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Stripes that were checked.
    pub stripes: u64,
    /// Those whose blocks did not fit.
    pub unfit: u64,
    /// Those of them that are as they were, because nobody knows which block is right.
    pub undecided: u64,
    /// Blocks whose content is lost.
    pub lost: u64,
    /// Stripes that could not be checked.
    pub failed: u64,
}

/// What a scrub has found, and where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrub {
    /// The findings.
    pub found: Found,
    /// Stripes whose blocks did not fit.
    pub unfit: Stripes,
    /// Those of them that are as they were.
    pub undecided: Stripes,
    /// Stripes that have lost blocks.
    pub lost: Stripes,
    /// Stripes that could not be checked.
    pub failed: Stripes,
    /// The first reason for that, with the stripe's number.
    pub failure: Option<(u64, OpError)>,
    /// The first stripe that was left out, if it was stopped.
    pub next: Option<u64>,
}

impl Scrub {
    fn add(&mut self, stripe: u64, scrubbed: Scrubbed) {
        self.found.add(scrubbed);
        if scrubbed.is_unfit() {
            self.unfit.add(stripe);
        }
        if scrubbed.undecided > 0 {
            self.undecided.add(stripe);
        }
        if scrubbed.lost > 0 {
            self.lost.add(stripe);
        }
    }
}

/// The numbers of some stripes: all of them, or the first thousand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stripes {
    /// How many.
    pub count: u64,
    /// The first ones.
    pub first: BTreeSet<u64>,
}

/// The most stripes whose numbers are kept.
const KEPT: usize = 1000;

impl Stripes {
    fn add(&mut self, stripe: u64) {
        self.count += 1;
        self.first.insert(stripe);
        if self.first.len() > KEPT {
            self.first.pop_last();
        }
    }

    /// The first numbers, for people.
    pub fn text(&self) -> String {
        named(self.first.iter(), self.count)
    }
}

/// The first of `count` stripes, by number.
fn named<'a>(stripes: impl Iterator<Item = &'a u64>, count: u64) -> String {
    let named: Vec<String> = stripes.take(NAMED).map(u64::to_string).collect();
    let (more, named) = (count.saturating_sub(named.len() as u64), named.join(", "));
    match (count, more) {
        (1, _) => format!("stripe {named}"),
        (_, 0) => format!("stripes {named}"),
        _ => format!("stripes {named} and {more} more"),
    }
}

impl Found {
    /// Counts one more stripe.
    pub(crate) fn add(&mut self, scrubbed: Scrubbed) {
        self.stripes += 1;
        self.unfit += u64::from(scrubbed.is_unfit());
        self.undecided += u64::from(scrubbed.undecided > 0);
        self.lost += u64::from(scrubbed.lost);
    }

    /// The remedy for undecided stripes, for the end of a sentence; empty if there are none.
    pub fn of_undecided(&self) -> String {
        match self.undecided {
            0 => String::new(),
            n => format!(
                "; {n} do not fit, and nothing tells which block is wrong, so that they are as they were: bring back the medium that \
                 has lost something, or make parity fit by `lockify array scrub --repair --accept-loss`, and compare with a backup"
            ),
        }
    }

    /// The remedy for lost blocks, for the end of a sentence; empty if there are none.
    pub fn of_lost(&self) -> String {
        match self.lost {
            0 => String::new(),
            n => format!("; {n} blocks are lost: write them anew, or restore them from a backup"),
        }
    }
}

/// Checks stripes; `progress` is called after each.
///
/// A stripe that cannot be checked does not end it. If it is to stop, all stripes before [`Scrub::next`] have been checked.
///
/// # Errors
/// This host is of no more use. The other stripes of the range may or may not have been checked then.
pub fn scrub(
    array: &Array,
    stripes: Range<u64>,
    repair: Repair,
    pace: &Pace,
    progress: &(dyn Fn() + Sync),
) -> Result<Scrub, OpError> {
    let all = Mutex::new(Scrub::default());
    let end = stripes.end;
    let next = each(stripes, pace, |stripe| {
        let scrubbed = array.scrub(stripe, repair);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        match scrubbed {
            Ok(scrubbed) => all.add(stripe, scrubbed),
            Err(error @ (OpError::Fenced | OpError::Clock { .. } | OpError::Range)) => {
                return Err(error);
            }
            Err(error) => {
                all.found.failed += 1;
                all.failed.add(stripe);
                all.failure.get_or_insert((stripe, error));
            }
        }
        progress();
        Ok(())
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Scrub { next: (next < end).then_some(next), ..all })
}

/// The most stripes that are named.
const NAMED: usize = 10;

/// Lost blocks, and the stripes that have them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// How many blocks.
    pub blocks: u64,
    /// In which stripes.
    pub stripes: BTreeSet<u64>,
}

impl Losses {
    fn add(&mut self, stripe: u64, blocks: u32) {
        if blocks > 0 {
            self.blocks += u64::from(blocks);
            self.stripes.insert(stripe);
        }
    }

    /// The number of blocks, and where they are: the first stripes by number.
    pub fn text(&self) -> String {
        let stripes = named(self.stripes.iter(), self.stripes.len() as u64);
        format!("{} in {stripes}", counted(self.blocks, "block"))
    }
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The losses of a rebuild.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebuild {
    /// Blocks that this call has marked as lost.
    pub marked: Losses,
    /// Lost blocks in the part that an earlier process has rebuilt. Nobody knows if it has marked them, or if they were lost
    /// before.
    pub earlier: Losses,
}

impl Rebuild {
    /// Returns true if no block is lost by the rebuild.
    pub fn is_clean(&self) -> bool {
        self.marked.blocks == 0 && self.earlier.blocks == 0
    }

    /// The loss, and the remedy, for the end of a sentence; empty if nothing is lost.
    pub fn of_lost(&self) -> String {
        let part = |losses: &Losses, what: &str| match losses.blocks {
            0 => String::new(),
            _ => format!("; {what}{}", losses.text()),
        };
        let marked = part(&self.marked, "lost, because the other devices do not yield them: ");
        let earlier = part(
            &self.earlier,
            "lost in the part that an earlier process has rebuilt, by that or before: ",
        );
        match self.is_clean() {
            true => String::new(),
            false => format!("{marked}{earlier}; write them anew, or restore them from a backup"),
        }
    }
}

/// One rebuild of a device.
struct Rebuilding<'a> {
    array: &'a Array,
    device: DeviceId,
    /// How often it has failed. If it fails again, what is rebuilt now does not count for who comes then.
    absences: u64,
    pace: &'a Pace,
    found: Mutex<Rebuild>,
    /// Stripes with lost blocks.
    damaged: Mutex<BTreeSet<u64>>,
}

/// Rebuilds a device that has failed, or continues a rebuild. `progress` gets the number of finished
/// stripes, of [`stripes_of`]. `begun`: the caller has just begun the rebuild ([`Change::Rebuild`]).
///
/// # Errors
/// The first that occurred. Finished stripes stay finished: the next call continues.
pub fn rebuild(
    array: &Array,
    device: DeviceId,
    begun: bool,
    pace: &Pace,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Rebuild, OpError> {
    let condition = |state: &ArrayState| state.condition(device);
    let before = condition(&array.status().state);
    array.change(Change::Rebuild(device))?;
    let state = array.status().state;
    let absences = state.absences(device);
    let from = match condition(&state) {
        Some(Condition::Good) => return Ok(Rebuild::default()),
        condition => condition.and_then(Condition::rebuilt_to).unwrap_or(0),
    };
    let continues = !begun && before.and_then(Condition::rebuilt_to).is_some();
    let (found, damaged) = (Mutex::default(), Mutex::default());
    let this = Rebuilding { array, device, absences, pace, found, damaged };
    this.blocks(from, continues, progress)?;
    if continues {
        this.look_at_earlier(from)?;
    }
    // Parity is there again, also of what remains lost.
    for stripe in this.damaged.into_inner().unwrap_or_else(PoisonError::into_inner) {
        array.scrub(stripe, Repair::Known)?;
    }
    Ok(this.found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// How far the array is with a new device in the place of one that had content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Its blocks are the array's from now on: it can be rebuilt.
    Ready,
    /// This call has begun the rebuild: look again.
    Begun,
    /// It has been rebuilt, or was never replaced.
    Good,
    /// The array has been told, or the device is not ready: look again.
    Waits,
    /// It is not there.
    Absent(String),
    /// What hosts have written may be on the old device only. The array does not go on without it, unless an operator accepts
    /// the loss.
    Alone(String),
}

/// Has the array go on without a device's old content, and take the new device for one that is rebuilt. Each call is a step.
///
/// # Errors
/// The array does not agree.
pub fn admit(
    array: &Array,
    file: &ArrayFile,
    answers: &Answers,
    device: DeviceId,
) -> Result<Admission, OpError> {
    let state = answers.newest();
    let condition = state.and_then(|state| state.condition(device));
    let report = match answers.of(device) {
        Some(Ok(report)) => report,
        Some(Err(why)) => return Ok(Admission::Absent(why.clone())),
        None => return Ok(Admission::Waits),
    };
    // Nobody tells a device that it is given up, and one whose blocks are not the array's does not ask to be let in.
    let has_not_heard =
        |state: &ArrayState| report.state.epoch < state.epoch && report.members.contains(&device.0);
    match (condition, state) {
        (Some(Condition::Good), _) if report.in_service => return Ok(Admission::Good),
        (Some(Condition::Good), Some(state)) => {
            if let Some(why) = what_may_be_there_alone(file, answers, state, device) {
                return Ok(Admission::Alone(why));
            }
            array.change(state.without(device))?;
        }
        (Some(_), _) if report.in_service => return Ok(Admission::Ready),
        // It learns of it as a voter, and its blocks are the array's from then on.
        // Not before it is one of those who are there, or it is taken for gone again.
        (Some(condition), Some(state))
            if condition.is_out() && (report.serving || has_not_heard(state)) =>
        {
            array.change(Change::Rebuild(device))?;
            return Ok(Admission::Begun);
        }
        _ => {}
    }
    Ok(Admission::Waits)
}

/// Between two looks whether a new device is there.
const LOOKS: Duration = Duration::from_millis(100);

/// Waits until a device of a group without stripes is there, and lets it in as one whose medium was replaced. There is nothing to
/// rebuild on it.
///
/// # Errors
/// It is not there in time, or the array does not agree. The error has the reason.
pub fn bring_in(
    array: &Array,
    file: &ArrayFile,
    identity: &Identity,
    device: DeviceId,
    pace: &Pace,
    patience: Duration,
) -> Result<(), String> {
    let mut end = Instant::now() + patience;
    let mut begun = false;
    loop {
        let answers = ask(file, identity.clone(), ANSWER).map_err(|e| e.to_string())?;
        match admit(array, file, &answers, device).map_err(|e| e.to_string())? {
            Admission::Good => return Ok(()),
            Admission::Ready => break,
            // Once: a device that comes and goes is not waited for without an end.
            Admission::Begun if !begun => (begun, end) = (true, Instant::now() + patience),
            Admission::Absent(why) | Admission::Alone(why) if Instant::now() > end => {
                return Err(format!("device {}: {why}", device.0));
            }
            Admission::Waits if Instant::now() > end => {
                let answer = answers.of(device).and_then(|answer| answer.as_ref().ok());
                let waits = answer.and_then(|report| report.waits.clone());
                let waits = waits.unwrap_or_else(|| "see its log".into());
                return Err(format!("device {} is not there with the others: {waits}", device.0));
            }
            Admission::Begun if Instant::now() > end => {
                return Err(format!(
                    "device {} does not stay with the others: see its log",
                    device.0
                ));
            }
            Admission::Begun | Admission::Waits | Admission::Absent(_) | Admission::Alone(_) => {}
        }
        std::thread::sleep(LOOKS);
    }
    rebuild(array, device, begun, pace, &|_| ()).map(drop).map_err(|e| e.to_string())
}

/// How long processes may take to say how they stand.
const ANSWER: Duration = Duration::from_secs(3);

/// Why something may have been written to a device and be known to none of its group.
fn what_may_be_there_alone(
    file: &ArrayFile,
    answers: &Answers,
    state: &ArrayState,
    device: DeviceId,
) -> Option<String> {
    let beside = file.layout.grown(state).beside(device);
    // True of those that have nothing for the others.
    let unknown = beside.filter_map(|other| {
        let (why, is_missing) = match answers.of(other) {
            Some(Ok(report)) if !report.in_service => {
                ("is empty, and the blocks of both would be lost", true)
            }
            Some(Ok(_)) if !state.is_good(other) => {
                ("is not rebuilt, and the blocks of both would be lost", true)
            }
            Some(Ok(report)) if report.unsettled => (
                "has restarted and does not know yet what hosts were writing when it stopped",
                false,
            ),
            Some(Ok(_)) => return None,
            _ => ("does not answer, and the blocks of both would be lost", true),
        };
        Some((other, why, is_missing))
    });
    let unknown: Vec<_> = unknown.collect();
    let missing = unknown.iter().filter(|(.., is_missing)| *is_missing).count();
    let is_borne = missing < usize::from(file.layout.parities());
    let mut reasons = unknown.into_iter().filter(|(.., is_missing)| !(*is_missing && is_borne));
    reasons.next().map(|(other, why, _)| {
        format!(
            "what hosts have written may be on the old device {0} only, since device {1} {why}: bring back the old device {0}, or \
             device {1}; or give --accept-loss to `lockify array replace`, to do without what only device {0} has",
            device.0, other.0
        )
    })
}

fn stopped() -> OpError {
    OpError::State("the rebuild was stopped: `lockify array rebuild` continues it".into())
}

impl Rebuilding<'_> {
    /// The rows of the device between two stripes of the array. Stripes of other groups are not on it.
    fn rows(&self, stripes: Range<u64>) -> Range<u64> {
        self.array.layout().rows(self.device, stripes)
    }

    fn stripe(&self, row: u64) -> u64 {
        self.array.layout().stripe_in(self.device, row)
    }

    /// Writes the device's blocks from this stripe on.
    fn blocks(
        &self,
        from: u64,
        continues: bool,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OpError> {
        let rows = self.rows(from..self.array.layout().stripes);
        let done = AtomicU64::new(rows.start);
        let mut next = rows.start;
        // A group without stripes has nothing to rebuild, and is good.
        loop {
            let end = next.saturating_add(BATCH).min(rows.end);
            // The process before may have rebuilt some of these stripes, and not have said so.
            let again = continues && next == rows.start;
            self.each(next..end, |row| {
                self.block(self.stripe(row), again)?;
                progress(done.fetch_add(1, Relaxed) + 1);
                Ok(())
            })?;
            let to = if end == rows.end { ALL } else { self.stripe(end) };
            self.array.change(Change::Rebuilt(self.device, to, self.absences))?;
            if end == rows.end {
                return Ok(());
            }
            next = end;
        }
    }

    /// Calls `one` for each row. To stop before the last one is an error: what follows relies on all of them.
    fn each(
        &self,
        rows: Range<u64>,
        one: impl Fn(u64) -> Result<(), OpError> + Sync,
    ) -> Result<(), OpError> {
        let end = rows.end;
        if each(rows, self.pace, one)? < end { Err(stopped()) } else { Ok(()) }
    }

    fn block(&self, stripe: u64, again: bool) -> Result<(), OpError> {
        let Rebuilt { lost, marked } = self.array.rebuild(self.device, stripe)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.marked.add(stripe, marked);
        if again {
            found.earlier.add(stripe, lost.saturating_sub(marked));
        }
        if lost + marked > 0 {
            self.damaged.lock().unwrap_or_else(PoisonError::into_inner).insert(stripe);
        }
        Ok(())
    }

    /// Looks for lost blocks in the part that an earlier process has rebuilt. It has told nobody.
    fn look_at_earlier(&self, end: u64) -> Result<(), OpError> {
        self.each(self.rows(0..end), |row| {
            let stripe = self.stripe(row);
            let lost = self.array.scrub(stripe, Repair::None)?.lost;
            if lost > 0 {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).earlier.add(stripe, lost);
                self.damaged.lock().unwrap_or_else(PoisonError::into_inner).insert(stripe);
            }
            Ok(())
        })
    }
}

/// How many stripes have a unit on a device.
pub fn stripes_of(array: &Array, device: DeviceId) -> u64 {
    let layout = array.layout();
    layout.rows(device, 0..layout.stripes).end
}

/// Calls `one` for each number, from several threads; the first error ends it. Returns the first number that was left out
/// because the work was to stop.
pub(crate) fn each(
    numbers: Range<u64>,
    pace: &Pace,
    one: impl Fn(u64) -> Result<(), OpError> + Sync,
) -> Result<u64, OpError> {
    let next = AtomicU64::new(numbers.start);
    let failed = Mutex::new(None);
    let work = || {
        while next.load(Relaxed) < numbers.end && pace.wait() {
            let number = next.fetch_add(1, Relaxed);
            if number >= numbers.end {
                return;
            }
            if let Err(e) = one(number) {
                next.store(numbers.end, Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..pace.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or_else(|| Ok(next.into_inner().min(numbers.end)), Err)
}
