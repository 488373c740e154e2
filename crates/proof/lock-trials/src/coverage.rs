//! How often each step of the claim protocol met each kind of fault.
//!
//! A step counts for a kind if it happens while such a fault is in effect. It also counts up to [`BEFORE`]
//! before the fault began, or up to [`AFTER`] after it ended, when detection, recovery and reconnection happen.

use std::collections::BTreeMap;
use std::fmt;

use lockify_core::{ClaimMode, Policy};
use lockify_sim::{FaultKind, MILLISECOND, Nanos};

/// How long before a fault a step counts.
pub const BEFORE: Nanos = 5 * MILLISECOND;
/// How long after the end of a fault a step counts.
pub const AFTER: Nanos = 100 * MILLISECOND;

macro_rules! table {
    ($(#[$meta:meta])* $type:ident { $($item:ident $name:literal $doc:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $(#[doc = $doc] $item,)* }

        impl $type {
            /// All of them.
            pub const ALL: &[$type] = &[$($type::$item,)*];

            /// Short name, as printed.
            pub const fn name(self) -> &'static str {
                match self { $($type::$item => $name,)* }
            }
        }
    };
}

table! {
    /// A step of the claim protocol (docs/design/claim.md 4).
    Transition {
        Sent "sent" "A claim left for the directory node.",
        BatchSent "batch" "Several claims left in one message.",
        Confirmed "confirmed" "The directory node recorded a claim.",
        Implied "implied" "A request from the directory node itself confirmed a claim.",
        Refused "refused" "The directory node knew another master.",
        Merged "merged" "A refused claim's locks joined the master's.",
        Conflict "conflict" "A refused claim met locks that did not go.",
        Ended "dropped" "A claim ended because its lock was gone or given up.",
        Resent "resent" "A claim was sent again because no answer came.",
        Reclaimed "re-claimed" "A claim was made again after a recovery.",
        Waited "barrier" "An operation began to wait behind the barrier.",
        Released "released" "An operation that waited behind the barrier went on.",
        Capped "capped" "A claim became strict because too many were unsettled.",
        Healed "healed" "A late confirmation was answered with a REMOVE.",
    }
}

table! {
    /// A kind of fault, for the table.
    Trouble {
        Crash "crash" "A node dies.",
        Pause "pause" "A node stands still.",
        Leave "leave" "A node leaves in order.",
        Join "join" "A node joins.",
        Partition "partition" "Nodes cannot reach each other.",
        Break "break" "A connection breaks.",
        Slow "slow" "Messages of a pair are late.",
        Clock "clock" "A clock is wrong.",
        Drop "drop" "Claim messages get lost.",
        Duplicate "dup" "Claim messages come twice.",
        Delay "delay" "Claim messages are overtaken.",
        Recovery "recovery" "A failure in the middle of a recovery.",
        Reload "reload" "A node hands its state over to a new process.",
    }
}

impl Trouble {
    /// The trouble that a fault of the engine makes.
    pub fn of(kind: FaultKind) -> Option<Trouble> {
        Some(match kind {
            FaultKind::Crash | FaultKind::PowerLoss => Trouble::Crash,
            FaultKind::Pause => Trouble::Pause,
            FaultKind::Leave => Trouble::Leave,
            FaultKind::Partition | FaultKind::OneWayPartition => Trouble::Partition,
            FaultKind::BreakConnection => Trouble::Break,
            FaultKind::SlowLink => Trouble::Slow,
            FaultKind::ClockStep | FaultKind::ClockRate => Trouble::Clock,
            FaultKind::DiskError | FaultKind::DiskFull | FaultKind::DiskSlow => return None,
        })
    }
}

/// The steps and faults of one run, not yet joined.
#[derive(Clone, Debug, Default)]
pub struct Log {
    steps: Vec<(Nanos, Transition)>,
    windows: Vec<(Trouble, Nanos, Nanos)>,
}

