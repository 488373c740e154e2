//! Locks through daemons and at other nodes, next to bare ping-pongs.

use std::net::TcpListener;
use std::path::Path;

use lockify_bench::locks::{self as bench, on_other_processor};
use lockify_daemon::{Config, Daemon, Log};
use tempfile::TempDir;

use super::{Effort, Measured};
use crate::exit::{Code, Failure, OrFail as _};

const PAIRS: usize = 2000;

/// Through a daemon, at its own node; without metrics and with them.
pub fn daemon(effort: Effort) -> Measured {
    let dir = temporary()?;
    let start = |config: &Config| {
        on_other_processor(|| Daemon::start(config, &quiet())).or_fail(Code::Failed)
    };
    let config = Config::alone(dir.path().join("lockify.sock"));
    let daemon = start(&config)?;
    let mut rows =
        bench::daemon_pairs(&config.socket, "default", pairs(effort)).or_fail(Code::Failed)?;
    let mut measured = Config::alone(dir.path().join("measured.sock"));
    measured.metrics.socket = Some(dir.path().join("metrics.sock"));
    let with_metrics = start(&measured)?;
    let (plain, measured) = (&config.socket, &measured.socket);
    let compared = bench::measured_daemon_pairs(plain, measured, "default", pairs(effort));
    drop((daemon, with_metrics));
    rows.extend(compared.or_fail(Code::Failed)?);
    Ok(rows)
}

/// At another node: embedded, claimed, with TLS, and through two daemons.
pub fn other_node(effort: Effort) -> Measured {
    let mut rows = bench::remote_embedded_pairs(pairs(effort)).or_fail(Code::Failed)?;
    rows.extend(bench::claimed_embedded_pairs(pairs(effort)).or_fail(Code::Failed)?);
    rows.extend(bench::remote_tls_pairs(pairs(effort)).or_fail(Code::Failed)?);
    let dir = temporary()?;
    let configs = two_nodes(dir.path())?;
    let start = |config: &Config| {
        on_other_processor(|| Daemon::start(config, &quiet())).or_fail(Code::Failed)
    };
    let daemons = [start(&configs[0])?, start(&configs[1])?];
    let [asker, master] = &configs;
    let measured =
        bench::remote_daemon_pairs(&asker.socket, &master.socket, "default", pairs(effort));
    drop(daemons);
    rows.extend(measured.or_fail(Code::Failed)?);
    Ok(rows)
}

fn pairs(effort: Effort) -> bench::Effort {
    bench::Effort { rounds: effort.rounds, pairs: PAIRS / effort.shorter }
}

/// Daemons come and go here as planned.
pub fn quiet() -> Log {
    Log::new(|notice| {
        if notice.level == lockify_node::Level::Error {
            eprintln!("lockify bench: {notice}");
        }
    })
}

/// Configurations of two nodes on free ports.
fn two_nodes(dir: &Path) -> Result<[Config; 2], Failure> {
    let free =
        || TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).or_fail(Code::Failed);
    let (first, second) = (free()?, free()?);
    let config = |node: u32| {
        let path = dir.join(format!("node{node}.toml"));
        let socket = dir.join(format!("node{node}.sock"));
        let text = format!(
            "node = {node}\nsocket = {socket:?}\nnodes = [{{ id = 1, address = \"{first}\" }}, \
             {{ id = 2, address = \"{second}\" }}]\n"
        );
        Config::parse(&text, &path).or_fail(Code::Failed)
    };
    Ok([config(1)?, config(2)?])
}

/// A directory that goes with the benchmark.
pub fn temporary() -> Result<TempDir, Failure> {
    tempfile::tempdir().or_fail(Code::Failed)
}
