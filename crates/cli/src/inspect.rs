//! Who holds what, in words and in JSON.

use std::time::{Duration, SystemTime};

use lockify_client::{ClusterView, Mode, NodeId};
use lockify_core::{ClientId, LockInfo, Queue, ResourceInfo};
use serde::Serialize;

/// A resource for people and scripts.
#[derive(Debug, Serialize)]
pub struct Resource {
    /// Its name; bytes that are not printable ASCII are escaped as in Rust.
    pub name: String,
    /// The node that masters it.
    pub master: Option<u32>,
    /// Who holds it.
    pub holders: Vec<Lock>,
    /// Who waits for it, in order.
    pub waiters: Vec<Lock>,
}

/// A lock of a resource.
#[derive(Debug, Serialize)]
pub struct Lock {
    /// Its owner's node.
    pub node: u32,
    /// Its owner; absent for an orphan.
    pub client: Option<u64>,
    /// Its owner's process.
    pub pid: Option<u32>,
    /// The mode it holds.
    pub granted: Option<String>,
    /// The mode it waits for.
    pub requested: Option<String>,
    /// When the grant or the wait began, UTC.
    pub since: String,
    /// How long ago that is, in seconds.
    pub for_s: f64,
    /// Fencing token.
    pub token: Option<u64>,
    /// The holders that this wait is for, as node and client.
    pub waits_for: Vec<Owner>,
}

/// The owner of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Owner {
    /// The node.
    pub node: u32,
    /// The client; absent for an orphan.
    pub client: Option<u64>,
    /// Its process.
    pub pid: Option<u32>,
}

/// What the whole cluster said.
#[derive(Debug, Serialize)]
pub struct View {
    /// The resources.
    pub resources: Vec<Resource>,
    /// Nodes that did not answer: what they know is missing.
    pub silent: Vec<u32>,
}

impl View {
    /// Makes a cluster's answer readable.
    pub fn of(view: &ClusterView) -> View {
        let now = SystemTime::now();
        View {
            resources: view.resources.iter().map(|r| resource(r, now)).collect(),
            silent: view.silent.iter().map(|n| n.0).collect(),
        }
    }

    /// A warning if something is missing.
    pub fn warning(&self) -> Option<String> {
        (!self.silent.is_empty()).then(|| {
            let nodes: Vec<String> = self.silent.iter().map(u32::to_string).collect();
            format!(
                "node {} did not answer: its locks may be missing here; see `lockify status`\n",
                nodes.join(", ")
            )
        })
    }
}

fn resource(r: &ResourceInfo, now: SystemTime) -> Resource {
    let holders: Vec<&LockInfo> = r.locks.iter().filter(|l| l.granted.is_some()).collect();
    let waiting = |l: &&LockInfo| l.queue != Queue::Granted;
    Resource {
        name: r.name.to_string(),
        master: r.master.map(|n: NodeId| n.0),
        holders: holders.iter().map(|l| lock(l, now, &[])).collect(),
        waiters: r.locks.iter().filter(waiting).map(|l| lock(l, now, &holders)).collect(),
    }
}

fn lock(l: &LockInfo, now: SystemTime, holders: &[&LockInfo]) -> Lock {
    let mode = |m: Option<Mode>| m.map(|m| format!("{m:?}"));
    // The cluster's answer counts nanoseconds since 1970.
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(l.since);
    Lock {
        node: l.node.0,
        client: l.client.map(|c| c.0),
        pid: pid(l.client),
        granted: mode(l.granted),
        requested: mode(l.requested),
        since: humantime::format_rfc3339_millis(since).to_string(),
        // Another node's clock may be ahead of ours.
        for_s: now.duration_since(since).unwrap_or_default().as_secs_f64(),
        token: (l.token != 0).then_some(l.token),
        waits_for: holders.iter().filter(|h| blocks(h, l)).map(|h| owner(h)).collect(),
    }
}

/// Whether a holder's mode keeps a waiter from its own.
fn blocks(holder: &LockInfo, waiter: &LockInfo) -> bool {
    let same = holder.node == waiter.node && holder.lock == waiter.lock;
    let modes = holder.granted.zip(waiter.requested);
    !same && modes.is_some_and(|(held, wanted)| !held.compatible(wanted))
}

fn owner(l: &LockInfo) -> Owner {
    Owner { node: l.node.0, client: l.client.map(|c| c.0), pid: pid(l.client) }
}

/// The process of a client; embedded ones have none.
fn pid(client: Option<ClientId>) -> Option<u32> {
    client.map(lockify_client::protocol::pid_of).filter(|pid| *pid != 0)
}

/// An owner, as `node 1 pid 4711`.
fn whose(node: u32, client: Option<u64>, pid: Option<u32>) -> String {
    match (pid, client) {
        (Some(pid), _) => format!("node {node} pid {pid}"),
        (None, Some(client)) => format!("node {node} client {client}"),
        (None, None) => format!("node {node} (orphan)"),
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&whose(self.node, self.client, self.pid))
    }
}

impl Lock {
    /// The owner, as `node 1 pid 4711`.
    pub fn whose(&self) -> String {
        whose(self.node, self.client, self.pid)
    }

    /// How long, as `3m 5s`.
    pub fn age(&self) -> String {
        let age = Duration::from_secs_f64(self.for_s);
        // Nobody wants nanoseconds of hours.
        let coarse = match age.as_secs() {
            0 => Duration::from_millis(age.as_millis() as u64),
            s => Duration::from_secs(s),
        };
        humantime::format_duration(coarse).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockify_client::{ClientId, Name};
    use lockify_core::LockId;

    fn info(lock: u64, granted: Option<Mode>, requested: Option<Mode>) -> LockInfo {
        LockInfo {
            node: NodeId(lock as u32),
            client: Some(ClientId(lock)),
            lock: LockId(lock),
            queue: if requested.is_some() { Queue::Waiting } else { Queue::Granted },
            granted,
            requested,
            token: 0,
            since: 0,
        }
    }

    #[test]
    fn a_waiter_waits_for_the_holders_it_conflicts_with() {
        let locks = vec![
            info(1, Some(Mode::PR), None),
            info(2, Some(Mode::CR), None),
            info(3, None, Some(Mode::PW)),
        ];
        let name = Name::new("r").unwrap();
        let r = ResourceInfo {
            name,
            master: None,
            claim_pending: false,
            locks,
            lvb: None,
            lvb_invalid: false,
        };
        let r = resource(&r, SystemTime::UNIX_EPOCH + Duration::from_secs(2));
        assert_eq!((r.holders.len(), r.waiters.len()), (2, 1));
        assert_eq!(r.waiters[0].waits_for, [Owner { node: 1, client: Some(1), pid: None }]);
        assert_eq!(r.waiters[0].since, "1970-01-01T00:00:00.000Z");
        assert_eq!(r.waiters[0].age(), "2s");
    }
}
