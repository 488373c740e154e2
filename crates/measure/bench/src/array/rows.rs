//! Result rows and the page.

use lockify_report::{Metric, Page, Plot, Row, metric};

use super::case::DATA;
use super::{DEPTH, Export, Goal, Measured, Outcome, Results, Subject, Workload};

/// The benchmark's name in rows.
const BENCH: &str = "array";

/// Percentiles of operations that are reported.
const PERCENTILES: [f64; 2] = [50.0, 99.0];

/// Throughput relative to that without control.
const RATIO_TO_ZERO: Metric = Metric {
    name: "ratio_to_zero_overhead",
    unit: "1",
    title: "throughput relative to zero-overhead",
};

/// Every result as a row.
pub fn rows(results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> =
        results.outcomes.iter().flat_map(|outcome| of_case(outcome, results)).collect();
    let proxies =
        [(Export::Lockify, &results.proxies.lockify), (Export::Nbdkit, &results.proxies.nbdkit)];
    rows.extend(proxies.into_iter().filter(|(_, rounds)| !rounds.is_empty()).map(
        |(export, rounds)| {
            let row = Row::of(BENCH, &metric::OPS_PER_S, rounds).with("scheme", export.name());
            row.with("hosts", 1)
                .with("devices", u32::from(DATA + 1))
                .with("addressed", 1.0)
                .with("reads", 1.0)
        },
    ));
    rows
}

fn of_case(outcome: &Outcome, results: &Results) -> Vec<Row> {
    let Workload { hosts, groups, addressed, reads } = outcome.workload;
    let devices = u32::from(DATA + 1) * u32::from(groups);
    let row = |metric: &Metric, values: Vec<f64>| {
        let row = Row::of(BENCH, metric, &values).with("scheme", outcome.subject.to_string());
        let row = row.with("hosts", hosts).with("devices", devices);
        row.with("addressed", addressed).with("reads", reads)
    };
    let each = |of: &dyn Fn(&Measured) -> f64| outcome.rounds.iter().map(of).collect::<Vec<f64>>();
    let mut rows = vec![row(&metric::OPS_PER_S, each(&|m| m.ops_per_s))];
    let zero = results.outcomes.iter().find(|o| {
        let zero = Subject::Array(lockify_array::Scheme::ZeroOverhead);
        o.workload == outcome.workload && o.subject == zero
    });
    if let Some(zero) = zero.filter(|zero| zero.subject != outcome.subject) {
        let pairs = outcome.rounds.iter().zip(&zero.rounds);
        let ratios = pairs.map(|(mine, zero)| mine.ops_per_s / zero.ops_per_s.max(1e-9));
        rows.push(row(&RATIO_TO_ZERO, ratios.collect()));
    }
    rows.extend(PERCENTILES.map(|percentile| {
        let at = |m: &Measured| m.times.value_at_percentile(percentile) as f64 / 1e3;
        row(&metric::LATENCY_US, each(&at)).with("percentile", percentile)
    }));
    if outcome.subject != Subject::Raw {
        rows.push(row(&metric::MESSAGES_PER_OP, each(&|m| m.messages)));
        rows.push(row(&metric::DELAYED_SHARE, each(&|m| m.delayed)));
        rows.push(row(&metric::PROCESSOR_US_PER_OP, each(&|m| m.processor_us)));
    }
    rows
}

/// The page with plots.
pub fn page(results: &Results, rows: &[Row], goals: &[Goal]) -> Page {
    let mut page = Page::new("What keeping hosts of a shared array apart costs").text(format!(
        "Hosts, devices and lock server are processes of one machine, connected by the loopback interface; devices are \
         files. Each host has {DEPTH} operations under way, each of 1 to 4 stripe units of 64 KiB. Medians of several rounds; bars \
         show the smallest and the largest. Raw devices are the same reads and writes of the same files by one process."
    ));
    for goal in goals {
        page = page.text(goal.to_string());
    }
    let mut seen: Vec<Workload> = Vec::new();
    for outcome in &results.outcomes {
        let w = outcome.workload;
        if seen.contains(&w) {
            continue;
        }
        seen.push(w);
        let is = |row: &Row, name: &str, value: f64| {
            row.case.get(name).and_then(|v| v.number()) == Some(value)
        };
        let of = |row: &&Row| {
            let devices = f64::from((DATA + 1) * w.groups);
            let same = is(row, "hosts", w.hosts.into()) && is(row, "devices", devices);
            same && is(row, "addressed", w.addressed) && is(row, "reads", w.reads)
        };
        let here: Vec<Row> = rows.iter().filter(of).cloned().collect();
        let title = format!(
            "{} hosts on {:.1} % of {} devices, {:.0} % reads",
            w.hosts,
            w.addressed * 100.0,
            (DATA + 1) * w.groups,
            w.reads * 100.0
        );
        page = page
            .plot(
                Plot::bars_of(&here, &metric::OPS_PER_S, "scheme", &[])
                    .title(format!("Operations per second: {title}")),
            )
            .plot(
                Plot::percentiles_of(&here, &metric::LATENCY_US, &["scheme"])
                    .title(format!("Latency: {title}")),
            );
    }
    page.table(rows)
}
