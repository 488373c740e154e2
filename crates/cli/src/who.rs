//! `lockify who`: one resource.

use std::fmt::Write as _;
use std::process::ExitCode;

use lockify_client::Name;

use crate::connect::{Connection, Missing, failed};
use crate::exit::{Code, Ended, OrFail as _};
use crate::inspect::{Lock, View};
use crate::output::print;

/// Show the holders and waiters of a lock in the cluster, and since when they hold or wait
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The lock's name
    name: String,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let space = args.connection.lockspace(Missing::Fail).map_err(failed)?;
    let name = Name::new(&args.name).or_fail(Code::Unreadable)?;
    let view = View::of(&space.who(name.as_bytes()).map_err(failed)?);
    if args.json {
        args.connection.print_json(&view)?;
    } else {
        print(&(args.connection.headline()? + &text(&name.to_string(), &view)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(name: &str, view: &View) -> String {
    let mut text = view.warning().unwrap_or_default();
    let locks = |r: &&crate::inspect::Resource| !r.holders.is_empty() || !r.waiters.is_empty();
    if !view.resources.iter().any(|r| locks(&r)) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "{name}: nobody holds it, nobody waits for it");
    }
    for r in view.resources.iter().filter(locks) {
        let master = r.master.map_or("not known".into(), |m| format!("node {m}"));
        let _ = writeln!(text, "{name} (master: {master})");
        for held in &r.holders {
            let _ = writeln!(text, "  {}", holds(held));
        }
        for waits in &r.waiters {
            let _ = writeln!(text, "  {}", waits_for(waits));
        }
    }
    text
}

fn holds(lock: &Lock) -> String {
    let mode = lock.granted.as_deref().unwrap_or("?");
    let token = lock.token.as_ref().map(|t| format!(", token {t}")).unwrap_or_default();
    format!("{} holds {mode} since {} ({}){token}", lock.whose(), lock.since, lock.age())
}

fn waits_for(lock: &Lock) -> String {
    let mode = lock.requested.as_deref().unwrap_or("?");
    let owners: Vec<String> = lock.waits_for.iter().map(ToString::to_string).collect();
    // Nobody's mode conflicts, so it waits for its turn in the queue, or for its master's answer.
    let whom = if owners.is_empty() { "those before it".into() } else { owners.join(", ") };
    format!("{} waits for {mode} since {} ({}), for {whom}", lock.whose(), lock.since, lock.age())
}
