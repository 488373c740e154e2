//! The problems of a cluster, from the nodes' status: for `status`, which ends with 1 then, and for `doctor`.

use std::collections::BTreeSet;

use lockify_client::{ClusterStatus, FenceKind, NodeId, NodeStatus};
use lockify_trust::printable;
use serde::Serialize;

/// Something that somebody should see to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// Which of them: `no_quorum`, `no_answer`, `out`, `unfenced` or `certificate`.
    pub kind: &'static str,
    /// The nodes that it is about.
    pub nodes: Vec<u32>,
    /// The problem, and its remedy.
    pub text: String,
}

fn problem(kind: &'static str, node: NodeId, text: String) -> Problem {
    Problem { kind, nodes: vec![node.0], text }
}

/// All of them, the most serious first, at this time in seconds since 1970.
pub fn problems(status: &ClusterStatus, now: i64) -> Vec<Problem> {
    let mut found: Vec<Problem> = Vec::new();
    let all = no_quorum(status)
        .chain(no_answer(status))
        .chain(out(status))
        .chain(unfenced(status))
        .chain(certificates(status, now));
    for problem in all {
        // Each shard says the same, and each node of the others. A node may wait for several fences.
        let told = |f: &Problem| {
            let same = f.kind == problem.kind && f.nodes == problem.nodes;
            same && (f.kind != "unfenced" || f.text == problem.text)
        };
        if !found.iter().any(told) {
            found.push(problem);
        }
    }
    found
}

/// Returns true if a node may grant anything.
pub fn has_quorum(n: &NodeStatus) -> bool {
    n.view != 0 && n.standing.quorate != Some(false)
}

fn no_quorum(status: &ClusterStatus) -> impl Iterator<Item = Problem> {
    let all = status.nodes.iter().filter(|n| !has_quorum(n));
    all.map(|n| {
        let (connected, all) = (n.peers.iter().filter(|p| p.connected).count() + 1, n.peers.len() + 1);
        let text = format!(
            "node {0} has no quorum: no lock is granted there. Its clients' locks are lost, and what \
             they ask for waits for the quorum: it reaches {connected} of {all} nodes, itself \
             included, and no majority has agreed on a view with it. Start the missing nodes, or mend \
             the network ({1})",
            n.node,
            unreached(n)
        );
        problem("no_quorum", n.node, text)
    })
}

/// A node's report about those that it has no connection to.
fn unreached(n: &NodeStatus) -> String {
    if n.standing.service == "corosync" && n.standing.quorate.is_none() {
        return "it is not connected to corosync: is it running there?".into();
    }
    let gone = n.peers.iter().filter(|p| !p.connected);
    let gone: Vec<String> = gone
        .map(|p| format!("node {}: {}", p.node, error(p.error.as_deref(), "not connected")))
        .collect();
    if gone.is_empty() { "all are connected, and will agree".into() } else { gone.join("; ") }
}

/// Why a connection failed, which another node may have said.
fn error(said: Option<&str>, otherwise: &str) -> String {
    said.map_or_else(|| otherwise.to_owned(), printable)
}

fn no_answer(status: &ClusterStatus) -> impl Iterator<Item = Problem> {
    let silent: BTreeSet<NodeId> = status.silent.iter().copied().collect();
    silent.into_iter().map(|node| {
        let text = format!(
            "node {node} does not answer. Node {node} is out because {}. What its clients hold stays \
             locked until the other nodes have agreed to go on without it. Look at its daemon and \
             network",
            why_out(status, node)
        );
        problem("no_answer", node, text)
    })
}

