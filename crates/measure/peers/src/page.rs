//! The printed output, and the page with plots.

use std::fmt::Write as _;

use lockify_report::{Page, Plot, Row, Scale, Value, metric, table};

use crate::goals::{self, Goal};
use crate::kernel;
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
    /// The series that they were made of.
    pub series: &'a [Series],
    /// The goals.
    pub goals: &'a [Goal],
    /// The missing measurements, and how to get them.
    pub missing: Vec<String>,
    /// The failures.
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
    let mut page = Page::new("Lockify beside etcd, Redis, ZooKeeper and the kernel").text(READING);
    page = plots(page, found.rows, plan::BENCH, "", &["service", "socket"]);
    let in_lab = "in the lab, by libdlm: ";
    page = plots(page, found.rows, kernel::BENCH, in_lab, &["service", "by"]);
    for rows in found.rows.chunk_by(|a, b| a.bench == b.bench) {
        page = page.table(rows);
    }
    let goals = found.goals.iter().filter_map(Goal::line);
    let notes = durability(found.series).into_iter().chain(goals);
    let missing = found.missing.iter().map(|line| format!("Not measured: {line}"));
    let failures = found.failures.iter().map(|line| format!("FAILED: {line}"));
    notes.chain(missing).chain(failures).fold(page, |page, line| page.text(line)).html()
}

/// Two plots for each task of a benchmark: bars of all tasks and services in one could not be told
/// apart. `by` distinguishes the services.
fn plots(mut page: Page, rows: &[Row], bench: &str, about: &str, by: &[&str]) -> Page {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.bench == bench).collect();
    let same =
        |a: &&Row, b: &&Row| ["nodes", "task"].iter().all(|p| a.case.get(*p) == b.case.get(*p));
    for rows in rows.chunk_by(same) {
        let rows: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
        let of = |property| rows[0].case.get(property).map(Value::to_string).unwrap_or_default();
        let (nodes, task) = (of("nodes"), of("task"));
        let rate = Plot::bars_of(&rows, &metric::LOCKS_PER_S, "task", by);
        let time = Plot::bars_of(&rows, &metric::LATENCY_US, "percentile", by);
        let title = |what| format!("{about}{task}, nodes: {nodes}: {what}");
        page = page.plot(rate.title(title("locks per second")).y_scale(Scale::Log));
        page = page.plot(time.title(title("latency by percentile")).y_scale(Scale::Log));
    }
    page
}

fn durability(series: &[Series]) -> Vec<String> {
    let mut lines: Vec<String> = series.iter().map(Series::durability).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use lockify_report::{Row, metric};

    use super::{Found, html, kernel};

    /// Rows as `labs/kernels/lab bench locks` writes them.
    fn in_lab(task: &str, service: &str) -> [Row; 2] {
        let row = |metric| {
            Row::of(kernel::BENCH, metric, &[20.0, 30.0])
                .with("nodes", 3)
                .with("task", task)
                .with("service", service)
                .with("by", "dlm_lt")
        };
        [row(&metric::LOCKS_PER_S), row(&metric::LATENCY_US).with("percentile", 50)]
    }

    #[test]
    fn every_task_in_the_lab_has_its_plots() {
        let rows: Vec<Row> = ["hand-over", "creation with a file"]
            .into_iter()
            .flat_map(|task| ["kernel", "lockify"].map(|service| in_lab(task, service)))
            .flatten()
            .collect();
        let (series, goals) = (&[][..], &[][..]);
        let found = Found { rows: &rows, series, goals, missing: Vec::new(), failures: Vec::new() };
        let page = html(&found);
        assert_eq!(page.matches("<svg").count(), 4, "{page}");
        for task in ["hand-over", "creation with a file"] {
            for what in ["locks per second", "latency by percentile"] {
                let title = format!("in the lab, by libdlm: {task}, nodes: 3: {what}");
                assert!(page.contains(&title), "{title}");
            }
        }
    }
}
