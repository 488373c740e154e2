//! The published artifact's defects (docs/design/claim.md 5.2), each switchable, so that tests can show
//! that the checkers find them. Compiled in only with the feature `mutations`.

use serde::{Deserialize, Serialize};

/// One defect of the published artifact, or one rule of ours left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Mutation {
    /// Lock-name reuse: the directory records the claimer without looking whether it knows another
    /// master.
    DirectoryOverwrites,
    /// The directory does not look at the resources that it masters itself.
    DirectoryIgnoresOwnResources,
    /// A claim that is on record already is never answered (the artifact's directory loops on it).
    DuplicateClaimUnanswered,
    /// A refusal counts as a confirmation.
    RefusalConfirms,
    /// Replies are not matched by id: any reply confirms the node's oldest claim.
    ReplyIdIgnored,
    /// A claim that could not be sent (here: the last of a batch of several) counts as confirmed.
    FailedSendConfirms,
    /// A conversion under a pending claim loses its mode and flags.
    PendingConvertLosesMode,
    /// Recovery requests a lock again that was granted under a pending claim.
    RecoveryRequestsAgain,
    /// Pending claims are advertised as mastered in recovery, and not claimed again.
    PendingAdvertised,
    /// Pending claims are neither advertised nor claimed again in recovery.
    NotClaimedAgain,
    /// The barrier is applied to unlock only: a down-conversion passes it.
    BarrierOnlyInUnlock,
    /// The barrier does not exist for a client's exit.
    BarrierNotAtExit,
    /// Waiting at the barrier holds the recovery gate: a recovery cannot begin.
    BarrierHoldsGate,
    /// A waiting weakening operation is let through although its claims are unsettled.
    BarrierInterrupted,
    /// Locks of objects being freed wait at the barrier as all others: crossed refusals deadlock.
    FreedLocksWait,
    /// REMOVE carries no id: a late one deletes a newer record.
    RemoveWithoutId,
    /// A record left by a late duplicate is not taken back.
    NoHealing,
    /// A REQUEST from any node confirms a pending claim.
    AnyRequestConfirms,
    /// REMOVE is sent although the claim of the name is pending.
    RemoveWhilePending,
    /// Claims that get no answer are never sent again on a transport that loses messages.
    NeverResent,
    /// Fencing tokens are a counter of the node, not a clock that messages carry.
    TokensNotCarried,
    /// A view that comes while the former one is still stopping forgets who departed with that one.
    StopForgotten,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 22] = [
        Mutation::DirectoryOverwrites,
        Mutation::DirectoryIgnoresOwnResources,
        Mutation::DuplicateClaimUnanswered,
        Mutation::RefusalConfirms,
        Mutation::ReplyIdIgnored,
        Mutation::FailedSendConfirms,
        Mutation::PendingConvertLosesMode,
        Mutation::RecoveryRequestsAgain,
        Mutation::PendingAdvertised,
        Mutation::NotClaimedAgain,
        Mutation::BarrierOnlyInUnlock,
        Mutation::BarrierNotAtExit,
        Mutation::BarrierHoldsGate,
        Mutation::BarrierInterrupted,
        Mutation::FreedLocksWait,
        Mutation::RemoveWithoutId,
        Mutation::NoHealing,
        Mutation::AnyRequestConfirms,
        Mutation::RemoveWhilePending,
        Mutation::NeverResent,
        Mutation::TokensNotCarried,
        Mutation::StopForgotten,
    ];
}
