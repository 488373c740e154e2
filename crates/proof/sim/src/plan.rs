//! Fault plans: which faults happen when.

use crate::delay::chance;
use crate::disk::{DiskFault, DiskId};
use crate::fault::{Cut, Fault, FaultKind};
use crate::{Delay, MILLISECOND, Nanos, NodeId, Random, SECOND};
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

/// The kinds and numbers of faults in a generated plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultMix {
    /// Kinds with their relative weights; kinds that are not listed do not happen.
    pub weights: Vec<(FaultKind, u32)>,
    /// Before this virtual time nothing fails.
    pub start: Nanos,
    /// From this virtual time on nothing fails, and everything that was wrong has ended.
    pub quiet_at: Nanos,
    /// Time from the beginning of one fault to the beginning of the next.
    pub gap: Delay,
    /// How long a fault lasts.
    pub duration: Delay,
    /// At most so many nodes are crashed, paused or away at the same time; partitions do not count.
    pub max_down: usize,
    /// Largest step of a clock, in either direction.
    pub max_clock_step: Nanos,
    /// Largest rate error of a clock in parts per million, in either direction.
    pub max_clock_ppm: i32,
    /// Largest extra latency of a slow link.
    pub max_slow_link: Nanos,
    /// Largest factor of a slow disk.
    pub max_disk_factor: u32,
}

impl FaultMix {
    /// Every kind but those of disks with the same weight; about ten faults a second, until `quiet_at`.
    pub fn all(start: Nanos, quiet_at: Nanos) -> Self {
        let disk = [FaultKind::DiskError, FaultKind::DiskFull, FaultKind::DiskSlow];
        let kinds = FaultKind::ALL.iter().filter(|kind| !disk.contains(kind));
        Self {
            weights: kinds.map(|kind| (*kind, 1)).collect(),
            start,
            quiet_at,
            gap: Delay::Exponential { base: 0, mean: 100 * MILLISECOND },
            duration: Delay::Exponential { base: MILLISECOND, mean: 300 * MILLISECOND },
            max_down: 1,
            max_clock_step: SECOND,
            max_clock_ppm: 1_000,
            max_slow_link: 50 * MILLISECOND,
            max_disk_factor: 50,
        }
    }
}

/// A list of faults over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    entries: Vec<(Nanos, Fault)>,
}

impl FaultPlan {
    /// A plan with the given faults, in any order.
    pub fn new(mut entries: Vec<(Nanos, Fault)>) -> Self {
        entries.sort_by_key(|(at, _)| *at);
        Self { entries }
    }

    /// Draws a plan for `nodes`, each of which has `disks` disks. It ends with [`Fault::HealAll`] at `mix.quiet_at`.
    pub fn generate(mix: &FaultMix, nodes: &[NodeId], disks: u32, random: &mut Random) -> Self {
        let mut draft = Draft {
            mix,
            nodes,
            disks,
            random,
            entries: Vec::new(),
            down: Vec::new(),
            next_partition: 0,
        };
        draft.fill();
        let mut entries = draft.entries;
        entries.push((mix.quiet_at, Fault::HealAll));
        Self::new(entries)
    }

    /// The faults, in the order of time.
    pub fn entries(&self) -> &[(Nanos, Fault)] {
        &self.entries
    }
}

struct Draft<'a> {
    mix: &'a FaultMix,
    nodes: &'a [NodeId],
    disks: u32,
    random: &'a mut Random,
    entries: Vec<(Nanos, Fault)>,
    /// Nodes that are down, and until when.
    down: Vec<(NodeId, Nanos)>,
    next_partition: u32,
}

