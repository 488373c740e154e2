//! The holders of locks, as plain tuples: `lockify/_views.py` gives them names.

use lockify_client::protocol::pid_of;
use lockify_client::{ClientId, ClusterView, Mode, NodeId, ResourceInfo};
use lockify_core::{LockInfo, Queue};
use pyo3::prelude::*;

/// `ToldView` of `_views.py`, as those below.
pub type View = (Vec<Resource>, u64, Vec<u32>);
type Resource = (Vec<u8>, Option<u32>, bool, Vec<Lock>, Vec<Lock>);
type Owner = (u32, Option<u32>, Option<u32>);

#[derive(IntoPyObject)]
pub struct Lock(Owner, u64, Option<u8>, Option<u8>, f64, u64, &'static str, Vec<Owner>);

pub fn view(view: &ClusterView) -> View {
    let silent = view.silent.iter().map(|node| node.0).collect();
    (view.resources.iter().map(resource).collect(), view.omitted, silent)
}

fn resource(r: &ResourceInfo) -> Resource {
    let holders = r.locks.iter().filter(|l| l.granted.is_some()).map(|l| lock(l, Vec::new()));
    let waiters = r.locks.iter().filter(|l| l.queue != Queue::Granted);
    let waiters = waiters.map(|l| lock(l, r.blockers(l).map(owner).collect()));
    let master = r.master.map(|NodeId(master)| master);
    (r.name.as_bytes().to_vec(), master, r.claim_pending, holders.collect(), waiters.collect())
}

fn lock(l: &LockInfo, waits_for: Vec<Owner>) -> Lock {
    let number = |mode: Option<Mode>| mode.map(|mode| mode as u8);
    // The cluster's answer counts nanoseconds since 1970.
    let since = l.since as f64 / 1e9;
    Lock(
        owner(l),
        l.transaction,
        number(l.granted),
        number(l.requested),
        since,
        l.token,
        l.wait.word(),
        waits_for,
    )
}

fn owner(l: &LockInfo) -> Owner {
    let session = l.client.map(|ClientId(client)| client as u32);
    // Embedded nodes' clients have no process.
    (l.node.0, session, l.client.map(pid_of).filter(|pid| *pid != 0))
}
