//! `lockify array fence`.

use std::process::ExitCode;
use std::time::Duration;

use lockify_array::NodeName;
use lockify_volume::host::Array;

use super::{FAREWELL, Which};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Cut a host off from an array, or all hosts of a node, for good
///
/// When this has ended with 0, no write of the host takes effect any more, its unfinished writes are repaired, and its locks
/// are free. Its clients get errors. A process that is started again is another host. `status` and the host's first line have
/// its number. For cluster managers, before others go on with what it did; Pacemaker uses `fence_lockify`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("whom").required(true))]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// The host's number
    #[arg(long, value_name = "N", group = "whom")]
    host: Option<u32>,
    /// All hosts of this node that have attached before (`export --node-name`)
    #[arg(long, value_name = "NAME", group = "whom")]
    node_name: Option<NodeName>,
    /// How long it may take until all devices have recorded it, and the hosts' unfinished writes are repaired
    #[arg(long, value_name = "D", default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// The hosts that are to be cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whom {
    Host(u32),
    Node(NodeName),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    let whom = args.node_name.map_or(Whom::Host(args.host.unwrap_or(0)), Whom::Node);
    let fenced = fence(&array, whom, args.timeout);
    array.leave(FAREWELL);
    let hosts = fenced?;
    print(&match (hosts[..].split_last(), whom) {
        (Some((host, [])), _) => format!("host {host} is cut off, and its writes are settled\n"),
        (Some(_), _) => {
            format!("hosts {} are cut off, and their writes are settled\n", list(&hosts))
        }
        (None, Whom::Node(node)) => format!("node {node} has no host of the array any more\n"),
        (None, Whom::Host(_)) => String::new(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Numbers, for a message.
pub(crate) fn list(hosts: &[u32]) -> String {
    hosts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Cuts hosts off by an array that was opened for this: it is the newest host. Returns their numbers.
pub(crate) fn fence(array: &Array, whom: Whom, timeout: Duration) -> Result<Vec<u32>, Failure> {
    match whom {
        Whom::Host(host) => {
            is_known(array, host)?;
            array.fence(host, timeout).or_fail(Code::Failed)?;
            Ok(vec![host])
        }
        Whom::Node(node) => {
            let known = array.attached().and_then(|state| state.nodes.get(node));
            if known.is_none() {
                return Err(Failure::new(Code::Unreadable, unknown(array, node)));
            }
            array.fence_node(node, timeout).or_fail(Code::Failed)
        }
    }
}

/// A name that is spelled differently must not pass for a node that is cut off.
fn unknown(array: &Array, node: NodeName) -> String {
    let state = array.attached();
    let names = state.iter().flat_map(|state| state.nodes.iter()).map(|node| node.name.as_str());
    let names: Vec<&str> = names.collect();
    format!(
        "no host of node {node} has attached to the array; those of these nodes have: {}",
        names.join(", ")
    )
}

fn is_known(array: &Array, host: u32) -> Result<(), Failure> {
    // This command is the newest host.
    let newest = array.number() - 1;
    if (1..=newest).contains(&host) {
        return Ok(());
    }
    let what = match newest {
        0 => format!("no host {host}: none has attached yet"),
        _ => format!("no host {host}: the array's hosts so far are 1 to {newest}"),
    };
    Err(Failure::new(Code::Unreadable, what))
}
