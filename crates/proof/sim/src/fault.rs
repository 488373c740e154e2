//! Faults, and how often each kind was injected.

use crate::disk::{DiskFault, DiskId};
use crate::{Nanos, NodeId};
use std::fmt;

/// Something that goes wrong, or its end.
///
/// A fault without effect (the node is already down, the connection does not exist) is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node loses its state and its connections.
    Crash {
        /// The victim.
        node: NodeId,
        /// True if its disks lose their caches too; peers then notice only after the stall time-out.
        power_loss: bool,
    },
    /// Starts a node that has crashed or left, as a new incarnation.
    Restart(NodeId),
    /// The node stops (a stalled virtual machine, SIGSTOP); what arrives waits.
    Pause(NodeId),
    /// Ends a pause; what waited is delivered in order.
    Resume(NodeId),
    /// The node leaves in order: its sent messages still arrive. [`Fault::Restart`] makes it join again.
    Leave(NodeId),
    /// Some nodes cannot reach some others. Connections across stall, and break after the stall time-out.
    Partition {
        /// Names the partition for [`Fault::Heal`]; replaces an older one of that number.
        id: u32,
        /// The broken directions.
        cut: Cut,
    },
    /// Ends a partition.
    Heal(u32),
    /// The connection of two nodes breaks; messages in flight are lost from some point on.
    BreakConnection(NodeId, NodeId),
    /// The node's clock jumps.
    ClockStep {
        /// The node whose clock it is.
        node: NodeId,
        /// Nanoseconds, forwards or backwards.
        by: i64,
    },
    /// The node's clock runs too fast or too slow from now on; 0 ends it.
    ClockRate {
        /// The node whose clock it is.
        node: NodeId,
        /// Parts per million.
        ppm: i32,
    },
    /// Every message between the two nodes takes longer; 0 ends it.
    SlowLink {
        /// The two ends.
        ends: (NodeId, NodeId),
        /// Added to the latency.
        extra: Nanos,
    },
    /// A disk fails in some way, or (with [`DiskFault::None`]) works again.
    Disk {
        /// The disk's node.
        node: NodeId,
        /// Which of its disks.
        disk: DiskId,
        /// In which way.
        fault: DiskFault,
    },
    /// Ends all faults: partitions, pauses, slow links, clock rates, disk faults; starts every node that has crashed
    /// or left.
    HealAll,
}

/// The broken directions of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nodes of different groups cannot reach each other; nodes of no group reach everybody.
    Groups(Vec<Vec<NodeId>>),
    /// Messages from any of `from` to any of `to` are not delivered; the other direction works.
    OneWay {
        /// The senders that are cut off.
        from: Vec<NodeId>,
        /// The receivers that they cannot reach.
        to: Vec<NodeId>,
    },
}

macro_rules! fault_kinds {
    ($($kind:ident $name:literal $doc:literal,)*) => {
        /// The kinds of faults, for weights and counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultKind { $(#[doc = $doc] $kind,)* }

        impl FaultKind {
            /// All kinds.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$kind,)*];

            /// Short name, as printed in tables and read from command lines.
            pub fn name(self) -> &'static str {
                match self { $(FaultKind::$kind => $name,)* }
            }
        }
    };
}

fault_kinds! {
    Crash "crash" "A process dies; its disks keep what was written.",
    PowerLoss "power-loss" "A machine dies, with the caches of its disks.",
    Pause "pause" "A node stops for a while.",
    Leave "leave" "A node leaves in order and joins again.",
    Partition "partition" "Groups of nodes cannot reach each other.",
    OneWayPartition "one-way-partition" "Messages pass in one direction only.",
    BreakConnection "break" "A connection breaks.",
    ClockStep "clock-step" "A clock jumps.",
    ClockRate "clock-rate" "A clock runs too fast or too slow.",
    SlowLink "slow-link" "Messages between two nodes take longer.",
    DiskError "disk-error" "Disk operations fail.",
    DiskFull "disk-full" "Writes of new sectors fail.",
    DiskSlow "disk-slow" "Disk operations take longer.",
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for FaultKind {
    type Err = UnknownFaultKind;

    fn from_str(name: &str) -> Result<Self, UnknownFaultKind> {
        let found = FaultKind::ALL.iter().find(|kind| kind.name() == name);
        found.copied().ok_or_else(|| UnknownFaultKind(name.to_owned()))
    }
}

/// A name that is no fault kind's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault kind {0:?}; use one of: {list}", list = kind_names())]
pub struct UnknownFaultKind(pub String);

fn kind_names() -> String {
    let names: Vec<_> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

impl Fault {
    /// The kind of fault that this begins; none if it ends one.
    pub fn kind(&self) -> Option<FaultKind> {
        Some(match self {
            Fault::Crash { power_loss: false, .. } => FaultKind::Crash,
            Fault::Crash { power_loss: true, .. } => FaultKind::PowerLoss,
            Fault::Pause(_) => FaultKind::Pause,
            Fault::Leave(_) => FaultKind::Leave,
            Fault::Partition { cut: Cut::Groups(_), .. } => FaultKind::Partition,
            Fault::Partition { cut: Cut::OneWay { .. }, .. } => FaultKind::OneWayPartition,
            Fault::BreakConnection(..) => FaultKind::BreakConnection,
            Fault::ClockStep { .. } => FaultKind::ClockStep,
            Fault::ClockRate { ppm, .. } if *ppm != 0 => FaultKind::ClockRate,
            Fault::SlowLink { extra, .. } if *extra != 0 => FaultKind::SlowLink,
            Fault::Disk { fault: DiskFault::Error, .. } => FaultKind::DiskError,
            Fault::Disk { fault: DiskFault::Full, .. } => FaultKind::DiskFull,
            Fault::Disk { fault: DiskFault::Slow(_), .. } => FaultKind::DiskSlow,
            Fault::Restart(_) | Fault::Resume(_) | Fault::Heal(_) | Fault::HealAll => return None,
            Fault::ClockRate { .. } | Fault::SlowLink { .. } | Fault::Disk { .. } => return None,
        })
    }
}

/// How often each kind of fault was injected with effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl FaultCounts {
    /// The count of one kind.
    pub fn get(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// All kinds with their counts, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        FaultKind::ALL.iter().map(|kind| (*kind, self.get(*kind)))
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &FaultCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    pub(crate) fn add(&mut self, kind: FaultKind) {
        self.0[kind as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_a_wrong_one_lists_the_right_ones() {
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
        }
        let error = "flood".parse::<FaultKind>().expect_err("no such kind").to_string();
        assert!(error.contains("\"flood\"") && error.contains("power-loss"), "{error}");
    }
}