impl Log {
    /// A step was taken.
    pub fn step(&mut self, at: Nanos, step: Transition) {
        self.steps.push((at, step));
    }

    /// Something was wrong from `from` to `to`.
    pub fn trouble(&mut self, kind: Trouble, from: Nanos, to: Nanos) {
        self.windows.push((kind, from, to));
    }

    /// Joins the two.
    pub fn table(&self) -> Coverage {
        let mut table = Coverage::default();
        for &(at, step) in &self.steps {
            *table.steps.entry(step).or_default() += 1;
            let mut near: Vec<_> = self
                .windows
                .iter()
                .filter(|(_, from, to)| {
                    at >= from.saturating_sub(BEFORE) && at <= to.saturating_add(AFTER)
                })
                .map(|(kind, ..)| *kind)
                .collect();
            near.sort_unstable();
            near.dedup();
            for kind in near {
                *table.cells.entry((step, kind)).or_default() += 1;
            }
        }
        for (kind, ..) in &self.windows {
            *table.troubles.entry(*kind).or_default() += 1;
        }
        table
    }
}

/// The table: steps by kinds of trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    steps: BTreeMap<Transition, u64>,
    troubles: BTreeMap<Trouble, u64>,
    cells: BTreeMap<(Transition, Trouble), u64>,
}

impl Coverage {
    /// Adds another run's.
    pub fn merge(&mut self, other: &Coverage) {
        for (key, count) in &other.steps {
            *self.steps.entry(*key).or_default() += count;
        }
        for (key, count) in &other.troubles {
            *self.troubles.entry(*key).or_default() += count;
        }
        for (key, count) in &other.cells {
            *self.cells.entry(*key).or_default() += count;
        }
    }

    /// How often a step met a kind of trouble.
    pub fn cell(&self, step: Transition, kind: Trouble) -> u64 {
        self.cells.get(&(step, kind)).copied().unwrap_or(0)
    }

    /// How often a step was taken at all.
    pub fn steps(&self, step: Transition) -> u64 {
        self.steps.get(&step).copied().unwrap_or(0)
    }

    /// The cells that should not be empty under a policy and are.
    pub fn gaps(&self, policy: Policy) -> Vec<(Transition, Trouble)> {
        let steps = Transition::ALL.iter().filter(|step| step.impossible(policy).is_none());
        let kinds = || Trouble::ALL.iter().filter(|kind| kind.impossible(policy).is_none());
        let all = steps.flat_map(|step| kinds().map(move |kind| (*step, *kind)));
        all.filter(|(step, kind)| self.cell(*step, *kind) == 0 && !self.is_rare(*step, *kind))
            .collect()
    }

    /// Returns true if chance alone may have left a cell empty: a step and a kind of trouble that both occur meet fewer than
    /// eight times, if one has nothing to do with the other.
    fn is_rare(&self, step: Transition, kind: Trouble) -> bool {
        let near: u64 = self.cells.iter().filter(|((_, k), _)| *k == kind).map(|(_, n)| n).sum();
        let all: u64 = self.steps.values().sum();
        let occur = self.steps(step) > 0 && near > 0;
        occur && u128::from(self.steps(step)) * u128::from(near) < 8 * u128::from(all)
    }

    /// The table as it is printed for a policy.
    pub fn of(&self, policy: Policy) -> Table<'_> {
        Table { coverage: self, policy }
    }
}

impl Transition {
    /// Why the step cannot be taken under a policy; nothing if it can.
    pub fn impossible(self, policy: Policy) -> Option<&'static str> {
        match (policy, self) {
            (Policy::Claim(ClaimMode::Optimistic), _) => None,
            (Policy::Claim(ClaimMode::Strict), step) => match step {
                Transition::BatchSent => Some("a strict claim's caller waits: it leaves at once"),
                Transition::Merged | Transition::Conflict => {
                    Some("nothing is granted under a strict claim before the answer")
                }
                Transition::Capped => Some("every claim is strict as it is"),
                _ => None,
            },
            _ => Some("the policy makes no claims"),
        }
    }
}

