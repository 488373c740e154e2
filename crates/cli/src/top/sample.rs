//! The data of a look, and the changes from one look to the next.

use std::time::{Instant, SystemTime};

use lockify_client::{
    Client, ClusterStatus, ClusterView, Error, Lockspace, NodeStatus, ResourceInfo, SpaceStatus,
};
use lockify_core::{Queue, waits};
use serde::Serialize;

use crate::inspect::{self, Owner, SCHEMA};
use crate::output::columns;
use crate::status;

/// Resources for which somebody waits that are looked at.
const MOST_WAITED_FOR: usize = 10_000;
/// Resources that are told of.
const MOST: usize = 1000;

/// One look at the cluster.
pub struct Sample {
    at: Instant,
    wall: SystemTime,
    space: String,
    status: ClusterStatus,
    view: ClusterView,
}

/// The cluster now, with rates since the look before.
#[derive(Debug, Serialize)]
pub struct Top {
    schema: u32,
    /// The time that rates are over, seconds.
    interval_s: f64,
    pub nodes: Vec<Node>,
    /// Resources for which somebody waits, most waiters first.
    pub contended: Vec<Contended>,
    /// Circles of waits, as one look shows them: `lockify doctor` looks twice.
    pub deadlocks: usize,
    /// Locks left out because there are too many for one answer.
    pub omitted: u64,
    /// Nodes that did not answer.
    pub silent: Vec<u32>,
}

/// A node and shard.
#[derive(Debug, Serialize)]
pub struct Node {
    pub node: u32,
    pub shard: u32,
    pub state: &'static str,
    pub locks: u64,
    pub waiting: u64,
    pub unsettled_claims: u64,
    /// As a master.
    pub grants_per_s: f64,
    /// Waits begun, as a master.
    pub queued_per_s: f64,
    pub claims_per_s: f64,
    pub messages_per_s: f64,
    pub bytes_per_s: f64,
}

/// A resource for which somebody waits.
#[derive(Debug, Serialize)]
pub struct Contended {
    pub resource: String,
    pub master: Option<u32>,
    pub holders: usize,
    pub waiters: usize,
    /// The longest of the waits, seconds.
    pub longest_s: f64,
    /// The owner of the lock that blocks the first waiter.
    pub blocker: Option<Owner>,
}

impl Sample {
    /// Looks at the cluster once.
    pub fn take(client: &Client, space: &Lockspace) -> Result<Sample, Error> {
        let (view, status) = (space.waited_for(MOST_WAITED_FOR)?, client.status()?);
        let (at, wall) = (Instant::now(), SystemTime::now());
        Ok(Sample { at, wall, space: space.name().into(), status, view })
    }
}

impl Top {
    /// The changes between two looks.
    pub fn between(before: &Sample, now: &Sample) -> Top {
        let interval_s = now.at.duration_since(before.at).as_secs_f64();
        let nodes = now.status.nodes.iter().map(|n| {
            // A node that was not there before, or began a new life, has no rates yet.
            let same = |b: &&NodeStatus| {
                (b.node, b.shard, b.incarnation) == (n.node, n.shard, n.incarnation)
            };
            node(&now.space, before.status.nodes.iter().find(same), n, interval_s)
        });
        let waited = |r: &&ResourceInfo| r.locks.iter().any(|l| l.queue != Queue::Granted);
        let mut contended: Vec<Contended> =
            now.view.resources.iter().filter(waited).map(|r| resource(r, now.wall)).collect();
        contended.sort_by(|a, b| {
            let order = b.waiters.cmp(&a.waiters).then(b.longest_s.total_cmp(&a.longest_s));
            order.then_with(|| a.resource.cmp(&b.resource))
        });
        contended.truncate(MOST);
        let mut silent: Vec<u32> = now.status.silent.iter().map(|n| n.0).collect();
        // Each shard is asked.
        silent.sort_unstable();
        silent.dedup();
        Top {
            schema: SCHEMA,
            interval_s,
            nodes: nodes.collect(),
            contended,
            deadlocks: waits::cycles(&now.view.resources).len(),
            omitted: now.view.omitted,
            silent,
        }
    }

