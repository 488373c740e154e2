//! Operations under way at a host, for people who want to know why they do not end.

use super::ArrayHost;
use super::engine::{Later, Owner, Role, Try};
use crate::message::Action;
use crate::{Peer, Work};

impl ArrayHost {
    /// The operations under way, one line each.
    pub fn under_way(&self) -> Vec<String> {
        let tries = self.tries.values().map(of_try);
        let later = self.later.iter().filter_map(|((at, _), later)| match later {
            Later::Start(task) => Some(format!("{} begins at {at}", of_work(&task.work))),
            Later::Repair { task, stripe } => {
                Some(format!("{} has stripe {stripe} repaired at {at}", of_work(&task.work)))
            }
            Later::Propose { .. } => Some(format!("a proposal is made at {at}")),
            Later::Decide { .. } => Some(format!("a vote is decided at {at}")),
            Later::Again { .. } => None,
        });
        let all = tries.chain(self.repair_jobs_under_way()).chain(later);
        let settling = self.settling.keys().map(|peer| format!("has to settle with {}", of(*peer)));
        all.chain(settling).collect()
    }
}

fn of(peer: Peer) -> String {
    match peer {
        Peer::Device(device) => device.to_string(),
        Peer::Server => "the lock server".to_owned(),
    }
}

fn of_try(this: &Try) -> String {
    let task = this.task.as_ref();
    let what = task.map_or_else(
        || "nobody's".to_owned(),
        |task| {
            let role = match &task.role {
                Role::Work => "",
                Role::Pass(_) => "a pass of ",
                Role::Tell { .. } => "messages of ",
            };
            let owner = match task.owner {
                Owner::Caller(ticket) => format!(" ({})", ticket.0),
                Owner::Answered(ticket) => format!(" ({}, which was answered)", ticket.0),
                Owner::RepairJob(_) | Owner::Own => String::new(),
            };
            format!("{role}{}{owner}, started again {} times", of_work(&task.work), task.restarts)
        },
    );
    let siblings = this.siblings.iter().filter_map(|sibling| {
        let out = sibling.out.as_ref();
        let refused = sibling.refused.map(|why| format!("refused: {why:?}"));
        let asked = out.map(|out| {
            format!("{}{}", if out.hidden { "hidden " } else { "" }, of_action(&out.action))
        });
        let said = asked.or(refused)?;
        Some(format!("{} {said}", of(sibling.peer)))
    });
    let siblings: Vec<String> = siblings.collect();
    let (seq, phase, epoch, time) = (this.id.seq, this.phase, this.epoch.0, this.stamp.time);
    let waits = siblings.join(", ");
    format!("try {seq} at {time}, epoch {epoch}, {phase:?}: {what}; waits for [{waits}]")
}

fn of_work(work: &Work) -> String {
    match work {
        Work::Write { span, .. } => format!("write of {}..{}", span.start, span.end()),
        Work::Patch { start, data } => {
            format!("write of the bytes {start}..{}", start.saturating_add(data.len() as u64))
        }
        Work::Read { span } => format!("read of {}..{}", span.start, span.end()),
        other => format!("{other:?}"),
    }
}

fn of_action(action: &Action) -> String {
    let name = match action {
        Action::Read { .. } => "Read",
        Action::Write { .. } => "Write",
        Action::Prepare { .. } => "Prepare",
        Action::Commit(_) => "Commit",
        Action::Lock { .. } => "Lock",
        Action::WriteUnlock(_) => "WriteUnlock",
        other => return format!("{other:?}"),
    };
    name.to_owned()
}
