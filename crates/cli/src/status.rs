//! `lockify status`: the nodes.

use std::time::{Duration, SystemTime};

use lockify_client::{ClusterStatus, FenceKind, NodeId, NodeStatus, SpaceStatus, Stats};
use lockify_core::RecoveryInfo;
use lockify_core::message::Step;
use lockify_node::EngineStats;
use lockify_trust::printable;
use serde::Serialize;

use crate::connect::{Connection, Missing, failed};
use crate::exit::{Code, Ended};
use crate::health::{self, Problem};
use crate::inspect::SCHEMA;
use crate::output::{columns, print};

/// Show every node of the cluster: its view, its lockspaces and its load
///
/// Ends with 1 if a node is missing or has no quorum, if an operation waits for the fencing of a node,
/// or if a node's certificate ends soon (security.warn_days in the daemon's configuration).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The output of `--json`; `docs/observing.md` describes it.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    nodes: Vec<Node<'a>>,
    silent: Vec<u32>,
    problems: &'a [Problem],
}

#[derive(Serialize)]
struct Node<'a> {
    node: u32,
    shard: u32,
    incarnation: String,
    view: u64,
    members: Vec<u32>,
    unfenced: Vec<u32>,
    membership: Membership<'a>,
    lockspaces: Vec<Space<'a>>,
    peers: Vec<Peer<'a>>,
    software: Option<Software<'a>>,
    certificates: Vec<Certificate>,
    counters: &'a EngineStats,
}

#[derive(Serialize)]
struct Software<'a> {
    release: &'a str,
    oldest_version: u16,
    newest_version: u16,
}

#[derive(Serialize)]
struct Certificate {
    node: u32,
    ends: String,
    warn_days: u32,
}

#[derive(Serialize)]
struct Membership<'a> {
    service: &'a str,
    quorate: Option<bool>,
    fence: &'static str,
    waits: &'a [String],
}

#[derive(Serialize)]
struct Space<'a> {
    name: &'a str,
    policy: &'a str,
    view: u64,
    members: Vec<u32>,
    state: &'static str,
    recovery: Option<Recovery>,
    resources: u64,
    locks: u64,
    waiting: u64,
    unsettled_claims: u64,
    deadlock_after_s: Option<f64>,
    counters: &'a Stats,
}

#[derive(Serialize)]
struct Recovery {
    step: &'static str,
    missing: Vec<u32>,
}

#[derive(Serialize)]
struct Peer<'a> {
    node: u32,
    connected: bool,
    backlog: u64,
    version: Option<u16>,
    error: Option<&'a str>,
}

impl Json<'_> {
    fn of<'a>(status: &'a ClusterStatus, problems: &'a [Problem]) -> Json<'a> {
        Json {
            schema: SCHEMA,
            nodes: status.nodes.iter().map(node).collect(),
            silent: ids(&status.silent),
            problems,
        }
    }
}

fn ids(nodes: &[NodeId]) -> Vec<u32> {
    nodes.iter().map(|n| n.0).collect()
}

fn node(n: &NodeStatus) -> Node<'_> {
    Node {
        node: n.node.0,
        shard: n.shard,
        incarnation: n.incarnation.to_string(),
        view: n.view,
        members: ids(&n.members),
        unfenced: ids(&n.unfenced),
        membership: Membership {
            service: &n.standing.service,
            quorate: n.standing.quorate,
            fence: n.standing.fence.name(),
            waits: &n.standing.waits,
        },
        lockspaces: n.spaces.iter().map(space).collect(),
        peers: (n.peers.iter())
            .map(|p| Peer {
                node: p.node.0,
                connected: p.connected,
                backlog: p.backlog,
                version: spoken(n, p.node),
                error: p.error.as_deref(),
            })
            .collect(),
        software: n.software.as_ref().map(|s| Software {
            release: &s.release,
            oldest_version: s.oldest,
            newest_version: s.newest,
        }),
        certificates: n.certificates.iter().map(certificate).collect(),
        counters: &n.engine,
    }
}

fn certificate(c: &lockify_node::Certificate) -> Certificate {
    // A certificate that ended before 1970 was never valid.
    let ends = Duration::from_secs(u64::try_from(c.ends).unwrap_or(0));
    let ends = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + ends).to_string();
    Certificate { node: c.node.0, ends, warn_days: c.warn_days }
}

/// The version of the node protocol that two nodes speak, as the first one says.
fn spoken(n: &NodeStatus, with: NodeId) -> Option<u16> {
    let spoken = &n.software.as_ref()?.spoken;
    spoken.iter().find(|(node, _)| *node == with).map(|(_, version)| *version)
}

fn space(s: &SpaceStatus) -> Space<'_> {
    let recovery = |r: &RecoveryInfo| Recovery { step: step(r), missing: ids(&r.missing) };
    Space {
        name: &s.name,
        policy: &s.policy,
        view: s.view,
        members: ids(&s.members),
        state: state(s),
        recovery: s.recovery.as_ref().map(recovery),
        resources: s.resources,
        locks: s.locks,
        waiting: s.waiting,
        unsettled_claims: s.unsettled_claims,
        deadlock_after_s: s.deadlock_after.map(|ns| ns as f64 / 1e9),
        counters: &s.stats,
    }
}

/// The state of a lockspace on a node.
pub fn state(s: &SpaceStatus) -> &'static str {
    match (s.running, s.view) {
        (true, _) => "runs",
        (false, 0) => "outside",
        (false, _) => "recovers",
    }
}

