//! A process that becomes another program and stays the same member.
//!
//! Its connection to corosync ends with the program, so the group sees it leave and come again. Its
//! last message before that is [`Word::Restarts`]. The others then do not take its leaving as a proof
//! that it has ended. They propose no view for two leases, unless it is back before, in the same life
//! and connected to all. Any other message of it withdraws that. So no node can have heard it without
//! knowing that it restarts. A view without it needs the same proof as ever, its lease or an agent:
//! one that does not come back is like one whose machine has died.

use serde::{Deserialize, Serialize};

use super::*;

/// This process is to be restarted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Which announcement it waits for, or has had.
    number: u64,
    /// When that was last asked for.
    asked: Time,
    /// It has been delivered to all, and nothing has been said since.
    heard: bool,
}

/// A member that has left the group to come back.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Absence {
    life: u64,
    /// Until when the others wait for it.
    until: Time,
}

/// Forgets those who are back, in the group and connected to all (`is_linked`), or have not come in
/// time; whether any are still expected.
pub(super) fn are_expected(
    absent: &mut BTreeMap<NodeId, Absence>,
    seats: &BTreeMap<NodeId, Seat>,
    now: Time,
    is_linked: impl Fn(NodeId) -> bool,
) -> bool {
    let back = |node: &NodeId, life: u64| match seats.get(node) {
        // Another process, or a later life of the same one: the expectation is over.
        Some(seat) if seat.life > 0 && seat.life != life => true,
        Some(seat) => seat.report.is_some() && is_linked(*node),
        None => false,
    };
    absent.retain(|node, a| now < a.until && !back(node, a.life));
    !absent.is_empty()
}

/// The state that is handed to the next program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GroupImage {
    config: GroupConfig,
    kept: Kept,
}

impl CorosyncMembership {
    /// The host asks for an image and has been refused, or will ask: the others are told first.
    pub(super) fn plan_restart(&mut self, now: Time) {
        if let Some(plan) = &mut self.plan {
            plan.asked = now;
            return;
        }
        let free = self.report_due.is_none() && !self.another_restarts();
        if self.up && !self.halted && free && self.kept.life.is_some() {
            self.plans += 1;
            self.cast(Word::Restarts { number: self.plans });
            self.plan = Some(Plan { number: self.plans, asked: now, heard: false });
        }
    }

    /// A member has announced its restart; this one, too, hears of its own.
    pub(super) fn restarts(&mut self, node: NodeId, number: u64) {
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.restarts = true;
        }
        if node != self.config.node {
            return;
        }
        let another = self.another_restarts();
        match &mut self.plan {
            Some(plan) if plan.number == number && !another => plan.heard = true,
            // Of two, the one that announced it later gives way: each must hear of the other's.
            Some(plan) if plan.number == number => self.report(),
            _ => {}
        }
    }

    fn another_restarts(&self) -> bool {
        let announced = self.seats.iter().any(|(n, s)| *n != self.config.node && s.restarts);
        announced || self.absent.keys().any(|n| *n != self.config.node)
    }

    /// The announced restart did not happen. The next report says so.
    pub(super) fn forget_restart(&mut self, now: Time) {
        if self.plan.is_some_and(|p| now >= p.asked + self.config.lease / 4) {
            self.report();
        }
        let late = self.absent.get(&self.config.node).is_some_and(|a| now >= a.until);
        if late && !self.up && self.kept.installed.is_some() {
            self.halt(Halt::NoCorosync);
        }
    }

    /// A process has left the group after it announced a restart.
    pub(super) fn await_return(&mut self, now: Time, node: NodeId, life: u64) {
        if self.kept.installed.as_ref().is_some_and(|v| v.life(node) == Some(life)) {
            self.absent.insert(node, Absence { life, until: now + 2 * self.config.lease });
        }
    }

    /// For the status.
    pub(super) fn absences(&self) -> impl Iterator<Item = String> + '_ {
        self.absent.keys().map(|node| format!("the restart of node {node}"))
    }

    /// The state that the next program needs.
    ///
    /// # Errors
    /// The reason why there can be none now.
    pub(super) fn group_image(&self) -> Result<GroupImage, String> {
        // Without `..`: who adds a field has to say here what becomes of it.
        let CorosyncMembership {
            config,
            kept,
            // Corosync says it again.
            ring: _,
            quorum: _,
            quorum_lags: _,
            seats: _,
            // Of agreements that have failed by then.
            patience: _,
            wanting: _,
            parted: _,
            plans: _,
            former: _,
            refused: _,
            lack: _,
            minorities: _,
            // In what is kept.
            own_life: _,
            forgot: _,
            #[cfg(feature = "mutations")]
                mutation: _,
            #[cfg(feature = "mutations")]
                wall: _,
            // Must be nothing.
            up,
            halted,
            proposal,
            fences,
            report_due,
            actions,
            disk_writes,
            absent: _,
            plan,
        } = self;
        if config.fence == FenceKind::None && !self.is_majority([config.node].iter()) {
            return Err("fence = \"none\" lets the other nodes take the locks at once".into());
        }
        if !*up || *halted {
            return Err("it is not connected to corosync".into());
        }
        if !fences.is_empty() {
            return Err("a fencing agent runs".into());
        }
        if !disk_writes.schedule.is_idle() || kept.life.is_none() {
            return Err("its state is being written".into());
        }
        if self.another_restarts() && plan.is_none_or(|p| !p.heard) {
            return Err("another node restarts: one after the other".into());
        }
        if proposal.is_some() || report_due.is_some() || !actions.is_empty() {
            return Err("the nodes are agreeing on who is a member".into());
        }
        if plan.is_none_or(|p| !p.heard) {
            return Err("the other nodes have not heard of it yet".into());
        }
        Ok(GroupImage { config: config.clone(), kept: kept.clone() })
    }
}

impl GroupImage {
    /// The service, not yet connected to corosync.
    pub(crate) fn into_service(self) -> CorosyncMembership {
        let GroupImage { config, kept } = self;
        let (now, me, life) = (kept.last, config.node, kept.life);
        let mut service = CorosyncMembership::go_on(config, kept);
        // The others wait for it, and it waits as they do.
        service.await_return(now, me, life.unwrap_or(0));
        service
    }
}
