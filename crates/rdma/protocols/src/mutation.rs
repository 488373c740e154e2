//! The published protocols' holes (docs/design/onesided.md 2.2 to 2.9), each switchable, so that tests can show that the
//! checks find them. Compiled in only with the feature `mutations`.
//!
//! # Holes that this design cannot have
//! - **N-CoSED 8**, two requests of one rank: each acquisition has a name of its own, and a client refuses a lock that it
//!   has (`LockError::Held`).
//! - **DSLR, withdrawals** that borrow from a neighbour: nobody withdraws; the last ticket closes the generation.
//! - **DSLR, skips** that count other readers' tickets, and releases that come after a skip: nothing is skipped in place.
//!   A repair closes the word, and what is late counts in a closed word. [`Mutation::RepairInPlace`] has what it would do
//!   otherwise.
//! - **ShiftLock 7**, a fast path that costs most where it fails, is no matter of safety: `shiftlock+` leaves it out there.
//! - **ShiftLock 8**, a send to a dead peer that takes others' messages with it: a fabric promises that it fails alone. If
//!   one breaks that promise, those who wait in vain repair, as after any lost message.

/// One hole of a published form, or one rule of ours left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// DQNL: a client without a known successor frees the word by a plain write.
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
    /// N-CoSED 6: the home counts releases from a writer's request on; those that came before it are lost.
    CosedCountsFromTheRequest,
    /// N-CoSED 7: requests that arrive before the swap's own completion was looked at are dropped.
    CosedDropsEarlyRequests,
    /// N-CoSED 9: readers do not look for writers that wait. Not wrong in any state: writers starve.
    CosedReadersNeverYield,
    /// N-CoSED 10: the home resets `S` only when all readers that it counts have left.
    CosedFoldsAllOrNothing,
    /// N-CoSED 11: readers leave at the writer that granted them.
    CosedReadersLeaveAtTheWriter,
    /// N-CoSED, ours: a client that has let readers in before the word was its own does not tell
    /// the home.
    CosedLeavesUntold,
    /// N-CoSED 12, as DQNL and MCS: nothing is repaired.
    NothingIsRepaired,
    /// RMA-RW: a reset takes away the counts that it saw, also readers that have still to undo.
    RmaResetForgetsUndos,
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
    /// ShiftLock: writers hand over to each other without a limit, and readers that wait starve. The artifact's runs with
    /// `N` = 2^31 are so.
    ShiftNeverEndsABatch,
    /// ShiftLock 1: a hand-over leaves no trace at the home, so that a batch looks like one dead holder.
    SilentHandover,
    /// ShiftLock 2: a repair does not depend on what its requester saw.
    RepairUnconditional,
    /// ShiftLock 3 and 4, DSLR's skip: a repair resets the word in place, where late verbs still reach it.
    RepairInPlace,
    /// ShiftLock 5: messages name neither lock, generation nor acquisition, so a late one is taken by the next wait.
    LettersAreAnonymous,
    /// DSLR: a waiting reader takes one that came later and has left already for a sign that it was skipped itself.
    ReaderTakesSiblingsForSkips,
    /// DSLR: a late client does not release. Not wrong in any state: all behind it wait for a
    /// repair.
    LateReleaseOmitted,
    /// ShiftLock 6: a holder believes in its lock for ever.
    HolderNotFenced,
    /// DSLR: a lease starts when the grant is noticed.
    LeaseFromNotice,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 29] = [
        Mutation::TailWritesZero,
        Mutation::CosedUnlockResets,
        Mutation::CosedIgnoresReadersBetween,
        Mutation::CosedHandsOverUncounted,
        Mutation::CosedResetForgetsReleases,
        Mutation::CosedGrantsWhileResetting,
        Mutation::CosedCountsFromTheRequest,
        Mutation::CosedDropsEarlyRequests,
        Mutation::CosedReadersNeverYield,
        Mutation::CosedFoldsAllOrNothing,
        Mutation::CosedReadersLeaveAtTheWriter,
        Mutation::CosedLeavesUntold,
        Mutation::NothingIsRepaired,
        Mutation::RmaResetForgetsUndos,
        Mutation::SlotWithoutCheck,
        Mutation::SlotBeforeRelease,
        Mutation::ReaderCountsAsWriter,
        Mutation::WriterIgnoresReaders,
        Mutation::ShiftIgnoresReaders,
        Mutation::ShiftForgetsAdmitted,
        Mutation::ShiftNeverEndsABatch,
        Mutation::SilentHandover,
        Mutation::RepairUnconditional,
        Mutation::RepairInPlace,
        Mutation::LettersAreAnonymous,
        Mutation::ReaderTakesSiblingsForSkips,
        Mutation::LateReleaseOmitted,
        Mutation::HolderNotFenced,
        Mutation::LeaseFromNotice,
    ];
}
