//! Result rows and the page.

use lockify_report::{Page, Plot, Row, metric};

use super::case::{Case, Workload};
use super::{Measured, Outcome, Results};

/// The benchmark's name in rows.
const BENCH: &str = "onesided";

/// Percentiles of acquisitions that are reported.
const PERCENTILES: [f64; 2] = [50.0, 99.0];

/// Every result as a row.
pub fn rows(results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> =
        results.outcomes.iter().flat_map(|outcome| of_case(outcome, results)).collect();
    for (clients, pairs) in &results.limits.pairs_per_s {
        let row = Row::of(BENCH, &metric::LOCKS_PER_S, pairs).with("protocol", "bare atomic");
        rows.push(
            row.with("clients", *clients).with("locks", 1).with("skew", 0.0).with("shared", 1.0),
        );
    }
    let wake =
        Row::of(BENCH, &metric::LATENCY_US, &results.limits.wake_us).with("protocol", "bare futex");
    rows.push(wake.with("clients", 2).with("percentile", 50.0));
    rows
}

fn of_case(outcome: &Outcome, results: &Results) -> Vec<Row> {
    let Case { protocol, workload: Workload { clients, locks, skew, shared } } = outcome.case;
    let row = |metric, value: &dyn Fn(&Measured) -> f64| {
        let values: Vec<f64> = outcome.rounds.iter().map(value).collect();
        let row = Row::of(BENCH, metric, &values)
            .with("protocol", protocol.name())
            .with("clients", clients);
        row.with("locks", locks as f64).with("skew", skew).with("shared", shared)
    };
    let mut rows = vec![row(&metric::LOCKS_PER_S, &|m| m.pairs_per_s)];
    if let Some(bare) = results.limits.pairs(clients) {
        rows.push(row(&metric::RATIO_TO_BARE, &|m| bare / m.pairs_per_s.max(1.0)));
    }
    rows.push(row(&metric::VERBS_PER_LOCK, &|m| m.verbs));
    rows.push(row(&metric::MESSAGES_PER_LOCK, &|m| m.messages));
    rows.extend(PERCENTILES.map(|percentile| {
        let at = |m: &Measured| m.waits.value_at_percentile(percentile) as f64 / 1e3;
        row(&metric::LATENCY_US, &at).with("percentile", percentile)
    }));
    rows
}

/// The page with plots.
pub fn page(results: &Results, rows: &[Row]) -> Page {
    let mut page = Page::new("What locks in remote memory cost").text(
        "Processes of one machine take and release locks that lie in memory which all of them map, by one-sided verbs; \
         the lock protects nothing, so that only its own cost is seen. Medians of several rounds; bars show the smallest \
         and the largest. Protocols that cannot share take shared locks as exclusive ones.",
    );
    let wake =
        lockify_report::Spread::of(&results.limits.wake_us).map_or(0.0, |spread| spread.median);
    page = page.text(format!(
        "The limits: a pair of atomic additions on one word, by as many threads as there are clients (bare atomic); and \
         {wake:.1} us to wake somebody who sleeps."
    ));
    let is = |row: &Row, name: &str, value: f64| {
        row.case.get(name).and_then(|v| v.number()) == Some(value)
    };
    let mut seen: Vec<Workload> = Vec::new();
    for outcome in &results.outcomes {
        let w = outcome.case.workload;
        if seen.contains(&w) {
            continue;
        }
        seen.push(w);
        let of = |row: &&Row| {
            let bare = row.case.get("protocol").is_some_and(|p| p.to_string() == "bare atomic");
            let same = is(row, "locks", w.locks as f64)
                && is(row, "skew", w.skew)
                && is(row, "shared", w.shared);
            is(row, "clients", w.clients.into()) && (bare || same)
        };
        let here: Vec<Row> = rows.iter().filter(of).cloned().collect();
        let title =
            format!("{} clients, {} locks, {:.0} % shared", w.clients, w.locks, w.shared * 100.0);
        page = page
            .plot(
                Plot::bars_of(&here, &metric::LOCKS_PER_S, "protocol", &[])
                    .title(format!("Locks per second: {title}")),
            )
            .plot(
                Plot::percentiles_of(&here, &metric::LATENCY_US, &["protocol"])
                    .title(format!("Time to get a lock: {title}")),
            )
            .plot(
                Plot::bars_of(&here, &metric::VERBS_PER_LOCK, "protocol", &[])
                    .title(format!("Verbs per lock: {title}")),
            );
    }
    page.table(rows)
}
