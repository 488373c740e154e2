//! `lockify array export`: an array as a block device, of the network (NBD) or of this machine's kernel (ublk).

#[cfg_attr(not(feature = "ublk"), path = "export/without_ublk.rs")]
mod ublk;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lockify_array::{NodeName, Usage};
use lockify_trust::{Identity, node_name};
use lockify_volume::ArrayFile;
use lockify_volume::door::{Export, Stopper};
use lockify_volume::host::{Array, Joining, this_node};
use lockify_volume::nbd::{Ended as ServerEnded, Listen, OPEN_TO_NETWORK, Server};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{FAREWELL, announce, say};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::secure::Secure;

/// Be a host of an array, and serve it as a network block device (NBD), or as a block device of this machine (ublk)
///
/// Linux (nbd-client), QEMU, libnbd and fio are clients. Several hosts may export the same array at the same time: what one
/// writes, all read. Each request is isolated from those of all others; requests longer than 1 MiB are split at stripes.
/// Requests begin at any byte and have any length; those of whole blocks of 4096 bytes are faster. SIGTERM or SIGINT ends it
/// when what clients asked for is done.
///
/// With --ublk the kernel is the client, and needs no other program. With --state and --exclusive as well, the device outlives
/// this process while a file system is on it. The next export with the same --state takes it over, and requests wait until then.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub struct Args {
    /// The array's file (`lockify array create`)
    #[arg(value_name = "ARRAY.toml")]
    array: PathBuf,
    /// Remember in this file which host of the array this process is. If the last process with the file has not ended in
    /// order, it is fenced before this one serves. Two processes at a time cannot have the same file
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// The node that this process runs on, as the cluster manager calls it (`fence_lockify`) [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<NodeName>,
    /// Of no use any more: the array gives each host its number
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(..0x8000_0000))]
    host: Option<u32>,
    /// Serve on a Unix socket, for this user
    #[arg(long, value_name = "PATH", group = "where")]
    socket: Option<PathBuf>,
    /// The permissions of the socket's file, in octal [default: 600, or 660 with --socket-group]
    #[arg(long, value_name = "MODE", requires = "socket", value_parser = parse_mode)]
    socket_mode: Option<u32>,
    /// The group of the socket's file: its name or number
    #[arg(long, value_name = "GROUP", requires = "socket", value_parser = parse_group)]
    socket_group: Option<u32>,
    /// Serve by TCP, on a loopback address; port 0 is a free one
    #[arg(long, value_name = "ADDR:PORT", group = "where")]
    listen: Option<SocketAddr>,
    /// Serve as /dev/ublkbN of this machine's kernel. Needs root, Linux 6.1 or later, and a build with the feature `ublk`
    #[arg(long, value_name = "N", group = "where", value_parser = clap::value_parser!(u32).range(..0x10_0000))]
    ublk: Option<u32>,
    /// Remove what another export has left as /dev/ublkbN: what waits for it gets errors
    #[arg(long, requires = "ublk")]
    ublk_discard: bool,
    /// Serve by TLS only, with the keys of --ca and --identity: clients prove that they are nodes of the cluster. Allows all
    /// addresses in --listen
    #[arg(long, requires = "ca", conflicts_with = "ublk")]
    tls: bool,
    /// Without --tls, allow other addresses in --listen, if the words are "anybody who reaches the network may read and write the array"
    #[arg(long, value_name = "WORDS", requires = "listen")]
    open_to_network: Option<String>,
    /// The export's name [default: the file's, without .toml]; clients need not give it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Have the array for this export alone, as a file system that is not made for several machines needs it (ext4, XFS).
    /// Refused while another export is there, and refuses others
    #[arg(long)]
    exclusive: bool,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// How long to wait for the array's devices at the start (as 10s)
    #[arg(long, value_name = "D", default_value = "10s", value_parser = humantime::parse_duration)]
    patience: Duration,
    /// Record clients' requests and answers in a new file for `lockify check`: from the first start of the array on, and
    /// for all its processes
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    #[command(flatten)]
    secure: Secure,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions are three octal digits, as 660".into())
}

fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group on this machine: see `getent group`".into()),
        Err(e) => Err(format!("the groups of this machine cannot be read: {e}")),
    }
}

