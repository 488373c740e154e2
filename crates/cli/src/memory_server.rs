//! `lockify memory-server`: serves a table of locks in shared memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockify_fabric::shm::MAX_PEERS;
use lockify_onesided::{Options, Protocol};
use lockify_remote::{Listening, NetworkServer, Server, Settings};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::fabric::{Device, FabricName};
use crate::output::print;
use crate::secure::Secure;

/// Serve a table of locks, in shared memory or by RDMA
///
/// Clients take its locks by themselves, with atomic operations; the server makes the table, and answers where the
/// protocol needs it. Try it with `lockify remote-lock`. However a server in shared memory ends, the table stays, clients
/// keep their locks, and the next server goes on with it; by srsl, nobody is granted anything until then and for a lease
/// more. If one on a network ends, its locks are gone.
#[derive(clap::Args)]
pub struct Args {
    /// For processes of this machine (shm), or of others by RDMA (verbs)
    #[arg(long, value_name = "FABRIC", default_value = "shm")]
    fabric: FabricName,
    /// With shm, where the table is to be: a new file, best in memory
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/dev/shm/lockify-table",
        conflicts_with = "listen"
    )]
    table: PathBuf,
    /// With shm, make a new table in the place of one that is there, if nobody uses it; its tokens begin anew
    #[arg(long, conflicts_with = "listen")]
    new: bool,
    /// With verbs, where clients find the server, by TCP
    #[arg(long, value_name = "ADDR:PORT", required_if_eq("fabric", "verbs"))]
    listen: Option<SocketAddr>,
    /// How many locks it has: names are hashed to them
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    locks: u64,
    /// How many clients there can be at a time
    #[arg(long, value_name = "N", default_value_t = 63, value_parser = clap::value_parser!(u64).range(1..MAX_PEERS))]
    clients: u64,
    /// How locks are taken
    #[arg(long, default_value = "shiftlock-s")]
    protocol: Protocol,
    /// How long a lock can be held (as 500ms, 10s, 2m): locks of a killed client are repaired after about twice this. 0s:
    /// for ever, without repairs
    #[arg(long, value_name = "D", default_value = "10s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// With shm, its permissions: the file's mode in octal; 660 for the group
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    mode: u32,
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    secure: Secure,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    let mode = mode.ok_or_else(|| "a mode has three octal digits, as 600 or 660".to_owned())?;
    // A process with read access alone cannot take part, and a server has to.
    if mode & 0o600 == 0o600 {
        Ok(mode)
    } else {
        Err("the owner has to read and write: 6xx".to_owned())
    }
}

/// Leases that a busy machine can keep; those of a year are for ever.
const LEASES: core::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(365 * 86_400);

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let mut options = Options::new(args.protocol);
    if !args.lease.is_zero() {
        if !LEASES.contains(&args.lease) {
            let what = "--lease is 1ms to 365days, or 0s for holds without end";
            return Err(Failure::new(Code::Unreadable, what));
        }
        options = options.with_lease(args.lease.as_nanos() as u64);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).or_fail(Code::Failed)?;
    }
    match (args.fabric, args.listen) {
        (FabricName::Verbs, Some(address)) => on_network(args, address, options, &stop),
        (FabricName::Verbs, None) => {
            Err(Failure::new(Code::Unreadable, "--fabric verbs needs --listen ADDR:PORT"))
        }
        (FabricName::Shm, Some(_)) => {
            Err(Failure::new(Code::Unreadable, "--listen is for --fabric verbs"))
        }
        (FabricName::Shm, None) => in_memory(args, options, &stop),
    }
}

fn in_memory(args: &Args, options: Options, stop: &AtomicBool) -> Ended {
    let settings = Settings {
        path: args.table.clone(),
        locks: args.locks,
        clients: args.clients,
        mode: args.mode,
        options,
    };
    let start = if args.new { Server::start_new } else { Server::start };
    let server = start(&settings).or_fail(Code::Failed)?;
    let table = args.table.display();
    print(&format!(
        "{} locks by {} in {table}; try: lockify remote-lock {table} NAME -- COMMAND\n",
        args.locks,
        args.protocol.name()
    ))?;
    server.run(stop).or_fail(Code::Failed)?;
    eprintln!(
        "lockify: ended with {} clients, who keep what they hold: start it again for {table}, or remove that file when nobody \
         uses it",
        server.clients()
    );
    server.leave();
    Ok(ExitCode::SUCCESS)
}

fn on_network(args: &Args, address: SocketAddr, options: Options, stop: &AtomicBool) -> Ended {
    let listening = Listening {
        address,
        identity: args.secure.identity()?,
        verbs: args.device.settings(),
        locks: args.locks,
        // Its range is that of a segment's places.
        clients: u16::try_from(args.clients).or_fail(Code::Unreadable)?,
        options,
        log: |what| crate::output::print_message(&lockify_trust::printable(what)),
    };
    let server = NetworkServer::start(&listening).or_fail(Code::Failed)?;
    let address = server.address();
    print(&format!(
        "{} locks by {} on {}; try: lockify remote-lock --fabric verbs --server {address} NAME -- COMMAND\n",
        args.locks,
        args.protocol.name(),
        server.device()
    ))?;
    server.run(stop).or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
