//! Measures locks through a daemon and between embedded nodes: `cargo run --release -p
//! lockify-daemon --example pairs`.

use lockify_client::bench::{self, Effort};
use lockify_daemon::{Config, Daemon, Log};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let config = Config::alone(dir.path().join("lockify.sock"));
    let daemon = bench::on_other_processor(|| {
        Daemon::start(&config, &Log::new(|notice| eprintln!("{notice}")))
    })?;
    let mut rows = bench::daemon_pairs(&config.socket, "default", Effort::default())?;
    drop(daemon);
    rows.extend(bench::remote_embedded_pairs(Effort::default())?);
    rows.extend(bench::claimed_embedded_pairs(Effort::default())?);
    print!("{}", lockify_report::table(&rows));
    Ok(())
}
