//! Result rows, the table and the page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lockify_report::{Case, Metric, Page, Plot, Row, Writer, median, metric};

use crate::measure::{DelayResult, NODES, PolicyResult};
use crate::relations::{Relation, ratios};
use crate::run::Measured;

/// The benchmark's name in rows.
const BENCH: &str = "demo";

/// Percentiles of latency that are reported.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// Events and violations of every history that was checked.
pub fn proof(results: &[DelayResult]) -> (u64, u64) {
    let sum = |(events, violations), m: &Measured| (events + m.events, violations + m.violations);
    every_run(results).fold((0, 0), sum)
}

/// The first run's report of violations.
pub fn first_violation(results: &[DelayResult]) -> Option<String> {
    every_run(results).find_map(|m| m.report.clone())
}

fn every_run(results: &[DelayResult]) -> impl Iterator<Item = &Measured> {
    results.iter().flat_map(|at| &at.policies).flat_map(|p| {
        let pairs = p.pairs.iter().flat_map(|r| [&r.one, &r.five]);
        pairs.chain(&p.all).chain(&p.unmeasured)
    })
}

/// Every result as a row.
pub fn rows(results: &[DelayResult]) -> Vec<Row> {
    let policies = results.iter().flat_map(|at| at.policies.iter().map(move |p| (at, p)));
    policies.flat_map(|(at, p)| policy_rows(at, p)).collect()
}

fn policy_rows(at: &DelayResult, p: &PolicyResult) -> Vec<Row> {
    let case = |nodes: u32, active: u32| {
        let delay_us = at.delay.as_nanos() as f64 / 1e3;
        let row = Row::of(BENCH, &metric::CREATES_PER_S, &[]).with("delay_us", delay_us);
        row.with("policy", p.policy.as_str()).with("nodes", nodes).with("active", active).case
    };
    let one: Vec<&Measured> = p.pairs.iter().map(|r| &r.one).collect();
    let five: Vec<&Measured> = p.pairs.iter().map(|r| &r.five).collect();
    let all: Vec<&Measured> = p.all.iter().collect();
    let mut rows = case_rows(&case(1, 1), &one);
    rows.extend(case_rows(&case(NODES, 1), &five));
    let ratio = Row::of(BENCH, &metric::RATIO_TO_ONE_NODE, &ratios(p));
    rows.push(ratio.case(case(NODES, 1)));
    rows.extend(case_rows(&case(NODES, NODES), &all));
    rows
}

fn case_rows(case: &Case, runs: &[&Measured]) -> Vec<Row> {
    let row = |metric: &Metric, figure: &dyn Fn(&Measured) -> f64| {
        let rounds: Vec<f64> = runs.iter().map(|m| figure(m)).collect();
        Row::of(BENCH, metric, &rounds).case(case.clone())
    };
    let mut rows = vec![
        row(&metric::CREATES_PER_S, &Measured::rate),
        row(&metric::ROUND_TRIPS_PER_CREATE, &|m| m.each(m.stats.round_trips)),
        row(&metric::MESSAGES_PER_CREATE, &|m| m.each(m.stats.messages_sent)),
        row(&metric::LOCK_WAIT_SHARE, &Measured::lock_share),
        row(&metric::RESENDS, &|m| m.stats.resends as f64),
        row(&metric::REFUSALS, &|m| m.stats.refusals as f64),
        row(&metric::BARRIER_WAITS, &|m| m.stats.barrier_waits as f64),
        row(&metric::VIOLATIONS, &|m| m.violations as f64),
    ];
    let latencies = PERCENTILES
        .map(|p| row(&metric::LATENCY_US, &|m| m.percentile(p / 100.0)).with("percentile", p));
    rows.extend(latencies);
    rows
}

/// The table and the expectations, for the terminal.
pub fn text(results: &[DelayResult], rows: &[Row], relations: &[Relation]) -> String {
    let mut text = String::new();
    for at in results {
        let delay_us = at.delay.as_nanos() as f64 / 1e3;
        let here = |r: &&Row| r.case.get("delay_us").and_then(|v| v.number()) == Some(delay_us);
        let mut rows: Vec<Row> =
            rows.iter().filter(here).filter(|r| in_table(r)).cloned().collect();
        rows.iter_mut().for_each(|r| drop(r.case.shift_remove("delay_us")));
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            text,
            "delay {:?}: a bare TCP round trip takes {:.1} us\n\n{}",
            at.delay,
            median(at.round_trips_us()),
            lockify_report::table(&rows),
        );
    }
    let _ = writeln!(text, "Expected and found:");
    for r in relations {
        let met = if r.met { "pass       " } else { "FALLS SHORT" };
        let _ = writeln!(text, "  {met}  {}: {}", r.expected, r.found);
    }
    text
}

