//! What was published, or promised, and what was found.

use lockify_report::{Row, Value, metric};

use super::n_cosed::MOST_WAITERS;
use super::of;

/// An expectation.
#[derive(Clone, Debug)]
pub struct Relation {
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
    /// Whether they agree.
    pub met: bool,
}

/// Finds figures among the rows.
struct Figures<'a>(&'a [Row]);

impl Figures<'_> {
    fn find(&self, experiment: &str, metric: &str, case: &[(&str, Value)]) -> Option<f64> {
        let fits = |row: &&Row| {
            row.metric == metric && case.iter().all(|(name, v)| row.case.get(*name) == Some(v))
        };
        of(self.0, experiment).find(fits).map(|row| row.value)
    }

    fn goodput(&self, protocol: &str, load: &str) -> f64 {
        let case = [("protocol", protocol.into()), ("load", load.into())];
        self.find("1", metric::LOCKS_PER_S.name, &case).unwrap_or(0.0)
    }

    fn tail(&self, protocol: &str, load: &str) -> f64 {
        let case =
            [("protocol", protocol.into()), ("load", load.into()), ("percentile", 99.0.into())];
        self.find("1", metric::LATENCY_US.name, &case).unwrap_or(0.0)
    }

    fn transactions(&self, protocol: &str, load: &str) -> f64 {
        let case = [("protocol", protocol.into()), ("load", load.into())];
        self.find("4", metric::OPS_PER_S.name, &case).unwrap_or(0.0)
    }

    fn cascade(&self, protocol: &str, mode: &str) -> f64 {
        let case = [
            ("protocol", protocol.into()),
            ("mode", mode.into()),
            ("waiters", MOST_WAITERS.into()),
        ];
        self.find("cascade", metric::LATENCY_US.name, &case).unwrap_or(0.0)
    }

    fn survives(&self, protocol: &str, dies: f64) -> f64 {
        let case = [("protocol", protocol.into()), ("dies", dies.into())];
        self.find("8", metric::LOCKS_PER_S.name, &case).unwrap_or(0.0)
    }
}

const BASELINES: [&str; 4] = ["cas-spin", "srsl", "dslr", "mcs"];
const LOADS: [&str; 6] =
    ["zipf WI", "zipf RI", "zipf RO", "uniform WI", "uniform RI", "uniform RO"];
const OURS: [&str; 2] = ["shiftlock+", "shiftlock-s"];
const TRACES: [&str; 4] = ["TATP-GSD", "TATP-UL", "TPC-C-DLY", "TPC-C-NEW"];

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// All expectations. Where rows are missing, they are not met.
pub fn relations(rows: &[Row]) -> Vec<Relation> {
    let figures = Figures(rows);
    let mut all = Vec::new();
    let mut add =
        |expected: String, found: String, met: bool| all.push(Relation { expected, found, met });
    let over = |mode: &str, protocol: &str| {
        100.0 * (ratio(figures.cascade(protocol, mode), figures.cascade("n-cosed", mode)) - 1.0)
    };
    for (protocol, published) in [("dqnl", 317.0), ("srsl", 25.0)] {
        let found = over("shared", protocol);
        add(
            format!(
                "{MOST_WAITERS} shared waiters: {protocol} takes {published} % more than n-cosed, within 5 points"
            ),
            format!("{found:.0} % more"),
            (found - published).abs() <= 5.0,
        );
    }
    let exclusive = over("exclusive", "dqnl");
    add(
        "exclusive waiters: dqnl is as n-cosed".into(),
        format!("{exclusive:+.0} %"),
        exclusive.abs() <= 5.0,
    );
    let load = "zipf WI";
    let best = largest(BASELINES.iter().map(|p| figures.goodput(p, load)));
    let gain = ratio(figures.goodput("shiftlock", load), best);
    add(
        format!("{load}: shiftlock's goodput is 3.62 times the best baseline's"),
        format!("{gain:.2} times"),
        gain >= 3.62,
    );
    let shortest = BASELINES.iter().map(|p| figures.tail(p, load)).fold(f64::INFINITY, f64::min);
    let cut = 100.0 * (ratio(figures.tail("shiftlock", load), shortest) - 1.0);
    add(
        format!("{load}: shiftlock's p99 is 76.6 % below the best baseline's"),
        format!("{cut:+.1} %"),
        cut <= -76.6,
    );
    let gains = TRACES.map(|trace| {
        ratio(
            figures.transactions("shiftlock", trace),
            largest(BASELINES.iter().map(|p| figures.transactions(p, trace))),
        )
    });
    add(
        "transactions: shiftlock does up to 2.85 times the best baseline's".into(),
        TRACES
            .iter()
            .zip(gains)
            .map(|(trace, gain)| format!("{trace} {gain:.2}"))
            .collect::<Vec<_>>()
            .join(", "),
        largest(gains.into_iter()) >= 2.85,
    );
    for ours in OURS {
        let by_load = LOADS
            .map(|load| ratio(figures.goodput(ours, load), figures.goodput("shiftlock", load)));
        let least = by_load.iter().copied().fold(f64::INFINITY, f64::min);
        let found = LOADS
            .iter()
            .zip(by_load)
            .map(|(load, gain)| format!("{load} {gain:.2}"))
            .collect::<Vec<_>>();
        add(
            format!("{ours}: never below 0.9 of shiftlock's goodput"),
            found.join(", "),
            least >= 0.9,
        );
    }
    let tail = ratio(figures.tail("shiftlock+", load), figures.tail("shiftlock", load));
    let goodput = ratio(figures.goodput("shiftlock+", load), figures.goodput("shiftlock", load));
    add(
        format!("{load}: shiftlock+ is ahead of shiftlock in goodput or tail"),
        format!("goodput {goodput:.2} times, p99 {tail:.2} times"),
        goodput > 1.02 || tail < 0.98,
    );
    for ours in OURS {
        let rates = [1e-4, 1e-3, 1e-2];
        let gains = rates
            .map(|dies| ratio(figures.survives(ours, dies), figures.survives("shiftlock", dies)));
        let found = rates.iter().zip(gains).map(|(dies, gain)| format!("{gain:.2} at {dies}"));
        add(
            format!("holders die: {ours} is ahead of shiftlock"),
            found.collect::<Vec<_>>().join(", "),
            gains.iter().all(|gain| *gain > 1.0),
        );
    }
    all
}
