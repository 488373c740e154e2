//! The holders of locks, in words and in JSON; `docs/observing.md` describes the JSON.

use std::time::{Duration, SystemTime};

use lockify_client::{ClusterView, Mode, NodeId};
use lockify_core::{ClientId, LockInfo, Queue, ResourceInfo};
use serde::Serialize;

/// The version of all JSON that subcommands print of a cluster. It grows when a field goes or
/// changes its meaning; new fields do not count.
pub const SCHEMA: u32 = 1;

/// A resource for people and scripts.
#[derive(Debug, Serialize)]
pub struct Resource {
    /// Its name; bytes that are not printable ASCII are escaped as in Rust.
    pub name: String,
    /// The node that masters it.
    pub master: Option<u32>,
    /// A claim of its mastership is not settled.
    pub claim_pending: bool,
    /// The holders.
    pub holders: Vec<Lock>,
    /// The waiters, in order.
    pub waiters: Vec<Lock>,
}

/// A lock of a resource.
#[derive(Debug, Serialize)]
pub struct Lock {
    /// Its owner's node.
    pub node: u32,
    /// Its owner, as `PID.SESSION`; null for an orphan.
    pub client: Option<String>,
    /// Its owner's process.
    pub pid: Option<u32>,
    /// The transaction it belongs to, in decimal, if it is not its session's.
    pub transaction: Option<String>,
    /// The mode it holds.
    pub granted: Option<String>,
    /// The mode it waits for.
    pub requested: Option<String>,
    /// When the grant or the wait began, UTC.
    pub since: String,
    /// How long ago that is, in seconds.
    pub for_s: f64,
    /// Fencing token, in decimal: it may be more than JSON's readers count to.
    pub token: Option<String>,
    /// The reason for the wait of its operation: `nothing`, `queue`, `claims`, `recovery`, `merge`,
    /// `master` or `answer`.
    pub wait: &'static str,
    /// The owners of the locks that a wait in the queue is for.
    pub waits_for: Vec<Owner>,
}

/// The owner of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Owner {
    /// The node.
    pub node: u32,
    /// The client, as `PID.SESSION`; null for an orphan.
    pub client: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
}

/// The whole cluster's report.
#[derive(Debug, Serialize)]
pub struct View {
    /// The version of the format, [`SCHEMA`].
    pub schema: u32,
    /// The resources.
    pub resources: Vec<Resource>,
    /// Locks that were left out, as there are too many for one answer.
    pub omitted: u64,
    /// Nodes that did not answer: their knowledge is missing.
    pub silent: Vec<u32>,
}

impl View {
    /// Makes a cluster's answer readable.
    pub fn of(view: &ClusterView) -> View {
        View::at(view, SystemTime::now())
    }