/// The table on the terminal must fit there; the page has everything.
fn in_table(row: &Row) -> bool {
    let metrics = [
        metric::CREATES_PER_S,
        metric::RATIO_TO_ONE_NODE,
        metric::ROUND_TRIPS_PER_CREATE,
        metric::MESSAGES_PER_CREATE,
        metric::LOCK_WAIT_SHARE,
    ];
    metrics.iter().any(|m| m.name == row.metric)
        || row.case.get("percentile").and_then(|v| v.number()) == Some(99.0)
}

/// Writes the rows and the page into a directory; returns where they are.
///
/// # Errors
/// Those of the file system.
pub fn write(
    results: &[DelayResult],
    rows: &[Row],
    relations: &[Relation],
    what: &str,
    dir: &Path,
) -> Result<(PathBuf, PathBuf), (PathBuf, std::io::Error)> {
    let (jsonl, html) = (dir.join("report.jsonl"), dir.join("report.html"));
    let failed = |e: lockify_report::WriteError| (jsonl.clone(), std::io::Error::other(e));
    let mut writer = Writer::create(&jsonl).map_err(failed)?;
    for row in rows {
        writer.write(row).map_err(failed)?;
    }
    page(results, rows, relations, what).write(&html).map_err(|e| (html.clone(), e))?;
    Ok((jsonl, html))
}

fn page(results: &[DelayResult], rows: &[Row], relations: &[Relation], what: &str) -> Page {
    let mut page = Page::new("What creating files costs").text(
        "A directory tree is created the way a shared-disk file system locks it: on one node, by \
         one of five nodes, and by five nodes under one parent directory. The policies differ in \
         how the master of a new lock is found. Medians of several rounds; bars show the smallest \
         and the largest.",
    );
    page = page.text(what);
    for at in results {
        let delay_us = at.delay.as_nanos() as f64 / 1e3;
        let here: Vec<Row> = rows
            .iter()
            .filter(|r| r.case.get("delay_us").and_then(|v| v.number()) == Some(delay_us))
            .cloned()
            .collect();
        page = delay_plots(page, at, &here);
    }
    page = page.text("Expected and found:");
    for r in relations {
        let met = if r.met { "Pass" } else { "Falls short" };
        page = page.text(format!("{met}: {}: {}", r.expected, r.found));
    }
    page.table(rows)
}

/// The plots that a reader of the paper expects (figures 3, 4, 7 and 8).
fn delay_plots(page: Page, at: &DelayResult, rows: &[Row]) -> Page {
    let select = |active: u32| -> Vec<Row> {
        let at_most = |r: &&Row| {
            let is = |name: &str| r.case.get(name).and_then(|v| v.number()).unwrap_or(0.0);
            is("active") == f64::from(active) && (active == 1 || is("nodes") > 1.0)
        };
        rows.iter().filter(at_most).cloned().collect()
    };
    let (single, all) = (select(1), select(NODES));
    let delay = format!("delay {:?}", at.delay);
    let cluster: Vec<Row> = single
        .iter()
        .filter(|r| r.case.get("nodes").and_then(|v| v.number()) == Some(f64::from(NODES)))
        .cloned()
        .collect();
    page.text(format!(
        "Messages take {delay} more each way; a bare TCP round trip takes {:.1} us.",
        median(at.round_trips_us())
    ))
    .plot(
        Plot::bars_of(&single, &metric::CREATES_PER_S, "nodes", &["policy"])
            .title(format!("One node creates, {delay}")),
    )
    .plot(
        Plot::bars_of(&all, &metric::CREATES_PER_S, "nodes", &["policy"])
            .title(format!("Five nodes create under one parent, {delay}")),
    )
    .plot(
        Plot::bars_of(&single, &metric::LOCK_WAIT_SHARE, "nodes", &["policy"])
            .title(format!("Share of time in lock calls, one node creates, {delay}")),
    )
    .plot(
        Plot::percentiles_of(&cluster, &metric::LATENCY_US, &["policy"])
            .title(format!("Latency of a creation, one of five nodes creates, {delay}")),
    )
}
