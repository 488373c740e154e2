//! The published protocols' holes (one-sided sections 2.2 to 2.8), each switchable, so that tests can show that the
//! checks find them. Compiled in only with the feature `mutations`.

/// One hole of a published form, or one rule of ours left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// DQNL: whoever knows of no successor frees the word by a plain write.
    TailWritesZero,
    /// N-CoSED 1: unlock resets the word unconditionally.
    CosedUnlockResets,
    /// N-CoSED 2: an exclusive request behind shared ones behind an exclusive one is granted with no regard for them.
    CosedIgnoresReadersBetween,
    /// N-CoSED 3: the holder hands over without counting the shared requests that are on their way.
    CosedHandsOverUncounted,
    /// N-CoSED 4: a reset by the home sets its count of releases to zero.
    CosedResetForgetsReleases,
    /// N-CoSED 5: the home grants while its own reset is under way.
    CosedGrantsWhileResetting,
    /// ShiftLock-S: no READ after the slot was written.
    SlotWithoutCheck,
    /// ShiftLock-S: the slot is read before the release, not after it.
    SlotBeforeRelease,
    /// DSLR: a reader that shares its turn releases the writers' counter.
    ReaderCountsAsWriter,
    /// DSLR: a writer does not wait for the readers before it.
    WriterIgnoresReaders,
    /// ShiftLock: a writer that found readers does not wait for them.
    ShiftIgnoresReaders,
    /// ShiftLock: the end of a batch counts no waiting readers for the next writer.
    ShiftForgetsAdmitted,
    /// ShiftLock 1: a hand-over leaves no trace at the home, so that a batch looks like one dead holder.
    SilentHandover,
    /// ShiftLock 2: a repair does not depend on what its requester saw.
    RepairUnconditional,
    /// ShiftLock 3 and 4, DSLR's skip: a repair resets the word in place, where late verbs still reach it.
    RepairInPlace,
    /// ShiftLock 6: a holder believes in its lock for ever.
    HolderNotFenced,
    /// DSLR: a lease starts when the grant is noticed.
    LeaseFromNotice,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 17] = [
        Mutation::TailWritesZero,
        Mutation::CosedUnlockResets,
        Mutation::CosedIgnoresReadersBetween,
        Mutation::CosedHandsOverUncounted,
        Mutation::CosedResetForgetsReleases,
        Mutation::CosedGrantsWhileResetting,
        Mutation::SlotWithoutCheck,
        Mutation::SlotBeforeRelease,
        Mutation::ReaderCountsAsWriter,
        Mutation::WriterIgnoresReaders,
        Mutation::ShiftIgnoresReaders,
        Mutation::ShiftForgetsAdmitted,
        Mutation::SilentHandover,
        Mutation::RepairUnconditional,
        Mutation::RepairInPlace,
        Mutation::HolderNotFenced,
        Mutation::LeaseFromNotice,
    ];
}