    fn at(view: &ClusterView, now: SystemTime) -> View {
        View {
            schema: SCHEMA,
            omitted: view.omitted,
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
    let held = |l: &&LockInfo| l.granted.is_some();
    let waiting = |l: &&LockInfo| l.queue != Queue::Granted;
    let of = |l: &LockInfo| lock(l, now, r.blockers(l).map(owner).collect());
    Resource {
        name: r.name.to_string(),
        master: r.master.map(|n: NodeId| n.0),
        claim_pending: r.claim_pending,
        holders: r.locks.iter().filter(held).map(|l| lock(l, now, Vec::new())).collect(),
        waiters: r.locks.iter().filter(waiting).map(of).collect(),
    }
}

/// A lock and whose locks its wait is for.
pub fn lock(l: &LockInfo, now: SystemTime, waits_for: Vec<Owner>) -> Lock {
    let mode = |m: Option<Mode>| m.map(|m| format!("{m:?}"));
    // The cluster's answer counts nanoseconds since 1970.
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(l.since);
    Lock {
        node: l.node.0,
        client: session(l.client),
        pid: pid(l.client),
        transaction: (l.transaction != 0).then(|| l.transaction.to_string()),
        granted: mode(l.granted),
        requested: mode(l.requested),
        since: humantime::format_rfc3339_millis(since).to_string(),
        // Another node's clock may be ahead of ours.
        for_s: now.duration_since(since).unwrap_or_default().as_secs_f64(),
        token: (l.token != 0).then(|| l.token.to_string()),
        wait: l.wait.word(),
        waits_for,
    }
}

/// The owner of a lock.
pub fn owner(l: &LockInfo) -> Owner {
    Owner { node: l.node.0, client: session(l.client), pid: pid(l.client) }
}

fn session(client: Option<ClientId>) -> Option<String> {
    client.map(|c| format!("{}.{}", c.0 >> 32, c.0 & 0xffff_ffff))
}

/// The process of a client; embedded ones have none.
fn pid(client: Option<ClientId>) -> Option<u32> {
    client.map(lockify_client::protocol::pid_of).filter(|pid| *pid != 0)
}

/// An owner, as `node 1 pid 4711`.
fn whose(node: u32, client: Option<&str>, pid: Option<u32>) -> String {
    match (pid, client) {
        (Some(pid), _) => format!("node {node} pid {pid}"),
        (None, Some(client)) => format!("node {node} client {client}"),
        (None, None) => format!("node {node} (orphan)"),
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&whose(self.node, self.client.as_deref(), self.pid))
    }
}

impl Lock {
    /// The owner, as `node 1 pid 4711`.
    pub fn whose(&self) -> String {
        whose(self.node, self.client.as_deref(), self.pid)
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
pub mod tests {
    use super::*;
    use lockify_client::{ClientId, Name};
    use lockify_core::{LockFlags, LockId, Wait};

    /// A lock of a node and a client of its own, in the master's queue or granted since 1970.
    pub fn lock_info(lock: u64, granted: Option<Mode>, requested: Option<Mode>) -> LockInfo {
        LockInfo {
            node: NodeId(lock as u32),
            client: Some(ClientId(lock)),
            lock: LockId(lock),
            queue: if requested.is_some() { Queue::Waiting } else { Queue::Granted },
            granted,
            requested,
            token: 0,
            since: 0,
            wait: if requested.is_some() { Wait::Queue } else { Wait::Nothing },
            op: 1,
            flags: LockFlags::empty(),
            transaction: 0,
        }
    }

    pub fn resource_info(name: &str, locks: Vec<LockInfo>) -> ResourceInfo {
        ResourceInfo {
            name: Name::new(name).unwrap(),
            master: Some(NodeId(1)),
            claim_pending: false,
            locks,
            lvb: None,
            lvb_invalid: false,
        }
    }

    #[test]
    fn a_waiter_waits_for_the_holders_it_conflicts_with() {
        let locks = vec![
            lock_info(1, Some(Mode::PR), None),
            lock_info(2, Some(Mode::CR), None),
            lock_info(3, None, Some(Mode::PW)),
        ];
        let r = resource_info("r", locks);
        let r = resource(&r, SystemTime::UNIX_EPOCH + Duration::from_secs(2));
        assert_eq!((r.holders.len(), r.waiters.len()), (2, 1));
        assert_eq!(
            r.waiters[0].waits_for,
            [Owner { node: 1, client: Some("0.1".into()), pid: None }]
        );
        assert_eq!(r.waiters[0].since, "1970-01-01T00:00:00.000Z");
        assert_eq!(r.waiters[0].age(), "2s");
    }

    #[test]
    fn the_json_of_who_and_locks_stays_as_it_is() {
        let mut held = lock_info(1, Some(Mode::EX), None);
        held.client = Some(lockify_client::protocol::client_id(4711, 3));
        held.token = 7 << 60;
        held.wait = Wait::Claims;
        let mut waits = lock_info(2, None, Some(Mode::PR));
        waits.transaction = u64::MAX;
        let resources = vec![resource_info("a \u{e9}", vec![held, waits])];
        let view = ClusterView { resources, omitted: 0, silent: vec![NodeId(3)] };
        let view = View::at(&view, SystemTime::UNIX_EPOCH + Duration::from_millis(2500));
        crate::output::assert_golden("who", &view, include_str!("../tests/golden/who.json"));
    }
}
