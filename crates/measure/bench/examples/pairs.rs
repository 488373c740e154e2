//! Measures locks through a daemon and between embedded nodes: `cargo run --release -p
//! lockify-bench --example pairs`.

use lockify_bench::locks::{self, Effort};
use lockify_daemon::{Config, Daemon, Log};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let config = Config::alone(dir.path().join("lockify.sock"));
    let daemon = locks::on_other_processor(|| {
        Daemon::start(&config, &Log::new(|notice| eprintln!("{notice}")))
    })?;
    let mut rows = locks::daemon_pairs(&config.socket, "default", Effort::default())?;
    drop(daemon);
    rows.extend(locks::remote_embedded_pairs(Effort::default())?);
    rows.extend(locks::claimed_embedded_pairs(Effort::default())?);
    print!("{}", lockify_report::table(&rows));
    Ok(())
}