impl Draft<'_> {
    fn fill(&mut self) {
        let mut at = self.mix.start;
        loop {
            // At least 1 ns, so that a gap of zero ends too.
            at = at.saturating_add(self.mix.gap.sample(self.random).max(1));
            if at >= self.mix.quiet_at {
                return;
            }
            let Ok((kind, _)) =
                self.mix.weights.choose_weighted(self.random, |(_, weight)| *weight)
            else {
                return;
            };
            self.add(*kind, at);
        }
    }

    fn add(&mut self, kind: FaultKind, at: Nanos) {
        let end = at.saturating_add(self.mix.duration.sample(self.random)).min(self.mix.quiet_at);
        let Some((fault, heal)) = self.draw(kind, at, end) else {
            return;
        };
        self.entries.push((at, fault));
        self.entries.extend(heal.map(|heal| (end, heal)));
    }

    /// Draws a fault and what ends it; none if the cluster has no fitting victim now.
    fn draw(&mut self, kind: FaultKind, at: Nanos, end: Nanos) -> Option<(Fault, Option<Fault>)> {
        Some(match kind {
            FaultKind::Crash | FaultKind::PowerLoss => {
                let node = self.take_down(at, end)?;
                (
                    Fault::Crash { node, power_loss: kind == FaultKind::PowerLoss },
                    Some(Fault::Restart(node)),
                )
            }
            FaultKind::Pause => {
                let node = self.take_down(at, end)?;
                (Fault::Pause(node), Some(Fault::Resume(node)))
            }
            FaultKind::Leave => {
                let node = self.take_down(at, end)?;
                (Fault::Leave(node), Some(Fault::Restart(node)))
            }
            FaultKind::Partition | FaultKind::OneWayPartition => {
                let id = self.next_partition;
                self.next_partition += 1;
                let cut = self.cut(kind == FaultKind::OneWayPartition)?;
                (Fault::Partition { id, cut }, Some(Fault::Heal(id)))
            }
            FaultKind::BreakConnection => {
                let (a, b) = self.pair()?;
                (Fault::BreakConnection(a, b), None)
            }
            FaultKind::SlowLink => {
                let ends = self.pair()?;
                let extra = self.random.random_range(1..=self.mix.max_slow_link.max(1));
                (Fault::SlowLink { ends, extra }, Some(Fault::SlowLink { ends, extra: 0 }))
            }
            FaultKind::ClockStep => {
                let node = self.node()?;
                let most = i64::try_from(self.mix.max_clock_step).unwrap_or(i64::MAX);
                (Fault::ClockStep { node, by: self.random.random_range(-most..=most) }, None)
            }
            FaultKind::ClockRate => {
                let node = self.node()?;
                let most = self.mix.max_clock_ppm.saturating_abs();
                let ppm = self.random.random_range(-most..=most);
                (Fault::ClockRate { node, ppm }, Some(Fault::ClockRate { node, ppm: 0 }))
            }
            FaultKind::DiskError | FaultKind::DiskFull | FaultKind::DiskSlow => {
                self.disk_fault(kind)?
            }
        })
    }

    fn disk_fault(&mut self, kind: FaultKind) -> Option<(Fault, Option<Fault>)> {
        if self.disks == 0 {
            return None;
        }
        let node = self.node()?;
        let disk = DiskId(self.random.random_range(0..self.disks));
        let fault = match kind {
            FaultKind::DiskError => DiskFault::Error,
            FaultKind::DiskFull => DiskFault::Full,
            _ => DiskFault::Slow(self.random.random_range(2..=self.mix.max_disk_factor.max(2))),
        };
        Some((
            Fault::Disk { node, disk, fault },
            Some(Fault::Disk { node, disk, fault: DiskFault::None }),
        ))
    }

    fn node(&mut self) -> Option<NodeId> {
        self.nodes.choose(self.random).copied()
    }

    fn pair(&mut self) -> Option<(NodeId, NodeId)> {
        let mut two = self.nodes.sample(self.random, 2).copied();
        Some((two.next()?, two.next()?))
    }

    /// A node that is not down yet, if one more may be.
    fn take_down(&mut self, at: Nanos, end: Nanos) -> Option<NodeId> {
        self.down.retain(|(_, until)| *until > at);
        if self.down.len() >= self.mix.max_down {
            return None;
        }
        let node = self.node()?;
        if self.down.iter().any(|(other, _)| *other == node) {
            return None;
        }
        self.down.push((node, end));
        Some(node)
    }

    fn cut(&mut self, one_way: bool) -> Option<Cut> {
        let mut nodes = self.nodes.to_vec();
        nodes.shuffle(self.random);
        let first = self.random.random_range(1..nodes.len().max(2));
        let mut rest = nodes.split_off(first.min(nodes.len()));
        if rest.is_empty() {
            return None; // a single node
        }
        if one_way {
            return Some(Cut::OneWay { from: nodes, to: rest });
        }
        let mut groups = vec![nodes];
        // A third group now and then, so that nobody may have a majority.
        if rest.len() > 1 && chance(self.random, 0.3) {
            let third = rest.split_off(self.random.random_range(1..rest.len()));
            groups.push(third);
        }
        groups.push(rest);
        Some(Cut::Groups(groups))
    }
}
