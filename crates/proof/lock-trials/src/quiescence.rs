//! The conditions across nodes when nothing is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use lockify_core::{LockId, LockInfo, Lockspace, Name, NodeId, Policy, Queue, ResourceInfo};

use crate::host::LockNode;

/// Checks that all nodes report the same state. Each resource has one master, known to its directory. Every lock is
/// known at its master with the same modes. No claim is unsettled, granted modes are compatible, and there is no
/// structural defect.
///
/// # Errors
/// The first contradiction.
pub fn check(nodes: &[&LockNode]) -> Result<(), String> {
    let spaces: Vec<_> = nodes.iter().map(|node| node.space()).collect();
    check_spaces(&spaces)
}

/// As [`check`], for lockspaces without a host (the model check).
///
/// # Errors
/// The first contradiction.
pub fn check_spaces(spaces: &[&Lockspace]) -> Result<(), String> {
    for space in spaces {
        let node = space.config().node;
        if let Some(defect) = space.defects().first() {
            return Err(format!("node {node}: {}: {}", defect.name, defect.what));
        }
        if space.unsettled_claims() > 0 {
            return Err(format!(
                "node {node}: {} claims unsettled at rest",
                space.unsettled_claims()
            ));
        }
    }
    let story = Story::collect(spaces);
    story.check_masters(spaces)?;
    story.check_directory(spaces)?;
    story.check_locks()
}

/// Checks that nothing is left: no lock anywhere, and (unless a REMOVE may have been lost) no record of a master.
///
/// # Errors
/// The remaining state.
pub fn check_empty(nodes: &[&LockNode], removes_arrive: bool) -> Result<(), String> {
    for node in nodes {
        let id = node.space().config().node;
        if let Some(left) = node.space().resources().iter().find(|r| !r.locks.is_empty()) {
            return Err(format!(
                "node {id}: locks are left after everything was released: {left:?}"
            ));
        }
        if let Some((name, master)) = node.space().directory().first()
            && removes_arrive
        {
            return Err(format!(
                "node {id}: the directory still says that {master} masters {name}"
            ));
        }
    }
    Ok(())
}

/// The waiting operations and their reasons, for a run without progress.
pub fn waiting(nodes: &[&LockNode]) -> String {
    let mut text = String::new();
    for node in nodes {
        let space = node.space();
        let _ =
            write!(text, "node {}: {} unsettled", space.config().node, space.unsettled_claims());
        if node.open_claim_waits() > 0 {
            let _ = write!(text, ", {} waits for claims open", node.open_claim_waits());
        }
        for resource in space.resources() {
            if resource.claim_pending || resource.locks.iter().any(|l| l.queue != Queue::Granted) {
                let _ = write!(text, "; {resource:?}");
            }
        }
        text.push('\n');
    }
    text
}

/// The reports of all nodes, by resource.
struct Story {
    resources: BTreeMap<Name, BTreeMap<NodeId, ResourceInfo>>,
}

impl Story {
    fn collect(spaces: &[&Lockspace]) -> Story {
        let mut resources: BTreeMap<Name, BTreeMap<NodeId, ResourceInfo>> = BTreeMap::new();
        for space in spaces {
            for resource in space.resources() {
                resources.entry(resource.name).or_default().insert(space.config().node, resource);
            }
        }
        Story { resources }
    }

    fn master(&self, name: &Name) -> Option<NodeId> {
        let told = self.resources.get(name)?;
        told.iter().find(|(node, info)| info.master == Some(**node)).map(|(node, _)| *node)
    }

    fn check_masters(&self, spaces: &[&Lockspace]) -> Result<(), String> {
        for (name, told) in &self.resources {
            let masters: Vec<_> = told
                .iter()
                .filter(|(node, info)| info.master == Some(**node))
                .map(|(n, _)| *n)
                .collect();
            let held = told.values().any(|info| !info.locks.is_empty());
            if masters.len() > 1 || (held && masters.is_empty() && !cached_elsewhere(spaces, name))
            {
                return Err(format!("INV-1: {name} has the masters {masters:?}: {told:?}"));
            }
            let Some(master) = masters.first() else { continue };
            for (node, info) in told {
                if !info.locks.is_empty() && info.master != Some(*master) {
                    return Err(format!(
                        "INV-1: {name}: node {node} says that {:?} is the master, which is {master}",
                        info.master
                    ));
                }
            }
        }
        Ok(())
    }

