//! Known defects of memberships (those of the fixed list that the log has replaced, and rules left out), each switchable, so
//! that tests can show that the simulator finds them. Compiled in only with the feature `mutations`.

/// One defect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// A process takes its life from the time of day, not from the log.
    LifeFromClock,
    /// Views, and with them tokens, are numbered by the time of day.
    ViewFromClock,
    /// A node judges leases by the value in its own file.
    OwnLease,
    /// A proposal that is refused uses up numbers of views.
    RefusedUsesNumbers,
    /// An excluded member counts as over at once, while its lease still runs.
    ExclusionDoesNotWait,
    /// A voter reports an acceptance before its disk has it.
    SendsBeforeDisk,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 6] = [
        Mutation::LifeFromClock,
        Mutation::ViewFromClock,
        Mutation::OwnLease,
        Mutation::RefusedUsesNumbers,
        Mutation::ExclusionDoesNotWait,
        Mutation::SendsBeforeDisk,
    ];
}