/// The step that a recovery is at.
pub fn step(r: &RecoveryInfo) -> &'static str {
    match r.step {
        Step::Nodes => "nodes",
        Step::Directory => "directory",
        Step::Locks => "locks",
        Step::Done => "done",
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let status = client.status().map_err(failed)?;
    let problems = health::problems(&status, seconds_since_1970());
    if args.json {
        args.connection.print_json(&Json::of(&status, &problems))?;
    } else {
        print(&(args.connection.headline()? + &text(&status, &problems)))?;
    }
    let code = if problems.is_empty() { Code::Success } else { Code::Violated };
    Ok(code.into())
}

/// The time, as certificates know it.
pub fn seconds_since_1970() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn text(status: &ClusterStatus, problems: &[Problem]) -> String {
    let mut text = columns(
        &["NODE", "SHARD", "VIEW", "MEMBERS", "LOCKSPACE", "POLICY", "STATE", "CLAIMS", "MESSAGES"],
        &status.nodes.iter().flat_map(rows).collect::<Vec<_>>(),
    );
    for node in &status.nodes {
        text += &standing(node);
        for peer in node.peers.iter().filter(|p| !p.connected) {
            let why = printable(peer.error.as_deref().unwrap_or("not tried yet"));
            text += &format!("node {} has no connection to node {}: {why}\n", node.node, peer.node);
        }
    }
    text += &versions(status);
    problems.iter().for_each(|problem| text += &format!("! {}\n", problem.text));
    text
}

/// The rest of an upgrade: connections that have an older version of the node protocol than one of
/// their ends could speak.
fn versions(status: &ClusterStatus) -> String {
    let first = status.nodes.iter().filter(|n| n.shard == 0);
    let known = first.filter_map(|n| Some((n, n.software.as_ref()?)));
    let mut text = String::new();
    for (node, software) in known {
        let older = software.spoken.iter().filter(|(_, version)| *version < software.newest);
        let older: Vec<_> = older.map(|(with, version)| format!("{version} with {with}")).collect();
        if !older.is_empty() {
            text += &format!(
                "node {} could speak version {} of the node protocol, and speaks {}: upgrade those \
                 nodes, or raise their wire_version\n",
                node.node,
                software.newest,
                older.join(", ")
            );
        }
    }
    text
}

/// A node's membership service, for operators.
fn standing(node: &NodeStatus) -> String {
    let (id, s) = (node.node, &node.standing);
    let mut text = String::new();
    if s.quorate.is_none() && s.service == "corosync" {
        text += &format!("node {id} is not connected to corosync: is it running there?\n");
    }
    if s.fence == FenceKind::None {
        text += &format!(
            "node {id} does not wait for fencing (fence = \"none\"): locks of a node that does not \
             answer are given to others though it may still use them\n"
        );
    }
    text
}

/// One row per lockspace of a node; one for the node if it has none.
fn rows(node: &NodeStatus) -> Vec<Vec<String>> {
    let members: Vec<String> = node.members.iter().map(ToString::to_string).collect();
    let quorum = if node.view == 0 { "none".into() } else { node.view.to_string() };
    let head = [node.node.to_string(), node.shard.to_string(), quorum, members.join(",")];
    let space = |s: &lockify_client::SpaceStatus| {
        let (claims, sent) = (s.unsettled_claims.to_string(), s.stats.messages_sent.to_string());
        let tail = [s.name.clone(), s.policy.clone(), state(s).into(), claims, sent];
        head.iter().cloned().chain(tail).collect()
    };
    if node.spaces.is_empty() {
        return vec![head.to_vec()];
    }
    node.spaces.iter().map(space).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockify_node::PeerStatus;

    #[test]
    fn the_json_of_status_stays_as_it_is() {
        let space = SpaceStatus {
            name: "default".into(),
            policy: "claim".into(),
            view: 7,
            members: vec![NodeId(1), NodeId(2)],
            running: false,
            recovery: Some(RecoveryInfo { step: Step::Locks, missing: vec![NodeId(2)] }),
            unsettled_claims: 1,
            locks: 5,
            waiting: 2,
            resources: 4,
            deadlock_after: Some(1_500_000_000),
            stats: Stats { grants: 9, ..Stats::default() },
        };
        let peer = PeerStatus {
            node: NodeId(3),
            connected: false,
            incarnation: None,
            backlog: 3,
            error: Some("connection refused".into()),
        };
        let node = NodeStatus {
            node: NodeId(1),
            incarnation: 1 << 60,
            shard: 0,
            view: 7,
            members: vec![NodeId(1), NodeId(2)],
            spaces: vec![space],
            peers: vec![peer],
            unfenced: vec![NodeId(3)],
            standing: lockify_node::Standing {
                service: "static".into(),
                waits: vec!["the fencing of node 3".into()],
                ..lockify_node::Standing::default()
            },
            engine: EngineStats::default(),
            software: Some(lockify_node::Software {
                release: "0.1.0".into(),
                oldest: 3,
                newest: 4,
                spoken: vec![(NodeId(2), 3)],
            }),
            certificates: vec![lockify_node::Certificate {
                node: NodeId(2),
                ends: 1_800_000_000,
                warn_days: 30,
            }],
        };
        let status = ClusterStatus { nodes: vec![node], silent: vec![NodeId(3)] };
        let golden = include_str!("../tests/golden/status.json");
        let problems = health::problems(&status, 0);
        crate::output::assert_golden("status", &Json::of(&status, &problems), golden);
        let told = text(&status, &problems);
        let says =
            "node 1 could speak version 4 of the node protocol, and speaks 3 with 2: upgrade";
        assert!(told.contains(says), "{told}");
    }
}
