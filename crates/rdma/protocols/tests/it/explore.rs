//! Small clusters, every interleaving. Prints how many states each search visited.

use crate::common::{self, S, X, options, timed};
use lockify_onesided::explore::{Fault, Scenario, search};
use lockify_onesided::{MAX_TURNOVER, Mode, Options, Protocol};
use lockify_sim::harness::{alone, show};

/// Up to this many states are visited where a search may not come to its end, or as many as `EXPLORE_STATES` says.
const BOUND: usize = 240_000;

fn bound() -> usize {
    std::env::var("EXPLORE_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(BOUND)
}

const FIFO: [Protocol; 5] =
    [Protocol::Dqnl, Protocol::Mcs, Protocol::RmaRw, Protocol::Dslr, Protocol::ShiftLockS];

fn name(protocol: Protocol, what: &str, clients: &[&[Mode]]) -> String {
    let letters =
        |modes: &&[Mode]| modes.iter().map(|m| if *m == X { 'X' } else { 'S' }).collect::<String>();
    format!(
        "{} {what} {}",
        protocol.name(),
        clients.iter().map(letters).collect::<Vec<_>>().join(" ")
    )
}

fn without_faults() -> Vec<Scenario> {
    let mut all = Vec::new();
    let three: [&[&[Mode]]; 6] = [
        &[&[X, X], &[X, X]],
        &[&[X], &[X], &[X]],
        &[&[X], &[S], &[X]],
        &[&[S], &[S], &[X]],
        &[&[X, S], &[S, X]],
        &[&[X, X], &[S, S]],
    ];
    // DrTM's leases need time; with faults there is.
    let untimed = || Protocol::ALL.iter().copied().filter(|protocol| !protocol.needs_clock());
    for protocol in untimed() {
        for clients in three {
            let swaps = matches!(
                protocol,
                Protocol::Mcs | Protocol::RmaRw | Protocol::ShiftLock | Protocol::ShiftLockPlus
            );
            for masked in [false, true].into_iter().take(if swaps { 2 } else { 1 }) {
                let what = if masked { "masked" } else { "plain" };
                let scenario =
                    Scenario::new(&name(protocol, what, clients), options(protocol), clients);
                let fifo =
                    FIFO.contains(&protocol) && !clients.iter().any(|modes| modes.contains(&S));
                all.push(Scenario { masked, fifo, ..scenario });
            }
        }
    }
    // The steps of others between a verb's execution and its completion.
    let late: [&[&[Mode]]; 3] = [&[&[X], &[X], &[X]], &[&[X], &[S], &[X]], &[&[X, S], &[S, X]]];
    for protocol in untimed() {
        for clients in late {
            let name = name(protocol, "late completions", clients);
            let scenario = Scenario::new(&name, options(protocol), clients);
            all.push(Scenario { masked: true, late: true, ..scenario });
        }
    }
    // A reader between writers that come again: how many of them go first (`Options::most_writers_before_a_reader`).
    let again: &[&[Mode]] = &[&[X, X], &[X], &[S]];
    for protocol in [Protocol::ShiftLock, Protocol::ShiftLockPlus] {
        for batch in [1, 2] {
            let options = Options { batch, ..options(protocol) };
            let name = name(protocol, &format!("overtaking, batch {batch}"), again);
            all.push(Scenario { masked: true, ..Scenario::new(&name, options, again) });
        }
    }
    // Four clients; one batch ends after each writer, or after two.
    let four: [&[&[Mode]]; 2] = [&[&[X], &[X], &[S], &[S]], &[&[X], &[X], &[X], &[S]]];
    for protocol in [Protocol::Dslr, Protocol::ShiftLock, Protocol::ShiftLockS, Protocol::NCosed] {
        for clients in four {
            for batch in [1, 2] {
                let options = Options { batch, ..options(protocol) };
                let what = format!("batch {batch}");
                let scenario = Scenario::new(&name(protocol, &what, clients), options, clients);
                all.push(Scenario { masked: true, states: bound(), ..scenario });
            }
        }
    }
    all
}

/// Counters that run out: after a few tickets, and where the counters end.
fn turnovers() -> Vec<Scenario> {
    let mut all = Vec::new();
    let clients: [&[&[Mode]]; 3] = [&[&[X, X], &[X, X]], &[&[X, S], &[S, X]], &[&[S, S], &[S, X]]];
    for protocol in [Protocol::Dslr, Protocol::ShiftLockS] {
        for clients in clients {
            for turnover in 1..=3 {
                let options = Options { turnover, ..options(protocol) };
                all.push(Scenario::new(
                    &name(protocol, &format!("turnover {turnover}"), clients),
                    options,
                    clients,
                ));
            }
            let options = Options { turnover: MAX_TURNOVER, ..options(protocol) };
            let scenario =
                Scenario::new(&name(protocol, "at the counters' end", clients), options, clients);
            all.push(Scenario { word: common::tickets(MAX_TURNOVER - 2), ..scenario });
        }
    }
    all
}

fn with_faults() -> Vec<Scenario> {
    let mut all = Vec::new();
    let clients: [&[&[Mode]]; 5] = [
        &[&[X], &[X]],
        &[&[X, X], &[S]],
        &[&[S], &[X, S]],
        &[&[X], &[X], &[X]],
        &[&[X], &[S], &[X]],
    ];
    for protocol in Protocol::ALL.iter().copied().filter(|protocol| protocol.repairs()) {
        // Longer than until a repair; DrTM's others need none.
        let away = if protocol == Protocol::Drtm { 1 } else { 3 };
        for clients in clients {
            for (fault, what) in [(Fault::Crash, "crash"), (Fault::Freeze(away), "freeze")] {
                let scenario =
                    Scenario::new(&name(protocol, what, clients), timed(protocol), clients)
                        .fault(fault);
                // Two of them: one has died, so nobody is in the way of the other.
                let promise = if protocol == Protocol::ShiftLockS && clients.len() == 2 {
                    2000
                } else {
                    u64::MAX
                };
                all.push(Scenario {
                    masked: true,
                    states: bound(),
                    longest_wait: promise,
                    ..scenario
                });
            }
        }
    }
    all
}

/// Every protocol is right in every interleaving; those that promise to repair within two leases do.
///
/// `EXPLORE=n-cosed cargo test …` searches the scenarios only whose names contain that.
#[test]
fn no_interleaving_is_wrong() {
    let _alone = alone();
    let groups = [
        ("no faults", without_faults()),
        ("counters run out", turnovers()),
        ("faults", with_faults()),
    ];
    let only = std::env::var("EXPLORE").unwrap_or_default();
    let mut wrong = Vec::new();
    for (group, mut scenarios) in groups {
        scenarios.retain(|scenario| scenario.name.contains(&only));
        show(format_args!("\n{group}"));
        let (mut states, mut complete) = (0, 0);
        common::in_parallel(&scenarios, search, |report| {
            show(&report);
            states += report.states;
            complete += usize::from(report.complete);
            if report.counterexample.is_some() {
                wrong.push(report.to_string());
            }
        });
        let all = scenarios.len();
        show(format_args!("{states} states; {complete} of {all} searches are complete"));
        assert!(states > 10_000 || !only.is_empty(), "the scenarios have become trivial");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