impl Args {
    fn place(&self) -> Result<Listen, Failure> {
        let open = match self.open_to_network.as_deref() {
            None => self.tls,
            Some(OPEN_TO_NETWORK) => true,
            Some(_) => {
                let what = format!("--open-to-network wants the words \"{OPEN_TO_NETWORK}\"");
                return Err(Failure::new(Code::Unreadable, what));
            }
        };
        match (&self.socket, self.listen) {
            (Some(path), _) => {
                let group = self.socket_group;
                let mode = self.socket_mode.unwrap_or(if group.is_some() { 0o660 } else { 0o600 });
                Ok(Listen::Unix { path: path.clone(), mode, group })
            }
            (None, Some(address)) => Ok(Listen::Tcp { address, open }),
            (None, None) => {
                Err(Failure::new(Code::Unreadable, "give --socket, --listen or --ublk"))
            }
        }
    }

    fn export(&self, file: &ArrayFile) -> Export {
        let stem = || self.array.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = self.name.clone().or_else(stem).unwrap_or_default();
        let description = format!("array {}", file.id);
        Export::of(file, name, description, self.read_only)
    }
}

/// Says which other hosts clients have to reckon with.
fn warn_of_others(array: &Array) {
    let nodes = array.attached().map(|state| &state.nodes);
    let shared = nodes.into_iter().flat_map(|nodes| nodes.of_usage(|usage| usage == Usage::Shared));
    let others: Vec<String> = shared
        .filter(|(host, _)| *host != array.number())
        .map(|(host, node)| format!("host {host} on node {node}"))
        .collect();
    if let Some((first, rest)) = others.split_first() {
        let more =
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        say(&format!(
            "{first}{more} may use the array at the same time: a file system that is not made for several machines would be \
             destroyed; --exclusive keeps others out"
        ));
    }
}

impl Args {
    fn joining(&self, identity: Identity) -> Joining {
        if let Some(host) = self.host {
            say(&format!(
                "--host {host} is of no use any more: the array gives each host its number"
            ));
        }
        Joining {
            memory: self.state.clone(),
            node: self.node_name.unwrap_or_else(this_node),
            usage: if self.exclusive { Usage::Exclusive } else { Usage::Shared },
            identity,
            patience: self.patience,
            log: say,
        }
    }
}

/// Has SIGTERM and SIGINT stop a door.
fn stop_by_signals(stopper: impl Fn() -> io::Result<Stopper>) -> Result<(), Failure> {
    for signal in [SIGTERM, SIGINT] {
        let stop = stopper().or_fail(Code::Failed)?.into_socket();
        signal_hook::low_level::pipe::register(signal, stop).or_fail(Code::Failed)?;
    }
    Ok(())
}

fn fenced() -> Failure {
    let what = "this host was taken for dead and fenced; start it again, and look why it was silent, or who has fenced it";
    Failure::new(Code::Failed, what)
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    match args.ublk {
        Some(id) => ublk::run(args, id),
        None => serve_nbd(args),
    }
}

fn serve_nbd(args: &Args) -> Ended {
    let place = args.place()?;
    let file = ArrayFile::read(&args.array).or_fail(Code::Unreadable)?;
    let identity = args.secure.renewed_identity(say)?;
    let keys = identity.keyring().filter(|_| args.tls).cloned();
    let server =
        Server::listen(&place, args.export(&file), keys.clone(), say).or_fail(Code::Failed)?;
    stop_by_signals(|| server.stopper())?;
    let joining = args.joining(identity.clone());
    let opened = match &args.history {
        Some(history) => Array::open_recorded(&file, &joining, history),
        None => Array::open(&file, &joining),
    };
    let array = opened.or_fail(Code::Failed)?;
    let uri = server.uri().or_fail(Code::Failed)?;
    announce(&format!("host {} serves the array: {uri}\n", array.number()))?;
    if keys.is_some() {
        let name = node_name(identity.cluster(), identity.node()).or_fail(Code::Failed)?;
        say(&format!("clients compare the certificate with the name {name} (QEMU: tls-hostname)"));
    }
    warn_of_others(&array);
    // Also while no client asks for anything.
    let stop = server.stopper().or_fail(Code::Failed)?;
    array.on_fence(Box::new(move || stop.stop()));
    let ended = server.run(Arc::new(array.clone())).or_fail(Code::Failed)?;
    let ended = if array.is_fenced() { ServerEnded::Fenced } else { ended };
    array.leave(FAREWELL);
    match ended {
        ServerEnded::Stopped => Ok(ExitCode::SUCCESS),
        ServerEnded::Abandoned => {
            let what = "ended although the array had not answered some requests for 10 s; their clients were cut off";
            Err(Failure::new(Code::Failed, what))
        }
        ServerEnded::Fenced => Err(fenced()),
    }
}
