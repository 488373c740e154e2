//! The published protocols' holes (docs/design/array.md 4), each switchable, so that tests can show that checks find them.
//! Compiled in only with the feature `mutations`. "No control" is none of them: that is [`crate::Scheme::ZeroOverhead`].

/// One rule left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// Timestamp ordering: a write is applied although a newer one was, as in the paper's figure 4. At devices.
    TsoWritesUnconditionally,
    /// Timestamp ordering: a queued read is served although a newer write was applied. At devices.
    TsoKeepsQueuedReads,
    /// An operation of which a part is written starts again as a read-modify-write (docs/design/array.md 3.4). At hosts; and
    /// devices that restart let nobody take up a write, and suspect no stripe, since a repair there would make it good before
    /// it shows.
    DeltaAfterPartialWrite,
    /// Device-served locking: an unlock that overtakes its lock leaves no trace. At devices.
    UnlockLeavesNoTombstone,
    /// A device that has restarted serves everybody at once, before it is let in, and while writes that it had locks or pre-writes
    /// for are still to
    /// be taken up. At devices.
    ServesBeforeSettled,
    /// A device that has restarted serves blocks by the state of the array that it remembers, and does not ask to be let in again.
    /// At devices.
    ServesBeforeLetIn,
    /// A device is given up while another one of its group has restarted and does not know what a host was writing there. At
    /// devices, which do not say it.
    GivesUpBesideUnsettled,
    /// Locking: a host unlocks when it has sent its writes, not when they are answered. At hosts.
    UnlockBeforeWritten,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 8] = [
        Mutation::TsoWritesUnconditionally,
        Mutation::TsoKeepsQueuedReads,
        Mutation::DeltaAfterPartialWrite,
        Mutation::UnlockLeavesNoTombstone,
        Mutation::ServesBeforeSettled,
        Mutation::ServesBeforeLetIn,
        Mutation::GivesUpBesideUnsettled,
        Mutation::UnlockBeforeWritten,
    ];
}
