//! `lockify sim onesided`: locks in remote memory.

use std::path::PathBuf;
use std::process::ExitCode;

use lockify_onesided::Protocol;
use lockify_rdma_trials::{paper, seeds};

use super::{Faults, Span, span};
use crate::exit::{Code, Ended, OrFail as _};
use crate::output::print;
use crate::progress;

/// Simulate locks in remote memory: seeds with faults, or the published experiments
///
/// Each seed is a few clients of one table, with leases of a millisecond; they crash, pause and lose connections, and
/// their verbs are held up for up to ten leases. A failing seed prints the command that repeats it with a trace. With
/// --paper: the tables of N-CoSED and ShiftLock under a cost model, with expectations; a missed one does not change the
/// exit code.
#[derive(clap::Args)]
pub struct Args {
    /// How locks are taken; several as a list or by repeating [default: all]
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = protocol)]
    protocol: Vec<Protocol>,
    /// Seeds from A up to, but without, B
    #[arg(long, value_name = "A..B", value_parser = span::<u64>, default_value = "0..200")]
    seeds: Span<u64>,
    /// This seed only
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Which faults happen
    #[arg(long, value_enum, default_value = "all")]
    faults: Faults,
    /// Print the trace of a failing seed
    #[arg(long)]
    trace: bool,
    /// The published experiments instead
    #[arg(long, conflicts_with_all = ["protocol", "seeds", "seed", "faults", "trace"])]
    paper: bool,
    /// Where the results of --paper go
    #[arg(long, value_name = "DIR", default_value = "target/onesided", requires = "paper")]
    out: PathBuf,
}

fn protocol(name: &str) -> Result<Protocol, String> {
    name.parse().map_err(|e: lockify_onesided::UnknownProtocol| e.to_string())
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    if args.paper {
        return paper(args);
    }
    let protocols = if args.protocol.is_empty() { Protocol::ALL } else { &args.protocol };
    let mut clean = true;
    for &protocol in protocols {
        let seeds = match args.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => args.seeds.0..args.seeds.1,
        };
        let bar = progress::bar(seeds.end - seeds.start, &format!("seeds, {}", protocol.name()));
        let run = seeds::Run {
            faults: args.faults == Faults::All,
            trace: args.trace,
            ..seeds::Run::new(protocol, seeds)
        };
        let summary = seeds::run(&run, |done| bar.set_position(done));
        bar.finish_and_clear();
        clean &= summary.failures.is_empty();
        print(&format!("{summary}\n"))?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn paper(args: &Args) -> Ended {
    let bar = progress::bar(paper::parts().len() as u64, "experiments");
    let rows = paper::run(|done| bar.set_position(done)).or_fail(Code::Failed)?;
    bar.finish_and_clear();
    let (jsonl, html) = paper::write(&rows, &args.out).map_err(|(path, e)| {
        let what =
            format!("cannot write {}: {e}; choose another directory with --out", path.display());
        crate::exit::Failure::new(Code::Failed, what)
    })?;
    let files = format!("\nresults: {}\npage: {}\n", jsonl.display(), html.display());
    print(&(paper::text(&rows) + &files))?;
    Ok(ExitCode::SUCCESS)
}
