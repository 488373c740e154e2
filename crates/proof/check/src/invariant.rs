//! The interface of a rule.

use lockify_history::{Event, Kind};

use crate::state::{Life, Lock, LockKey, Op, State};

/// Something that a history may or may not have, and that rules need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Field {
    /// `request` events.
    Request,
    /// `grant` events.
    Grant,
    /// `claim` events.
    Claim,
    /// `master` events.
    Master,
    /// `dir` events.
    Dir,
    /// `barrier` events.
    Barrier,
    /// `token` on grants of PW or EX.
    Token,
    /// `lvb` on calls that write it.
    LvbWritten,
    /// `lvb` on completions that read it.
    LvbRead,
    /// Deadlocks are searched for: said by `writes` only.
    Deadlock,
    /// `end`: operations that are unfinished at the end can be judged.
    End,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 11] = [
        Field::Request,
        Field::Grant,
        Field::Claim,
        Field::Master,
        Field::Dir,
        Field::Barrier,
        Field::Token,
        Field::LvbWritten,
        Field::LvbRead,
        Field::Deadlock,
        Field::End,
    ];

    /// As it is called in `begin`'s `writes`.
    pub const fn name(self) -> &'static str {
        match self {
            Field::Request => "request",
            Field::Grant => "grant",
            Field::Claim => "claim",
            Field::Master => "master",
            Field::Dir => "dir",
            Field::Barrier => "barrier",
            Field::Token => "token",
            Field::LvbWritten | Field::LvbRead => "lvb",
            Field::Deadlock => "deadlock",
            Field::End => "end",
        }
    }

    /// How to say that a history lacks it.
    pub const fn missing(self) -> &'static str {
        match self {
            Field::Request => "no `request` events",
            Field::Grant => "no `grant` events",
            Field::Claim => "no `claim` events",
            Field::Master => "no `master` events",
            Field::Dir => "no `dir` events",
            Field::Barrier => "no `barrier` events",
            Field::Token => "no `token` on grants of PW or EX",
            Field::LvbWritten => "no `lvb` on conversions and unlocks",
            Field::LvbRead => "no `lvb` on grants",
            Field::Deadlock => "no `deadlock` among what is written",
            Field::End => "no `end` event",
        }
    }
}

/// A set of [`Field`]s.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fields(u16);

impl Fields {
    /// Adds one.
    pub fn insert(&mut self, field: Field) {
        self.0 |= 1 << field as u8;
    }

    /// Returns true if the field is among them.
    pub fn has(self, field: Field) -> bool {
        self.0 & (1 << field as u8) != 0
    }

    /// Adds the fields that this event proves its writer to record.
    pub fn learn(&mut self, event: &Event) {
        match event.kind {
            Kind::Request => self.insert(Field::Request),
            Kind::Grant => self.insert(Field::Grant),
            Kind::Claim => self.insert(Field::Claim),
            Kind::Master => self.insert(Field::Master),
            Kind::Dir => self.insert(Field::Dir),
            Kind::Barrier => self.insert(Field::Barrier),
            Kind::End => self.insert(Field::End),
            _ => {}
        }
        if event.token.is_some() && matches!(event.kind, Kind::Grant | Kind::Settled) {
            self.insert(Field::Token);
        }
        match event.kind {
            Kind::Convert | Kind::Unlock if event.lvb.is_some() => self.insert(Field::LvbWritten),
            Kind::Grant if event.lvb.is_some() => self.insert(Field::LvbRead),
            _ => {}
        }
        for name in event.writes.iter().flatten() {
            // `end` is a promise that only the end can keep.
            let named = Field::ALL.into_iter().filter(|f| f.name() == name && *f != Field::End);
            named.for_each(|field| self.insert(field));
        }
    }
}

