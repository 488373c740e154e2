//! What is printed, and the page with plots.

use std::fmt::Write as _;

use lockify_report::{Page, Plot, Row, Scale, Value, metric, table};

use crate::goals::{self, Goal};
use crate::plan::{self, Series};

/// How to read the figures; docs/peers.md has the details.
const READING: &str = "\
Lock and unlock of a name are one operation; latency is that of both, in mixes and creations of the \
lock alone, in hand-overs from the unlock to the other client's grant. Clients have the first \
processor; Lockify's daemons and Redis, which have one event loop each, the second; etcd and \
ZooKeeper all. Redis has no shared locks: its readers exclude each other. Sockets are those of the \
clients; between nodes it is TCP on the loopback interface everywhere.";

/// All that is to be told.
pub struct Found<'a> {
    /// The result rows.
    pub rows: &'a [Row],
    /// What they were made of.
    pub series: &'a [Series],
    /// What was hoped for.
    pub goals: &'a [Goal],
    /// What was not measured, and how it would be.
    pub missing: Vec<String>,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// For the terminal: a table for each benchmark.
pub fn text(found: &Found<'_>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for rows in found.rows.chunk_by(|a, b| a.bench == b.bench) {
        let _ = writeln!(text, "{}", table(rows));
    }
    let _ = writeln!(text, "{READING}\n\nWhat a grant survives:");
    for line in durability(found.series) {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "\nGoals, from each round's ratio:\n{}", goals::text(found.goals));
    for line in &found.missing {
        let _ = writeln!(text, "Not measured: {line}");
    }
    for line in &found.failures {
        let _ = writeln!(text, "FAILED: {line}");
    }
    text
}

/// The page.
pub fn html(found: &Found<'_>) -> String {
    let mut page = Page::new("Lockify beside etcd, Redis and ZooKeeper").text(READING);
    // A plot for each task: bars of all tasks and services in one could not be told apart.
    let peers = found.rows.iter().filter(|row| row.bench == plan::BENCH);
    let same =
        |a: &&Row, b: &&Row| ["nodes", "task"].iter().all(|p| a.case.get(*p) == b.case.get(*p));
    let peers: Vec<&Row> = peers.collect();
    for rows in peers.chunk_by(same) {
        let rows: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
        let of = |property| rows[0].case.get(property).map(Value::to_string).unwrap_or_default();
        let (nodes, task, by) = (of("nodes"), of("task"), ["service", "socket"]);
        let rate = Plot::bars_of(&rows, &metric::LOCKS_PER_S, "task", &by);
        let time = Plot::bars_of(&rows, &metric::LATENCY_US, "percentile", &by);
        let title = |what| format!("{task}, nodes: {nodes}: {what}");
        page = page.plot(rate.title(title("locks per second")).y_scale(Scale::Log));
        page = page.plot(time.title(title("latency by percentile")).y_scale(Scale::Log));
    }
    for rows in found.rows.chunk_by(|a, b| a.bench == b.bench) {
        page = page.table(rows);
    }
    let goals = found.goals.iter().filter_map(Goal::line);
    let notes = durability(found.series).into_iter().chain(goals);
    let missing = found.missing.iter().map(|line| format!("Not measured: {line}"));
    let failures = found.failures.iter().map(|line| format!("FAILED: {line}"));
    notes.chain(missing).chain(failures).fold(page, |page, line| page.text(line)).html()
}

fn durability(series: &[Series]) -> Vec<String> {
    let mut lines: Vec<String> = series.iter().map(Series::durability).collect();
    lines.sort();
    lines.dedup();
    lines
}
