//! The published experiments on the simulated fabric, as result rows.
//!
//! `n_cosed` has the latencies and both cascades of Narravula et al. 2007. `shiftlock` has the motivation and experiments
//! 1 to 8 of ShiftLock. [`relations`] compares expected and found figures.

mod n_cosed;
mod relations;
mod shiftlock;

use std::path::{Path, PathBuf};

use lockify_report::{Metric, Page, Plot, Row, Scale, Value, metric};

pub use relations::{Criterion, relations};

use crate::measure::MeasureError;

/// The benchmark's name in rows.
const BENCH: &str = "onesided";

/// One of the experiments, or a part of one.
pub struct Part {
    /// The name of the measurement.
    pub name: String,
    work: Box<dyn Fn() -> Result<Vec<Row>, MeasureError> + Send + Sync>,
}

impl Part {
    fn new(
        name: impl Into<String>,
        work: impl Fn() -> Result<Vec<Row>, MeasureError> + Send + Sync + 'static,
    ) -> Part {
        Part { name: name.into(), work: Box::new(work) }
    }

    /// Measures it.
    ///
    /// # Errors
    /// It could not be measured.
    pub fn run(&self) -> Result<Vec<Row>, MeasureError> {
        (self.work)()
    }
}

/// All experiments in small parts, so that all cores have work.
pub fn parts() -> Vec<Part> {
    let mut parts = n_cosed::parts();
    parts.extend(shiftlock::parts());
    parts
}

/// Runs all parts; `progress` is told how many are done.
///
/// # Errors
/// The first part that could not be measured.
pub fn run(progress: impl Fn(u64) + Sync) -> Result<Vec<Row>, MeasureError> {
    lockify_sim::run_parts(&parts(), Part::run, progress)
}

fn row(metric: &Metric, value: f64) -> Row {
    Row::of(BENCH, metric, &[value])
}

/// The rows of an experiment.
fn of<'a>(rows: &'a [Row], experiment: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| row.case.get("experiment") == Some(&Value::from(experiment)))
}

/// The tables and expectations, for the terminal.
pub fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    for (experiment, title) in EXPERIMENTS {
        let mut here: Vec<Row> = of(rows, experiment).cloned().collect();
        here.iter_mut().for_each(|row| drop(row.case.shift_remove("experiment")));
        text += &format!("{title}\n\n{}\n", lockify_report::table(&here));
    }
    text + &relations::text(&relations(rows))
}

/// The experiments by their name in rows.
const EXPERIMENTS: [(&str, &str); 11] = [
    ("latency", "N-CoSED, latency of an uncontended lock (with two IPC messages)"),
    ("cascade", "N-CoSED, cascades: the last of k waiters is granted (grant gap calibrated)"),
    (
        "0",
        "ShiftLock, one lock only: the motivation, by compare-and-swap, and the artifact's sample",
    ),
    (
        "1",
        "ShiftLock, experiment 1: goodput and latency; empty critical sections, and such that touch what they protect",
    ),
    ("2", "ShiftLock, experiment 2: goodput by number of locks"),
    ("3", "ShiftLock, experiment 3: verbs at the home per lock"),
    ("4", "ShiftLock, experiment 4: transactions"),
    ("5", "ShiftLock, experiment 5: SmallBank on a store (two calibrated costs)"),
    ("6", "ShiftLock, experiment 6: latency by threads, unbounded batches"),
    ("7", "ShiftLock, experiment 7: writers per batch"),
    ("8", "ShiftLock, experiment 8: holders that die"),
];

/// Writes the rows and the page into a directory; returns where they are.
///
/// # Errors
/// Those of the file system, with the file.
pub fn write(rows: &[Row], dir: &Path) -> Result<(PathBuf, PathBuf), (PathBuf, std::io::Error)> {
    lockify_report::write_folder(rows, &page(rows), dir)
}

fn page(rows: &[Row]) -> Page {
    let mut page = Page::new("Locks in remote memory, simulated").text(
        "The protocols are the ones that run on hardware; what verbs and messages cost is a model, fixed before anything was \
         measured. Compare ratios and counts of verbs, not absolute figures. CAS-spin, MCS and DQNL take shared locks as \
         exclusive ones.",
    );
    let select = |experiment: &str| -> Vec<Row> { of(rows, experiment).cloned().collect() };
    let cascade = select("cascade");
    page = page.plot(
        Plot::lines_of(&cascade, &metric::LATENCY_US, "waiters", &["protocol", "mode"])
            .title("Cascades (N-CoSED)"),
    );
    for (section, title) in [("empty", "Experiment 1"), ("touch", "Experiment 1, touching")] {
        let mut first = select("1");
        first.retain(|row| row.case.get("section") == Some(&Value::from(section)));
        page = page
            .plot(
                Plot::bars_of(&first, &metric::LOCKS_PER_S, "load", &["protocol"])
                    .title(format!("{title}: goodput")),
            )
            .plot(tail(&first, "load").title(format!("{title}: 99th percentile of latency")));
    }
    let lines = |experiment: &str, x: &str, title: &str| {
        Plot::lines_of(&select(experiment), &metric::LOCKS_PER_S, x, &["protocol"]).title(title)
    };
    page = page
        .plot(lines("2", "locks", "Experiment 2: goodput by number of locks").x_scale(Scale::Log))
        .plot(
            Plot::bars_of(&select("3"), &metric::VERBS_PER_LOCK, "verb", &["protocol", "of"])
                .title("Experiment 3: verbs"),
        )
        .plot(
            Plot::bars_of(&select("4"), &metric::OPS_PER_S, "load", &["protocol"])
                .title("Experiment 4: transactions"),
        )
        .plot(
            Plot::bars_of(&select("5"), &metric::OPS_PER_S, "experiment", &["protocol"])
                .title("Experiment 5: SmallBank"),
        )
        .plot(lines("7", "batch", "Experiment 7: writers per batch"))
        .plot(lines("8", "dies", "Experiment 8: holders that die").x_scale(Scale::Log));
    relations::finish(page, &relations(rows), rows)
}

/// Bars of the 99th percentile.
fn tail(rows: &[Row], x: &str) -> Plot {
    let is_tail = |row: &&Row| row.case.get("percentile").and_then(Value::number) == Some(99.0);
    let tails: Vec<Row> = rows.iter().filter(is_tail).cloned().collect();
    Plot::bars_of(&tails, &metric::LATENCY_US, x, &["protocol"]).y_scale(Scale::Log)
}