    /// As text.
    pub fn text(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(Node::row).collect();
        let contended: Vec<_> = self.contended.iter().map(Contended::row).collect();
        let mut text = columns(&Node::HEADING, &nodes);
        text += &self.remarks().join("");
        text.push('\n');
        match contended.is_empty() {
            true => text + "nobody waits\n",
            false => text + &columns(&Contended::HEADING, &contended),
        }
    }

    /// The problems, a line each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if !self.silent.is_empty() {
            let nodes: Vec<String> = self.silent.iter().map(u32::to_string).collect();
            remarks.push(format!("no answer from node {}\n", nodes.join(", ")));
        }
        match self.deadlocks {
            0 => {}
            1 => remarks.push("a deadlock: see `lockify doctor`\n".into()),
            n => remarks.push(format!("{n} deadlocks: see `lockify doctor`\n")),
        }
        if self.omitted > 0 {
            remarks.push(format!("{} locks are left out, too many to look at\n", self.omitted));
        }
        remarks
    }
}

impl Node {
    pub const HEADING: [&str; 10] = [
        "NODE", "SHARD", "STATE", "LOCKS", "WAITING", "CLAIMS", "GRANTS/S", "QUEUED/S", "MSGS/S",
        "KB/S",
    ];

    /// Its cells.
    pub fn row(&self) -> Vec<String> {
        let rate = |r: f64| format!("{r:.1}");
        vec![
            self.node.to_string(),
            self.shard.to_string(),
            self.state.into(),
            self.locks.to_string(),
            self.waiting.to_string(),
            self.unsettled_claims.to_string(),
            rate(self.grants_per_s),
            rate(self.queued_per_s),
            rate(self.messages_per_s),
            rate(self.bytes_per_s / 1e3),
        ]
    }
}

impl Contended {
    pub const HEADING: [&str; 6] =
        ["NAME", "MASTER", "HOLDERS", "WAITERS", "LONGEST", "BLOCKED BY"];

    /// Its cells.
    pub fn row(&self) -> Vec<String> {
        vec![
            self.resource.clone(),
            self.master.map_or_else(|| "?".into(), |m| m.to_string()),
            self.holders.to_string(),
            self.waiters.to_string(),
            format!("{:.1}s", self.longest_s),
            self.blocker.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]
    }
}

fn node(space: &str, before: Option<&NodeStatus>, now: &NodeStatus, interval: f64) -> Node {
    let of = |n: &NodeStatus| n.spaces.iter().find(|s| s.name == space).cloned();
    let (then, s) = (before.and_then(of), of(now));
    let since = |then: Option<u64>, now: u64| {
        then.map_or(0.0, |then| now.saturating_sub(then) as f64 / interval.max(1e-3))
    };
    let rate = |count: fn(&SpaceStatus) -> u64| {
        since(then.as_ref().map(count), s.as_ref().map_or(0, count))
    };
    let bytes = |n: &NodeStatus| n.engine.bytes_sent + n.engine.bytes_received;
    Node {
        node: now.node.0,
        shard: now.shard,
        state: match &s {
            _ if now.view == 0 => "no quorum",
            Some(s) => status::state(s),
            None => "outside",
        },
        locks: s.as_ref().map_or(0, |s| s.locks),
        waiting: s.as_ref().map_or(0, |s| s.waiting),
        unsettled_claims: s.as_ref().map_or(0, |s| s.unsettled_claims),
        grants_per_s: rate(|s| s.stats.grants),
        queued_per_s: rate(|s| s.stats.queued),
        claims_per_s: rate(|s| s.stats.claims),
        messages_per_s: rate(|s| s.stats.messages_sent),
        bytes_per_s: since(before.map(bytes), bytes(now)),
    }
}