    /// INV-1's second half: the directory's record is the master.
    fn check_directory(&self, spaces: &[&Lockspace]) -> Result<(), String> {
        let keeps_one = spaces
            .iter()
            .all(|space| matches!(space.config().policy, Policy::Directory | Policy::Claim(_)));
        if !keeps_one {
            return Ok(());
        }
        let mut records: BTreeMap<Name, Vec<(NodeId, NodeId)>> = BTreeMap::new();
        for space in spaces {
            for (name, master) in space.directory() {
                records.entry(name).or_default().push((space.config().node, master));
            }
        }
        for (name, kept) in &records {
            if kept.len() > 1 {
                return Err(format!(
                    "INV-1: {name} has directory records at several nodes: {kept:?}"
                ));
            }
            let master = self.master(name);
            if let (Some((node, recorded)), Some(master)) = (kept.first(), master)
                && *recorded != master
            {
                return Err(format!(
                    "INV-1: the directory {node} says that {recorded} masters {name}, but {master} does"
                ));
            }
        }
        Ok(())
    }

    fn check_locks(&self) -> Result<(), String> {
        for (name, told) in &self.resources {
            let Some(master) = self.master(name) else { continue };
            let queues = &told[&master].locks;
            for (node, info) in told.iter().filter(|(node, _)| **node != master) {
                for lock in info.locks.iter().filter(|lock| lock.node == *node) {
                    same_at_master(name, lock, queues)?;
                }
            }
            self.no_ghosts(name, queues, told)?;
            compatible(name, queues)?;
        }
        Ok(())
    }

    /// Every lock that the master knows must exist at its owner.
    fn no_ghosts(
        &self,
        name: &Name,
        queues: &[LockInfo],
        told: &BTreeMap<NodeId, ResourceInfo>,
    ) -> Result<(), String> {
        let mut seen: BTreeSet<(NodeId, LockId)> = BTreeSet::new();
        for lock in queues {
            if !seen.insert((lock.node, lock.lock)) {
                return Err(format!("{name}: the master knows {lock:?} twice"));
            }
            let owner = told.get(&lock.node);
            if !owner.is_some_and(|info| {
                info.locks.iter().any(|l| l.lock == lock.lock && l.node == lock.node)
            }) {
                return Err(format!("{name}: the master knows {lock:?}, its owner does not"));
            }
        }
        Ok(())
    }
}

/// A master without locks of its own may not list the resource.
fn cached_elsewhere(spaces: &[&Lockspace], name: &Name) -> bool {
    spaces.iter().any(|space| {
        space.resource(name).is_some_and(|info| info.master == Some(space.config().node))
    })
}

fn same_at_master(name: &Name, lock: &LockInfo, queues: &[LockInfo]) -> Result<(), String> {
    let there = queues.iter().find(|l| l.node == lock.node && l.lock == lock.lock);
    match there {
        Some(there) if there.granted == lock.granted && there.requested == lock.requested => Ok(()),
        Some(there) => Err(format!("{name}: owner and master differ: {lock:?} and {there:?}")),
        None => Err(format!("{name}: the master does not know {lock:?}")),
    }
}

fn compatible(name: &Name, queues: &[LockInfo]) -> Result<(), String> {
    for (i, a) in queues.iter().enumerate() {
        for b in &queues[i + 1..] {
            if let (Some(x), Some(y)) = (a.granted, b.granted)
                && !x.compatible(y)
            {
                return Err(format!("INV-2: {name}: {a:?} and {b:?} are both granted"));
            }
        }
    }
    Ok(())
}