/// The others' reports about a node that they have no connection to.
fn why_out(status: &ClusterStatus, node: NodeId) -> String {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for n in &status.nodes {
        for p in n.peers.iter().filter(|p| p.node == node && !p.connected) {
            let (why, who) = (error(p.error.as_deref(), "not tried yet"), n.node.to_string());
            match said.iter_mut().find(|(told, _)| *told == why) {
                Some((_, by)) if by.contains(&who) => {}
                Some((_, by)) => by.push(who),
                None => said.push((why, vec![who])),
            }
        }
    }
    let told = |(why, by): &(String, Vec<String>)| {
        format!("node {} has no connection to it ({why})", by.join(", "))
    };
    match said.is_empty() {
        true => "it is connected and says nothing in time".into(),
        false => said.iter().map(told).collect::<Vec<_>>().join(", and "),
    }
}

/// Nodes that answer, and are in no view with those who have a quorum.
fn out(status: &ClusterStatus) -> impl Iterator<Item = Problem> {
    let views = status.nodes.iter().filter(|n| has_quorum(n));
    let members: BTreeSet<NodeId> = views.flat_map(|n| n.members.iter().copied()).collect();
    let outside = move |n: &&NodeStatus| !members.is_empty() && !members.contains(&n.node);
    status.nodes.iter().filter(outside).map(|n| {
        let waits = match &n.standing.waits[..] {
            [] => String::new(),
            waits => format!(", and waits for {}", printable(&waits.join(", "))),
        };
        let connected = n.peers.iter().all(|p| p.connected);
        let why = match connected {
            true => "the others have not agreed on a view with it yet".to_owned(),
            false => format!("it does not reach all of the others ({})", unreached(n)),
        };
        let text = format!(
            "node {0} is out because {why}{waits}: it answers, and is in no view of those who have \
             the quorum. It joins when they agree on one",
            n.node
        );
        problem("out", n.node, text)
    })
}

fn unfenced(status: &ClusterStatus) -> impl Iterator<Item = Problem> {
    let each = status.nodes.iter().flat_map(|n| n.unfenced.iter().map(move |gone| (n, *gone)));
    let gone = each.map(|(n, gone)| {
        let how = match n.standing.fence {
            FenceKind::Lease => {
                "until its lease has run out, or it is certain that its daemon has stopped. If you \
                 know that it has, start it anew"
            }
            FenceKind::Command => {
                "until the fencing agent has succeeded. If it cannot, see to it that the machine is \
                 off, and have the agent exit with 0 for it once"
            }
            FenceKind::None => "until the others have agreed on a view without it",
        };
        let text = format!(
            "what node {gone} holds or masters waits for a fence: node {gone} is gone, but may still \
             act, so its locks are not recovered {how}"
        );
        problem("unfenced", gone, text)
    });
    let waits = status.nodes.iter().flat_map(|n| n.standing.waits.iter().map(move |w| (n, w)));
    gone.chain(waits.map(|(n, wait)| {
        let text = format!(
            "node {} waits for {}: until then, what the other one holds stays locked",
            n.node,
            printable(wait)
        );
        problem("unfenced", n.node, text)
    }))
}