fn resource(r: &ResourceInfo, now: SystemTime) -> Contended {
    let waiters: Vec<_> = r.locks.iter().filter(|l| l.queue != Queue::Granted).collect();
    let longest = waiters.iter().map(|l| inspect::lock(l, now, Vec::new()).for_s);
    let blocker = waiters.iter().flat_map(|l| r.blockers(l)).next();
    Contended {
        resource: r.name.to_string(),
        master: r.master.map(|m| m.0),
        holders: r.locks.iter().filter(|l| l.granted.is_some()).count(),
        waiters: waiters.len(),
        longest_s: longest.fold(0.0, f64::max),
        blocker: blocker.map(inspect::owner),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::inspect::tests::{lock_info, resource_info};
    use lockify_client::{ClientId, Mode, NodeId, Stats};
    use lockify_core::LockInfo;
    use lockify_node::EngineStats;
    use std::time::Duration;

    fn lock(node: u32, requested: Option<Mode>) -> LockInfo {
        let granted = requested.is_none().then_some(Mode::EX);
        let client = Some(ClientId(u64::from(node) << 32));
        let lock = lock_info(u64::from(node), granted, requested);
        LockInfo { client, since: 1_000_000_000, ..lock }
    }

    fn sample(at: Instant, grants: u64) -> Sample {
        let space = SpaceStatus {
            name: "default".into(),
            policy: "claim".into(),
            view: 7,
            members: vec![NodeId(1)],
            running: true,
            recovery: None,
            unsettled_claims: 0,
            locks: 3,
            waiting: 2,
            resources: 2,
            deadlock_after: None,
            stats: Stats { grants, ..Stats::default() },
        };
        let node = NodeStatus {
            node: NodeId(1),
            incarnation: 1,
            shard: 0,
            view: 7,
            members: vec![NodeId(1)],
            spaces: vec![space],
            peers: Vec::new(),
            unfenced: Vec::new(),
            standing: lockify_node::Standing::default(),
            engine: EngineStats { bytes_sent: grants * 1000, ..EngineStats::default() },
            software: None,
            certificates: Vec::new(),
        };
        let busy = vec![lock(1, None), lock(2, Some(Mode::PR)), lock(3, Some(Mode::EX))];
        let resources =
            vec![resource_info("idle", vec![lock(4, None)]), resource_info("busy", busy)];
        Sample {
            at,
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(4),
            space: "default".into(),
            status: ClusterStatus { nodes: vec![node], silent: vec![NodeId(3)] },
            view: ClusterView { resources, ..ClusterView::default() },
        }
    }

    /// Two looks, two seconds apart.
    pub fn top() -> Top {
        let start = Instant::now();
        Top::between(&sample(start, 10), &sample(start + Duration::from_secs(2), 30))
    }

    #[test]
    fn a_node_that_has_begun_anew_has_no_rates_yet() {
        let start = Instant::now();
        let (before, mut now) = (sample(start, 10), sample(start + Duration::from_secs(1), 30));
        now.status.nodes[0].incarnation += 1;
        let node = &Top::between(&before, &now).nodes[0];
        assert_eq!((node.grants_per_s, node.bytes_per_s), (0.0, 0.0));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut now = sample(Instant::now(), 10);
        now.view.omitted = 12;
        // Both shards' answers.
        now.status.silent = vec![NodeId(2), NodeId(3), NodeId(2), NodeId(3)];
        let top = Top::between(&now, &now);
        assert_eq!((top.omitted, &top.silent[..]), (12, &[2, 3][..]));
        let remarks = top.remarks().concat();
        assert!(remarks.contains("node 2, 3") && remarks.contains("12 locks"), "{remarks}");
    }

    #[test]
    fn rates_and_contended_locks_follow_from_two_looks() {
        let top = top();
        assert_eq!((top.nodes[0].grants_per_s, top.nodes[0].bytes_per_s), (10.0, 10_000.0));
        assert_eq!(top.contended.len(), 1);
        let busy = &top.contended[0];
        assert_eq!((busy.waiters, busy.holders, busy.longest_s), (2, 1, 3.0));
        assert_eq!(busy.blocker.as_ref().unwrap().node, 1);
        let text = top.text();
        assert!(text.contains("busy") && !text.contains("idle"), "{text}");
        assert!(text.contains("no answer from node 3"), "{text}");
    }

    #[test]
    fn the_json_of_top_stays_as_it_is() {
        let golden = include_str!("../../tests/golden/top.json");
        crate::output::assert_golden("top", &top(), golden);
    }
}