impl Trouble {
    /// Why it cannot happen under a policy; nothing if it can.
    pub fn impossible(self, policy: Policy) -> Option<&'static str> {
        match self {
            Trouble::Drop | Trouble::Duplicate | Trouble::Delay
                if !matches!(policy, Policy::Claim(_)) =>
            {
                Some("only claims and their replies are datagrams")
            }
            _ => None,
        }
    }
}

/// The cells of the table that apply under a policy, and the reasons for the rest.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    coverage: &'a Coverage,
    policy: Policy,
}

impl Table<'_> {
    fn row(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        all: Option<u64>,
        cell: impl Fn(Trouble) -> u64,
    ) -> fmt::Result {
        write!(f, "{name:<12}{:>9}", all.map(|all| all.to_string()).unwrap_or_default())?;
        for kind in self.kinds() {
            write!(f, "{:>10}", cell(kind))?;
        }
        writeln!(f)
    }

    fn kinds(&self) -> impl Iterator<Item = Trouble> {
        let policy = self.policy;
        Trouble::ALL.iter().copied().filter(move |kind| kind.impossible(policy).is_none())
    }

    fn steps(&self) -> impl Iterator<Item = Transition> {
        let policy = self.policy;
        Transition::ALL.iter().copied().filter(move |step| step.impossible(policy).is_none())
    }

    /// The cells that are left out, by reason.
    fn left_out(&self) -> BTreeMap<&'static str, Vec<&'static str>> {
        let steps = Transition::ALL.iter().map(|step| (step.name(), step.impossible(self.policy)));
        let kinds = Trouble::ALL.iter().map(|kind| (kind.name(), kind.impossible(self.policy)));
        let mut reasons = BTreeMap::<_, Vec<_>>::new();
        for (name, reason) in steps.chain(kinds) {
            if let Some(reason) = reason {
                reasons.entry(reason).or_default().push(name);
            }
        }
        reasons
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps().next().is_some() {
            writeln!(f, "Steps of the claim protocol while, just before or just after a fault:")?;
        } else {
            writeln!(f, "Faults:")?;
        }
        write!(f, "{:<12}{:>9}", "step", "all")?;
        for kind in self.kinds() {
            write!(f, "{:>10}", kind.name())?;
        }
        writeln!(f)?;
        let faults = |kind| self.coverage.troubles.get(&kind).copied().unwrap_or(0);
        self.row(f, "(faults)", None, faults)?;
        for step in self.steps() {
            let all = Some(self.coverage.steps(step));
            self.row(f, step.name(), all, |kind| self.coverage.cell(step, kind))?;
        }
        for (reason, names) in self.left_out() {
            writeln!(f, "left out: {} ({reason})", names.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_be_empty_by_chance_only_where_both_sides_are_rare() {
        const MINUTE: Nanos = 60_000_000_000;
        let policy = Policy::Claim(ClaimMode::Optimistic);
        let sure = (Transition::Resent, Trouble::Crash);
        let mut log = Log::default();
        // Of two steps that are as frequent, only one meets the crashes.
        for i in 1..=100 {
            log.trouble(Trouble::Crash, i * MINUTE, i * MINUTE);
            log.step(i * MINUTE, Transition::Confirmed);
            log.step(i * MINUTE + MINUTE / 2, Transition::Resent);
        }
        log.step(MINUTE / 2, Transition::Healed);
        let table = log.table();
        let gaps = table.gaps(policy);
        assert!(gaps.contains(&sure), "{gaps:?}");
        assert!(
            !gaps.contains(&(Transition::Healed, Trouble::Crash)),
            "one step meets one at most"
        );
        assert!(gaps.contains(&(Transition::Healed, Trouble::Pause)), "there was no pause at all");
        assert!(gaps.contains(&(Transition::Merged, Trouble::Crash)), "the step was never taken");
    }
}
