//! `lockify locks`: every resource of a lockspace.

use std::process::ExitCode;

use crate::connect::{Connection, Missing, failed};
use crate::exit::Ended;
use crate::inspect::{Lock, View};
use crate::output::{columns, print, print_json};

/// List every lock of the cluster: holders and waiters
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let space = args.connection.lockspace(Missing::Fail).map_err(failed)?;
    let view = View::of(&space.locks().map_err(failed)?);
    if args.json {
        print_json(&view)?;
    } else {
        print(&text(&view))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(view: &View) -> String {
    let mut rows = Vec::new();
    for r in &view.resources {
        let master = r.master.map_or_else(|| "?".into(), |m| m.to_string());
        let mut row = |state: &str, mode: &Option<String>, lock: &Lock| {
            let mode = mode.clone().unwrap_or_default();
            rows.push(vec![
                r.name.clone(),
                master.clone(),
                state.into(),
                mode,
                lock.whose(),
                lock.age(),
            ]);
        };
        r.holders.iter().for_each(|l| row("holds", &l.granted, l));
        r.waiters.iter().for_each(|l| row("waits", &l.requested, l));
    }
    let warning = view.warning().unwrap_or_default();
    if rows.is_empty() {
        return warning + "no locks\n";
    }
    warning + &columns(&["NAME", "MASTER", "STATE", "MODE", "WHO", "FOR"], &rows)
}
