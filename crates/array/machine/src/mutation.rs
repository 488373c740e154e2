//! The published protocols' holes (docs/design/array.md 4), each switchable, so that tests can show that checks find them.
//! Compiled in only with the feature `mutations`. "No control" is not one of them: it is [`crate::Scheme::ZeroOverhead`].

/// One rule left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// Timestamp ordering: a write is applied although a newer one was, as in the paper's figure 4. At devices.
    TsoWritesUnconditionally,
    /// Timestamp ordering: a queued read is served although a newer write was applied. At devices.
    TsoKeepsQueuedReads,
    /// A partly written operation starts again as a read-modify-write (docs/design/array.md 3.4). At hosts. Restarted devices
    /// then let nobody take up a write, and suspect no stripe: a repair would hide the defect.
    DeltaAfterPartialWrite,
    /// Device-served locking: an unlock that overtakes its lock leaves no trace. At devices.
    UnlockLeavesNoTombstone,
    /// A restarted device serves everybody at once, before it is let in. It does not wait until hosts have taken up their
    /// writes. At devices.
    ServesBeforeSettled,
    /// A restarted device serves blocks by its remembered state of the array. It does not ask to be let in again. At
    /// devices.
    ServesBeforeLetIn,
    /// A device serves from a medium that was put back to an older copy. At devices.
    TrustsOldCopies,
    /// A device serves by a number that an earlier start has asked for, as a copy of the medium may have. At devices.
    ServesByInheritedKey,
    /// A lock server serves from a log that was put back to an older copy. At lock servers.
    TrustsOldLogs,
    /// A device is given up although another one of its group has restarted and does not know a host's writes. At devices,
    /// which do not report it.
    GivesUpBesideUnsettled,
    /// Locking: a host unlocks when it has sent its writes, not when they are answered. At hosts.
    UnlockBeforeWritten,
    /// A repair takes a block without a record for one that was never written, whatever other records say, and makes parity
    /// fit it (docs/design/array.md 3.1.5). At hosts.
    ZerosAreData,
    /// A block that cannot be read is repaired again and again, and its device stays in the array (docs/design/array.md 3.7).
    /// At hosts and devices.
    ReadErrorsAreForgotten,
    /// A flush succeeds although a device has started anew since the writes were answered. At hosts.
    FlushTrustsRestarts,
    /// A restarted device does not say that it may have lost its cache, so that parity is made to fit its old blocks. At
    /// devices.
    CacheLossFitsParity,
    /// A region counts as clean although its last writes may still be in the cache. At devices.
    CleanBeforeFlushed,
    /// A host completes a partial block with what it has itself written there last, and does not read. At hosts.
    PatchesOwnCopy,
    /// A lock server that stands by serves when it hears that nobody does, without a new term. At lock servers.
    StandbyServesUnagreed,
    /// A lock server grants what the logs of others do not have yet. At lock servers.
    GrantsBeforeCopied,
    /// With two parities, a read-modify-write leaves the second one as it was (docs/design/array.md 1.3). At hosts.
    SecondParityStays,
    /// A read-modify-write changes the second parity by another unit's factor. At hosts.
    SecondParityOfAnotherUnit,
    /// Of two missing data units, each is made of the first parity alone, as if the other one had zeros. At hosts.
    TwoUnitsOfOneParity,
    /// A host that asks for more stripes uses them before that is agreed. At hosts.
    GrowsUnagreed,
    /// A host takes the last stripe before a new group for the first one on it. At hosts.
    MovesToNewGroup,
    /// Marked parity vouches for the medium of a missing device, whatever was written since it left. At hosts.
    VouchesForAnyMedium,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 25] = [
        Mutation::TsoWritesUnconditionally,
        Mutation::TsoKeepsQueuedReads,
        Mutation::DeltaAfterPartialWrite,
        Mutation::UnlockLeavesNoTombstone,
        Mutation::ServesBeforeSettled,
        Mutation::ServesBeforeLetIn,
        Mutation::TrustsOldCopies,
        Mutation::ServesByInheritedKey,
        Mutation::TrustsOldLogs,
        Mutation::GivesUpBesideUnsettled,
        Mutation::UnlockBeforeWritten,
        Mutation::ZerosAreData,
        Mutation::ReadErrorsAreForgotten,
        Mutation::FlushTrustsRestarts,
        Mutation::CacheLossFitsParity,
        Mutation::CleanBeforeFlushed,
        Mutation::PatchesOwnCopy,
        Mutation::StandbyServesUnagreed,
        Mutation::GrantsBeforeCopied,
        Mutation::SecondParityStays,
        Mutation::SecondParityOfAnotherUnit,
        Mutation::TwoUnitsOfOneParity,
        Mutation::GrowsUnagreed,
        Mutation::MovesToNewGroup,
        Mutation::VouchesForAnyMedium,
    ];
}
