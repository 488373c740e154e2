//! `lockify status`: the nodes.

use std::process::ExitCode;

use lockify_client::{ClusterStatus, NodeStatus};
use serde::Serialize;

use crate::connect::{Connection, Missing, failed};
use crate::exit::Ended;
use crate::output::{columns, print, print_json};

/// Show every node of the cluster: who is in it, which lockspaces run, how busy they are
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    nodes: &'a [NodeStatus],
    silent: Vec<u32>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let status = client.status().map_err(failed)?;
    if args.json {
        let silent = status.silent.iter().map(|n| n.0).collect();
        print_json(&Json { nodes: &status.nodes, silent })?;
    } else {
        print(&text(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(status: &ClusterStatus) -> String {
    let mut text = columns(
        &["NODE", "SHARD", "VIEW", "MEMBERS", "LOCKSPACE", "POLICY", "STATE", "CLAIMS", "MESSAGES"],
        &status.nodes.iter().flat_map(rows).collect::<Vec<_>>(),
    );
    for node in &status.nodes {
        for peer in node.peers.iter().filter(|p| !p.connected) {
            let why = peer.error.as_deref().unwrap_or("not tried yet");
            text += &format!("node {} has no connection to node {}: {why}\n", node.node, peer.node);
        }
    }
    for node in &status.silent {
        text += &format!("node {node} does not answer: is its daemon running?\n");
    }
    text
}

/// One row per lockspace of a node; one for the node if it has none.
fn rows(node: &NodeStatus) -> Vec<Vec<String>> {
    let members: Vec<String> = node.members.iter().map(ToString::to_string).collect();
    let quorum = if node.view == 0 { "none".into() } else { node.view.to_string() };
    let head = [node.node.to_string(), node.shard.to_string(), quorum, members.join(",")];
    let space = |s: &lockify_client::SpaceStatus| {
        let state = if s.running { "runs" } else { "recovers" };
        let (claims, sent) = (s.unsettled_claims.to_string(), s.stats.messages_sent.to_string());
        let tail = [s.name.clone(), s.policy.clone(), state.into(), claims, sent];
        head.iter().cloned().chain(tail).collect()
    };
    if node.spaces.is_empty() {
        return vec![head.to_vec()];
    }
    node.spaces.iter().map(space).collect()
}
