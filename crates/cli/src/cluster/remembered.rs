//! `lockify cluster join|leave|replace|set|recover|status`: the memory of a running cluster.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use lockify_core::NodeId;
use lockify_daemon::Address;
use lockify_node::FenceKind;
use lockify_node::membership::{ClusterState, NodeEntry, Request};
use serde::Serialize;

use crate::connect::{Connection, Missing, failed};
use crate::exit::{Code, Ended, Failure};
use crate::output::{print, print_json};

/// Changes of a running cluster.
#[derive(Subcommand)]
pub enum Command {
    /// Add a node to the running cluster, or change its address
    Join {
        #[command(flatten)]
        connection: Connection,
        /// The node's id
        node: u32,
        /// Where other nodes reach it, HOST:PORT
        address: Address,
        /// It does not vote on the cluster's memory
        #[arg(long)]
        learner: bool,
    },
    /// Remove a node from the running cluster; its locks are recovered
    Leave {
        #[command(flatten)]
        connection: Connection,
        /// The node's id
        node: u32,
    },
    /// Have another machine take a node's place: start it with the node's id and an empty state_dir
    Replace {
        #[command(flatten)]
        connection: Connection,
        /// The node's id
        node: u32,
        /// Where other nodes reach it from now on, HOST:PORT
        address: Address,
    },
    /// Change a key of the whole cluster: `lease 4s`, or `fence lease|command|none`
    Set {
        #[command(flatten)]
        connection: Connection,
        /// lease or fence
        key: String,
        /// Its value, as in the configuration
        value: String,
    },
    /// Begin a new era on this node: a majority of the voters has lost its disks for good
    Recover {
        #[command(flatten)]
        connection: Connection,
        /// Confirms that no other node of the cluster runs
        #[arg(long)]
        no_other_node_runs: bool,
    },
    /// Show the cluster's memory
    Status {
        #[command(flatten)]
        connection: Connection,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the subcommand.
pub fn run(command: &Command) -> Ended {
    let (connection, request) = match command {
        Command::Join { connection, node, address, learner } => {
            (connection, join(*node, address, !learner))
        }
        Command::Replace { connection, node, address } => (connection, join(*node, address, true)),
        Command::Leave { connection, node } => (connection, Request::Leave { node: NodeId(*node) }),
        Command::Set { connection, key, value } => (connection, set(key, value)?),
        Command::Recover { connection, no_other_node_runs } => {
            if !no_other_node_runs {
                return Err(Failure::new(
                    Code::Unreadable,
                    "a new era makes this node the only one that counts: stop all other nodes, then repeat \
                     this with --no-other-node-runs",
                ));
            }
            (connection, Request::Recover)
        }
        Command::Status { connection, json } => return status(connection, *json),
    };
    let client = connection.client(Missing::Fail).map_err(failed)?;
    let done = client.change_cluster(&request).map_err(failed)?;
    print(&(done + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn join(node: u32, address: &Address, voter: bool) -> Request {
    let entry = NodeEntry { address: address.to_string(), voter };
    Request::Join { node: NodeId(node), entry }
}

fn set(key: &str, value: &str) -> Result<Request, Failure> {
    let wrong = |expected: &str| {
        Failure::new(Code::Unreadable, format!("{key} = {value:?}: expected {expected}"))
    };
    match key {
        "lease" => {
            let lease: Duration = humantime::parse_duration(value)
                .map_err(|_| wrong("a time of 10ms to 1h, for example `lease 4s`"))?;
            Ok(Request::Lease(u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX)))
        }
        "fence" => [FenceKind::Lease, FenceKind::Command, FenceKind::None]
            .into_iter()
            .find(|kind| kind.name() == value)
            .map(Request::Fence)
            .ok_or_else(|| wrong("lease, command or none, for example `fence command`")),
        _ => Err(Failure::new(
            Code::Unreadable,
            format!(
                "{key:?} is no key of a cluster: expected lease or fence, for example `lease 4s`"
            ),
        )),
    }
}

/// The cluster's memory, for people and programs.
#[derive(Serialize)]
struct Remembered {
    era: u64,
    configuration: u32,
    view: u64,
    lease_ms: u64,
    next_lease_ms: Option<u64>,
    fence: &'static str,
    shards: u32,
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    node: u32,
    address: String,
    votes: bool,
    life: Option<u64>,
    member: bool,
    left_out_because: Option<String>,
}

fn status(connection: &Connection, json: bool) -> Ended {
    let client = connection.client(Missing::Fail).map_err(failed)?;
    let remembered = Remembered::of(&client.cluster().map_err(failed)?);
    if json {
        print_json(&remembered)?;
    } else {
        print(&remembered.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Remembered {
    fn of(state: &ClusterState) -> Remembered {
        let millis = |t: u64| t / 1_000_000;
        let node = |(id, entry): (&NodeId, &NodeEntry)| Node {
            node: id.0,
            address: entry.address.clone(),
            votes: state.voters.contains_key(id),
            life: state.life(*id),
            member: state.view.life(*id).is_some(),
            left_out_because: state.excluded.get(id).map(|e| e.why.to_string()),
        };
        Remembered {
            era: state.config.era,
            configuration: state.config.number,
            view: state.view.seq,
            lease_ms: state.keys.as_ref().map_or(0, |k| millis(k.lease)),
            next_lease_ms: state.next_lease.map(millis),
            fence: state.fence().name(),
            shards: state.keys.as_ref().map_or(0, |k| k.shards),
            nodes: state.nodes.iter().map(node).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "era {}, configuration {}, view {}\nlease {} ms, fence {}, shards {}\n",
            self.era, self.configuration, self.view, self.lease_ms, self.fence, self.shards
        );
        if let Some(next) = self.next_lease_ms {
            text += &format!("the lease becomes {next} ms when every member knows\n");
        }
        for n in &self.nodes {
            let votes = if n.votes { "votes" } else { "learns" };
            let member = if n.member { "member" } else { "out" };
            let life = n.life.map_or("no life yet".into(), |life| format!("life {life}"));
            text += &format!("node {}  {}  {votes}  {member}  {life}\n", n.node, n.address);
            if let Some(why) = &n.left_out_because {
                text += &format!("  left out because {why}\n");
            }
        }
        text
    }
}
