//! `lockify cluster`: the cluster's memory, and the keys and certificates by which its nodes prove
//! their identity.

mod remembered;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use lockify_trust::{CaFolder, Lifetime, NodeFiles, TrustError, generate_key_file};

use crate::exit::{Code, Ended, Failure};
use crate::output::print;

/// Change a running cluster; make and renew the keys by which nodes prove their identity
///
/// join, leave, replace, set, recover and status are about a cluster that runs: they need a daemon of it, and root or
/// the daemon's user (docs/membership.md).
///
/// The others make keys. Either an authority signs a certificate for each node (init, add-node), or all nodes share one
/// key (key). Nothing is overwritten, except by renew, roll-over and retire, which are for that.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Remembered(remembered::Command),
    /// Make a folder with a new authority, to be kept off the nodes
    Init {
        /// The folder, which must not exist
        folder: PathBuf,
        /// The cluster's name, as in the configuration of its nodes
        #[arg(long, default_value = "lockify")]
        name: String,
        /// Days until the authority's certificate ends
        #[arg(long, default_value_t = 3650)]
        days: u32,
    },
    /// Make the files of new nodes, each in a folder node-N
    AddNode(Nodes),
    /// Make new keys and certificates for nodes, in place of those in their folders
    Renew(Nodes),
    /// Add a new authority that signs from now on; nodes trust both until `retire`
    RollOver {
        /// The authority's folder
        folder: PathBuf,
        /// Days until the new authority's certificate ends
        #[arg(long, default_value_t = 3650)]
        days: u32,
    },
    /// End the trust in the authority that `roll-over` has replaced
    Retire {
        /// The authority's folder
        folder: PathBuf,
    },
    /// Make a key that all nodes share, instead of an authority
    Key {
        /// The file, which must not exist
        file: PathBuf,
    },
}

#[derive(clap::Args)]
struct Nodes {
    /// The authority's folder
    folder: PathBuf,
    /// The nodes' ids
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<u32>,
    /// Days until the certificates end
    #[arg(long, default_value_t = 1095)]
    days: u32,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let text = match &args.command {
        Command::Remembered(command) => return remembered::run(command),
        Command::Init { folder, name, days } => CaFolder::init(folder, name, Lifetime::Days(*days))
            .map(|_| {
                let path = folder.display();
                format!(
                    "{path}: the authority of cluster {name:?}. Keep it where no node is, and \
                     safe: whoever has it can be any node.\n\
                     Next: lockify cluster add-node {path} 1 2 3\n"
                )
            }),
        Command::AddNode(nodes) => for_each(nodes, CaFolder::add_node),
        Command::Renew(nodes) => for_each(nodes, CaFolder::renew),
        Command::RollOver { folder, days } => roll_over(folder, Lifetime::Days(*days)),
        Command::Retire { folder } => CaFolder::open(folder).and_then(|ca| ca.retire()).map(|ca| {
            format!(
                "{0}: only the newest authority.\n\
                 Next: copy {0} to every node, and send SIGHUP to its daemon\n",
                ca.display()
            )
        }),
        Command::Key { file } => generate_key_file(file).map(|()| {
            format!(
                "{}: copy it to every node, readable only by the daemon's user, and name it in \
                 [security] cluster_key\n",
                file.display()
            )
        }),
    };
    print(&text.map_err(failed)?)?;
    Ok(ExitCode::SUCCESS)
}

fn failed(e: TrustError) -> Failure {
    Failure::new(Code::Failed, e)
}

/// Makes each node's files; those that were made before one fails stay, and are reported.
fn for_each(
    nodes: &Nodes,
    make: impl Fn(&CaFolder, u32, Lifetime) -> Result<NodeFiles, TrustError>,
) -> Result<String, TrustError> {
    let ca = CaFolder::open(&nodes.folder)?;
    let mut text = String::new();
    for &node in &nodes.nodes {
        let made = make(&ca, node, Lifetime::Days(nodes.days));
        if made.is_err() && !text.is_empty() {
            eprint!("{text}");
        }
        let made = made?;
        text += &format!(
            "node {node}: copy {} and {} to it, readable only by the daemon's user\n",
            made.identity.display(),
            made.ca.display()
        );
    }
    Ok(text + "A daemon that runs already uses them after SIGHUP\n")
}

fn roll_over(folder: &Path, lifetime: Lifetime) -> Result<String, TrustError> {
    let ca = CaFolder::open(folder)?.roll_over(lifetime)?;
    let (ca, folder) = (ca.display(), folder.display());
    Ok(format!(
        "{ca}: the new authority and the one before it. Next, and each on all nodes before the \
         following step:\n\
         1. copy {ca} to every node, and send SIGHUP to its daemon\n\
         2. lockify cluster renew {folder} NODES; copy node.pem to its node, and send SIGHUP\n\
         3. lockify cluster retire {folder}; copy {ca} to every node, and send SIGHUP\n"
    ))
}
