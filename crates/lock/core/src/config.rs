//! The configuration of a lockspace.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, Time};

/// How the master of a resource is found. All members of a lockspace use the same
/// (`Directory` and `Claim` may be mixed).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Policy {
    /// Ask the directory node, as the Linux kernel's DLM does (docs/design/claim.md 1.1).
    Directory,
    /// As `Directory`, but calls with NOTIFY claim the mastership (docs/design/claim.md 4).
    Claim(ClaimMode),
    /// Ask every member, as O2CB does (docs/design/claim.md 1.2).
    Broadcast,
    /// The master is where the hash says; nothing is ever asked (NODIR, docs/design/semantics.md 9.11).
    Home,
}

impl Policy {
    /// All policies, each with every [`ClaimMode`] that it has.
    pub const ALL: [Policy; 5] = [
        Policy::Directory,
        Policy::Claim(ClaimMode::Optimistic),
        Policy::Claim(ClaimMode::Strict),
        Policy::Broadcast,
        Policy::Home,
    ];

    /// The name as written on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Directory => "directory",
            Policy::Claim(ClaimMode::Optimistic) => "claim",
            Policy::Claim(ClaimMode::Strict) => "claim-strict",
            Policy::Broadcast => "broadcast",
            Policy::Home => "home",
        }
    }

    /// Policies whose nodes can share a lockspace.
    pub(crate) const fn family(self) -> u8 {
        match self {
            Policy::Directory | Policy::Claim(_) => 0,
            Policy::Broadcast => 1,
            Policy::Home => 2,
        }
    }

    /// Returns true if nodes with these two policies can share a lockspace.
    pub const fn mixes_with(self, other: Policy) -> bool {
        self.family() == other.family()
    }
}

/// When a claimed lock is granted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ClaimMode {
    /// At once. The caller guarantees (docs/design/claim.md 4.4) that it holds a lock which excludes
    /// every other way to learn the name, and that no older object of that name is locked above NL.
    Optimistic,
    /// When the directory has confirmed the claim: one round trip, needs no guarantee.
    Strict,
}

/// The name is none of the policies'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy: use directory, claim, claim-strict, broadcast or home")]
pub struct UnknownPolicy;

impl core::str::FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(s: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|p| p.name() == s).ok_or(UnknownPolicy)
    }
}

/// A lockspace's configuration. Times are nanoseconds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of the node: larger than that of every earlier one.
    pub incarnation: u64,
    /// How masters are found.
    pub policy: Policy,
    /// Length of lock value blocks in bytes; the same on all members. 32 in Linux's user API.
    pub lvb_len: usize,
    /// How long a resource without locks stays cached at a master that is not its directory
    /// node, or at a node that is not its master, before it is dropped (kernel: 10 s); at most
    /// twice as long if it is locked now and then.
    pub toss_after: Time,
    /// Entries after which a batch of claims is sent, and all other batches with it.
    pub batch_entries: usize,
    /// Age at which batches of claims are sent. Only the barrier waits for claims, and it sends
    /// them at once. So this may be long (docs/design/claim.md 4.7); the default is 50 ms. A volley
    /// of batches wakes a process at every directory node, which costs as much as some hundred
    /// claims.
    pub batch_age: Time,
    /// On a transport that can lose messages: the first interval after which an unanswered claim
    /// is resent; it doubles up to twenty times this. `None` on an ordered, reliable transport,
    /// where nothing is resent (docs/design/claim.md 4.8).
    pub claim_resend: Option<Time>,
    /// Unsettled claims beyond which further ones are strict (back-pressure).
    pub claim_cap: usize,
    /// How long a refused claim's lock waits at the master for conflicting locks to go.
    pub merge_patience: Time,
    /// How long the caller of a claim that ended in CONFLICT may take to abandon the object
    /// before the node withdraws from the lockspace.
    pub conflict_patience: Time,
    /// The wait after which the search for deadlocks starts, and its interval as long as a lock
    /// waits. It is the same on all members. `None`: never.
    pub deadlock_after: Option<Time>,
    /// How many resources, or operations that waited for a recovery, one call handles at most: the
    /// rest is for the next [`crate::Input::Work`]. The host's other work waits for no more.
    pub bulk: usize,
    /// True to emit [`crate::Output::Trace`].
    pub trace: bool,
    /// A defect to reproduce; tests only. No part of a state that is written down: that is the same with the feature and
    /// without.
    #[cfg(feature = "mutations")]
    #[serde(skip)]
    pub mutation: Option<crate::mutation::Mutation>,
}

impl Config {
    /// The defaults for a node.
    pub fn new(node: NodeId, incarnation: u64, policy: Policy) -> Config {
        const MS: Time = 1_000_000;
        Config {
            node,
            incarnation,
            policy,
            lvb_len: 32,
            toss_after: 10_000 * MS,
            batch_entries: 512,
            batch_age: 50 * MS,
            claim_resend: None,
            claim_cap: 64 * 1024,
            merge_patience: 5_000 * MS,
            conflict_patience: 30_000 * MS,
            deadlock_after: None,
            bulk: 1024,
            trace: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}