/// An event, and the state of things before it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The event.
    pub event: &'a Event,
    /// Its line, or its number if it does not come from a file; counts from 1.
    pub line: u64,
    /// The life of the node that it happened in.
    pub life: Life,
    /// Its lock's key, if it has a lock.
    pub key: Option<LockKey>,
    /// Its lock, before the event.
    pub lock: Option<&'a Lock>,
    /// The outstanding operation that this completion ends.
    pub op: Option<&'a Op>,
    /// All locks and claims before the event.
    pub state: &'a State,
    /// The fields that the history has recorded so far.
    pub fields: Fields,
    /// The history began with an empty lockspace.
    pub whole: bool,
}

/// A rule was broken.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// When it was noticed, in the history's nanoseconds.
    pub t: u64,
    /// The lines (or event numbers) that show it; the last one is where it was noticed.
    pub lines: Vec<u64>,
    /// The violation, for people.
    pub what: String,
}

/// The counts that rules add to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Counts {
    /// The number of events.
    pub events: u64,
    /// Requests of new locks.
    pub requests: u64,
    /// Grants delivered.
    pub grants: u64,
    /// Of these, provisional ones.
    pub provisional: u64,
    /// Pairs of incompatible holds of which at least one was provisional (exempt from INV-2).
    pub provisional_overlaps: u64,
    /// Claims made.
    pub claims: u64,
    /// Claims refused.
    pub refusals: u64,
    /// Refused claims that were merged.
    pub merges: u64,
    /// Refused claims that ended in a conflict.
    pub conflicts: u64,
    /// Claims sent again.
    pub resends: u64,
    /// Operations that waited behind the claim barrier.
    pub barrier_waits: u64,
    /// Locks reported lost.
    pub lost: u64,
    /// Ends of incarnations.
    pub crashes: u64,
    /// Reads of lock value blocks that were compared with the last write.
    pub lvb_reads: u64,
    /// Fencing tokens that were compared with the resource's token before.
    pub tokens: u64,
    /// Fencing tokens forgotten to bound memory: growth was not judged across them.
    pub tokens_forgotten: u64,
    /// Grants whose place in the queue was judged.
    pub order_judged: u64,
    /// Requests that a search for deadlocks ended.
    pub deadlocks: u64,
    /// Operations still waiting at the end for a lock that somebody holds.
    pub blocked_at_end: u64,
}

/// A rule that every history has to keep. One file per rule.
pub trait Invariant: std::fmt::Debug {
    /// Its name, as reports and `lockify check` print it.
    fn name(&self) -> &'static str;

    /// The fields that a history must have for the rule to judge at all.
    fn needs(&self) -> &'static [Field];

    /// The fields that a history should have, and the parts of the rule that are not judged without
    /// them.
    fn wants(&self) -> &'static [(Field, &'static str)] {
        &[]
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// The event breaks the rule.
    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation>;

    /// Judges the end. `quiet` says that everything had come to rest.
    fn finish(&mut self, end: &End<'_>, counts: &mut Counts) -> Vec<Violation>;
}

/// The end of a history.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// All locks and claims.
    pub state: &'a State,
    /// Everything had come to rest: an unfinished operation is now a violation.
    pub quiet: bool,
    /// The last event's time.
    pub t: u64,
    /// The last event's line.
    pub line: u64,
}

impl Seen<'_> {
    /// A violation noticed at this event, which `earlier` lines led to.
    pub fn violation(
        &self,
        rule: &'static str,
        earlier: impl IntoIterator<Item = u64>,
        what: String,
    ) -> Violation {
        let mut lines: Vec<u64> = earlier.into_iter().filter(|l| *l != 0).collect();
        lines.push(self.line);
        lines.dedup();
        Violation { rule, t: self.event.t, lines, what }
    }

    /// The resource: the event's, or its lock's.
    pub fn resource(&self) -> Option<&lockify_history::Resource> {
        self.event.resource.as_ref().or(self.lock.and_then(|l| l.resource.as_ref()))
    }
}

impl End<'_> {
    /// A violation that the end shows.
    pub fn violation(&self, rule: &'static str, lines: Vec<u64>, what: String) -> Violation {
        Violation { rule, t: self.t, lines, what }
    }
}