fn certificates(status: &ClusterStatus, now: i64) -> impl Iterator<Item = Problem> {
    let all = status.nodes.iter().flat_map(|n| &n.certificates);
    all.filter(move |c| c.ends_soon(now)).map(move |c| {
        let when = match c.days_left(now) {
            ..0 => "has ended: the other nodes refuse this one at its next connection".to_owned(),
            0 => "ends within a day".to_owned(),
            1 => "ends in 1 day".to_owned(),
            days => format!("ends in {days} days"),
        };
        let text = format!(
            "the certificate of node {}, or the authority that has signed it, {when}: renew it \
             (`lockify cluster renew ca {0}`, or first `lockify cluster roll-over ca`), copy its \
             files there, then `lockify reload`",
            c.node
        );
        problem("certificate", c.node, text)
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use lockify_node::{Certificate, EngineStats, PeerStatus, Standing};

    pub fn node(id: u32, view: u64, members: &[u32]) -> NodeStatus {
        let peer = |node| PeerStatus {
            node: NodeId(node),
            connected: members.contains(&node),
            incarnation: None,
            backlog: 0,
            error: Some(format!("cannot connect to 192.0.2.{node}:7430: \u{1b}[2J")),
        };
        NodeStatus {
            node: NodeId(id),
            incarnation: 1,
            shard: 0,
            view,
            members: members.iter().map(|m| NodeId(*m)).collect(),
            standing: Standing::default(),
            spaces: Vec::new(),
            peers: (1..=3).filter(|n| *n != id).map(peer).collect(),
            unfenced: Vec::new(),
            engine: EngineStats::default(),
            software: None,
            certificates: Vec::new(),
        }
    }

    fn kinds(status: &ClusterStatus) -> Vec<(&'static str, u32)> {
        problems(status, 0).iter().map(|p| (p.kind, p.nodes[0])).collect()
    }

    #[test]
    fn a_whole_cluster_has_no_problem() {
        let nodes = (1..=3).map(|n| node(n, 7, &[1, 2, 3])).collect();
        assert_eq!(kinds(&ClusterStatus { nodes, silent: Vec::new() }), []);
    }

    #[test]
    fn a_missing_node_is_out_because_of_what_the_others_say() {
        let nodes = (1..=2).map(|n| node(n, 7, &[1, 2])).collect();
        let status = ClusterStatus { nodes, silent: vec![NodeId(3), NodeId(3)] };
        let all = problems(&status, 0);
        assert_eq!(all.len(), 1);
        let says = "node 3 does not answer. Node 3 is out because node 1, 2 has no connection to it \
                    (cannot connect to 192.0.2.3:7430: \\u{1b}[2J)";
        assert!(all[0].text.starts_with(says), "{}", all[0].text);
    }

    #[test]
    fn a_node_without_quorum_says_how_many_it_reaches() {
        let status =
            ClusterStatus { nodes: vec![node(1, 0, &[])], silent: vec![NodeId(2), NodeId(3)] };
        assert_eq!(kinds(&status), [("no_quorum", 1), ("no_answer", 2), ("no_answer", 3)]);
        let text = &problems(&status, 0)[0].text;
        assert!(text.contains("waits for the quorum") && text.contains("1 of 3 nodes"), "{text}");
    }

    #[test]
    fn a_node_that_answers_and_is_in_no_view_is_out() {
        let nodes = vec![node(1, 7, &[1, 2]), node(2, 7, &[1, 2]), node(3, 0, &[])];
        let status = ClusterStatus { nodes, silent: Vec::new() };
        assert_eq!(kinds(&status), [("no_quorum", 3), ("out", 3)]);
    }

    #[test]
    fn who_waits_for_a_fence_is_told_what_ends_that() {
        let mut one = node(1, 7, &[1, 2, 3]);
        one.unfenced = vec![NodeId(3)];
        for (fence, says) in [(FenceKind::Lease, "lease"), (FenceKind::Command, "fencing agent")] {
            one.standing.fence = fence;
            let status = ClusterStatus { nodes: vec![one.clone()], silent: Vec::new() };
            let all = problems(&status, 0);
            assert_eq!((all.len(), all[0].kind), (1, "unfenced"));
            let text = &all[0].text;
            assert!(text.contains("waits for a fence") && text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_certificate_that_ends_soon_is_told_of_once() {
        let day = 24 * 3600;
        let mut one = node(1, 7, &[1, 2, 3]);
        let certificate = |node, days| Certificate {
            node: NodeId(node),
            ends: 1000 * day + days * day,
            warn_days: 30,
        };
        one.certificates = vec![certificate(1, 31), certificate(2, 29), certificate(3, -2)];
        let status = ClusterStatus { nodes: vec![one.clone(), one], silent: Vec::new() };
        let all = problems(&status, 1000 * day);
        let told: Vec<_> = all.iter().map(|p| (p.kind, p.nodes[0])).collect();
        assert_eq!(told, [("certificate", 2), ("certificate", 3)]);
        assert!(all[0].text.contains("ends in 29 days") && all[1].text.contains("has ended"));
    }
}
