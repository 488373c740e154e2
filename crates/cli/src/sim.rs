//! `lockify sim`: the lock manager, locks in remote memory, and shared arrays in the simulator.

mod array;
mod onesided;

use std::ops::{Range, RangeInclusive};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use lockify_core::Policy;
use lockify_trials::locks::{Membership, Options, Summary, run as run_seeds};
use lockify_trials::scenario;

use crate::exit::{Code, Ended};
use crate::output::print;
use crate::progress;

/// Run locks in a simulated cluster, with faults, and check every rule
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Locks(LocksArgs),
    Onesided(onesided::Args),
    Array(array::Args),
}

/// Simulate clusters: each seed is a cluster, its work and its faults, and repeats exactly
///
/// Prints how often each step of the claim protocol met each kind of fault. With two thousand
/// seeds or more and no budget, a combination that never occurred is a failure, unless both sides
/// are so rare that chance explains it. A failing seed
/// prints the command that repeats it with a trace.
#[derive(clap::Args)]
struct LocksArgs {
    /// How masters are found; several as a list or by repeating
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = policy,
          default_value = "directory,claim,broadcast,home")]
    policy: Vec<Policy>,
    /// Sizes of clusters, both included
    #[arg(long, value_name = "A..B", value_parser = span::<usize>, default_value = "3..7")]
    nodes: Span<usize>,
    /// Which faults happen
    #[arg(long, value_enum, default_value = "all")]
    faults: Faults,
    /// Seeds from A up to, but without, B
    #[arg(long, value_name = "A..B", value_parser = span::<u64>, default_value = "0..2000")]
    seeds: Span<u64>,
    /// This seed only
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Which membership the nodes have: a log of their own, corosync (a model of what it guarantees), or both, the latter
    /// in every fourth seed
    #[arg(long, value_enum, default_value = "both")]
    membership: Service,
    /// Have all clients run transactions that deadlock, and search for deadlocks
    #[arg(long)]
    deadlocks: bool,
    /// Print the trace of a failing seed
    #[arg(long)]
    trace: bool,
    /// Begin no further seed of a policy after this time
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    budget: Option<Duration>,
    /// Print one JSON object per policy instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Faults {
    All,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Service {
    Log,
    Corosync,
    Both,
}

/// Two ends, as `A..B`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span<T>(T, T);

fn span<T: FromStr + PartialOrd>(text: &str) -> Result<Span<T>, String> {
    let ends = text.split_once("..").and_then(|(a, b)| a.parse().ok().zip(b.parse().ok()));
    let ordered = ends.filter(|(a, b)| a <= b);
    ordered.map(|(a, b)| Span(a, b)).ok_or_else(|| "write it as A..B, with A not above B".into())
}

fn policy(name: &str) -> Result<Policy, String> {
    name.parse().map_err(|e: lockify_core::UnknownPolicy| e.to_string())
}

/// So many seeds must have met everything.
const FULL_RUN: u64 = 2000;

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    match &args.what {
        What::Locks(args) => locks(args),
        What::Onesided(args) => onesided::run(args),
        What::Array(args) => array::run(args),
    }
}

fn locks(args: &LocksArgs) -> Ended {
    let mut clean = true;
    for &policy in &args.policy {
        let summary = simulate(args, policy);
        clean &= summary.is_clean();
        if args.json {
            print(&json(&summary))?;
        } else {
            print(&format!("{summary}\n\n"))?;
        }
    }
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn simulate(args: &LocksArgs, policy: Policy) -> Summary {
    let seeds: Range<u64> = match args.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => args.seeds.0..args.seeds.1,
    };
    let nodes: RangeInclusive<usize> = args.nodes.0.max(1)..=args.nodes.1.max(1);
    let total = seeds.end - seeds.start;
    let options = Options {
        nodes,
        faults: match args.faults {
            Faults::All => scenario::Faults::All,
            Faults::None => scenario::Faults::None,
        },
        membership: match args.membership {
            Service::Log => Membership::Log,
            Service::Corosync => Membership::Corosync,
            Service::Both => Membership::Both,
        },
        deadlocks: args.deadlocks,
        trace: args.trace,
        budget: args.budget,
        require_coverage: total >= FULL_RUN && args.budget.is_none() && !args.deadlocks,
        ..Options::new(policy, seeds)
    };
    let bar = progress::bar(total, &format!("seeds, {}", policy.name()));
    let summary = run_seeds(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    summary
}

fn json(s: &Summary) -> String {
    let failures = s.failures.iter().map(
        |f| serde_json::json!({ "seed": f.seed, "failure": f.failure.message, "replay": f.replay }),
    );
    let gaps = s.gaps.iter().map(|(step, kind)| format!("{} near {}", step.name(), kind.name()));
    let value = serde_json::json!({
        "policy": s.policy.name(),
        "seeds": s.runs,
        "left_out": s.skipped,
        "failures": failures.collect::<Vec<_>>(),
        "never_seen": gaps.collect::<Vec<_>>(),
        "calls": s.calls,
        "recoveries": s.recoveries,
        "deadlocks": s.deadlocks,
        "events": s.events,
        "elapsed_s": s.elapsed.as_secs_f64(),
    });
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_two_ordered_numbers() {
        assert_eq!(span::<u64>("3..7"), Ok(Span(3, 7)));
        for wrong in ["7..3", "3", "a..b", "3...7", "-1..2"] {
            assert!(span::<u64>(wrong).is_err(), "{wrong}");
        }
    }
}
