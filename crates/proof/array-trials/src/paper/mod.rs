//! The paper's experiments on the simulated array, as result rows: figure 6 beside the published one, and the sweeps of
//! figures 5, 8, 10, 11 and 12. [`criteria`] compares expectations (docs/design/array.md 5) and results.

mod criteria;
mod figures;
mod published;
pub mod reading;
pub mod search;

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use lockify_report::{Metric, Page, Plot, Row, Scale, Series, Table, Value, metric};

pub use criteria::{Criterion, criteria};

use crate::measure::{BENCH, MeasureError};
use crate::workload::Alignment;
use figures::Found;
use reading::{Lab, Reading};

/// A part of the experiments.
pub struct Part(Box<dyn Fn() -> Found + Send + Sync>);

impl Part {
    fn new(work: impl Fn() -> Found + Send + Sync + 'static) -> Part {
        Part(Box::new(work))
    }
}

/// How many parts there are.
pub fn count() -> u64 {
    figures::parts(Lab::fixed()).len() as u64
}

/// Runs all parts on all cores, by a reading of the paper; `progress` is told how many are done.
///
/// # Errors
/// The first part that could not be measured.
pub fn run(reading: Reading, progress: impl Fn(u64) + Sync) -> Result<Vec<Row>, MeasureError> {
    let lab = Lab::fitted(reading)?;
    lockify_sim::run_parts(&figures::parts(lab), |part| part.0(), progress)
}

/// Runs parts one after the other.
fn run_all(parts: &[Part]) -> Found {
    let rows: Result<Vec<Vec<Row>>, MeasureError> = parts.iter().map(|part| part.0()).collect();
    Ok(rows?.into_iter().flatten().collect())
}

fn row(metric: &Metric, value: f64) -> Row {
    Row::of(BENCH, metric, &[value])
}

/// The rows of a figure.
fn of<'a>(rows: &'a [Row], figure: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| row.case.get("figure") == Some(&Value::from(figure)))
}

/// The rows of a figure whose property has this value, without both.
fn part_of(rows: &[Row], figure: &str, property: &str, value: &Value) -> Vec<Row> {
    let fits = of(rows, figure).filter(|row| row.case.get(property) == Some(value));
    let mut rows: Vec<Row> = fits.cloned().collect();
    for row in &mut rows {
        row.case.shift_remove("figure");
        row.case.shift_remove(property);
    }
    rows
}

/// Figures that are shown as a metric by a property.
struct Sweep {
    figure: &'static str,
    title: &'static str,
    /// Those of its rows only that have this.
    only: Option<(&'static str, f64)>,
    x: &'static str,
    /// The property that has a line or column for each of its values.
    lines: &'static str,
    metric: Metric,
    log: bool,
}

const fn sweep(
    figure: &'static str,
    title: &'static str,
    x: &'static str,
    metric: Metric,
) -> Sweep {
    Sweep { figure, title, only: None, x, lines: "scheme", metric, log: false }
}

const SWEEPS: [Sweep; 14] = [
    sweep("5a", "Figures 5a and 10, left: mean latency by hosts", "hosts", metric::MEAN_LATENCY_MS),
    sweep(
        "5b",
        "Figure 5b: mean latency by percent of the array used",
        "used_percent",
        metric::MEAN_LATENCY_MS,
    ),
    Sweep {
        log: true,
        ..sweep(
            "8",
            "Figure 8: share delayed by percent of the array used",
            "used_percent",
            metric::DELAYED_SHARE,
        )
    },
    sweep("8", "Figure 8: operations per second done", "used_percent", metric::OPS_PER_S),
    sweep(
        "10",
        "Figure 10, right: messages by percent of reads",
        "read_percent",
        metric::MESSAGES_PER_OP,
    ),
    Sweep {
        log: true,
        ..sweep(
            "11",
            "Figure 11, left: share delayed by the longest message",
            "window_ms",
            metric::DELAYED_SHARE,
        )
    },
    sweep(
        "11",
        "Figure 11, right: mean latency by the longest message",
        "window_ms",
        metric::MEAN_LATENCY_MS,
    ),
    Sweep {
        only: Some(("hits_percent", 20.0)),
        ..sweep(
            "12",
            "Figure 12, left: mean latency with 20 % cache hits",
            "hosts",
            metric::MEAN_LATENCY_MS,
        )
    },
    Sweep {
        only: Some(("hits_percent", 60.0)),
        ..sweep(
            "12",
            "Figure 12, right: mean latency with 60 % cache hits",
            "hosts",
            metric::MEAN_LATENCY_MS,
        )
    },
    Sweep {
        only: Some(("hits_percent", 60.0)),
        ..sweep(
            "12",
            "Figure 12: share started again with 60 % cache hits",
            "hosts",
            metric::RETRY_SHARE,
        )
    },
    sweep(
        "8, at once",
        "Beside figure 8: devices that handle requests at once, mean latency",
        "used_percent",
        metric::MEAN_LATENCY_MS,
    ),
    Sweep {
        lines: "lock_wait",
        ..sweep(
            "8, time-outs",
            "Beside figure 8: the same, device locking with fixed time-outs, share started again",
            "used_percent",
            metric::RETRY_SHARE,
        )
    },
    Sweep {
        lines: "lock_wait",
        ..sweep(
            "8, time-outs",
            "Beside figure 8: the same, mean latency",
            "used_percent",
            metric::MEAN_LATENCY_MS,
        )
    },
    sweep(
        "12, time-outs",
        "Beside figure 12: devices at once, 60 % cache hits, 58 hosts, share started again by fixed time-out",
        "lock_wait_ms",
        metric::RETRY_SHARE,
    ),
];

impl Sweep {
    fn rows(&self, all: &[Row]) -> Vec<Row> {
        let alignment = Value::from(figures::ALIGNMENT.name());
        let mut rows = part_of(all, self.figure, "alignment", &alignment);
        let fits = |row: &Row| match self.only {
            Some((name, value)) => row.case.get(name).and_then(Value::number) == Some(value),
            None => true,
        };
        rows.retain(|row| row.metric == self.metric.name && fits(row));
        rows
    }

    fn plot(&self, all: &[Row]) -> Plot {
        let rows = self.rows(all);
        let mut plot = Plot::lines_of(&rows, &self.metric, self.x, &[self.lines]);
        for row in rows.iter().filter(|row| row.published.is_some()) {
            let place = row.case.get(self.x).and_then(Value::number);
            let line = row.case.get(self.lines).map(Value::to_string);
            if let (Some(x), Some(line), Some(y)) = (place, line, row.published) {
                plot = plot.series(Series::new(format!("published, {line}"), [(x, y)]));
            }
        }
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        plot.title(self.title).y_scale(scale)
    }

    /// Where the array did not keep up there is no latency.
    fn table(&self, all: &[Row]) -> Table {
        let rows = self.rows(all);
        let mut columns: Vec<String> = Vec::new();
        type Cell = (f64, Option<f64>);
        let mut lines: IndexMap<String, (f64, IndexMap<String, Cell>)> = IndexMap::new();
        for row in &rows {
            let (Some(x), Some(Value::Text(name))) =
                (row.case.get(self.x), row.case.get(self.lines))
            else {
                continue;
            };
            if !columns.contains(name) {
                columns.push(name.clone());
            }
            let place = x.number().unwrap_or(f64::NAN);
            let line = lines.entry(x.to_string()).or_insert_with(|| (place, IndexMap::new()));
            line.1.insert(name.clone(), (row.value, row.published));
        }
        lines.sort_by(|_, a, _, b| a.0.total_cmp(&b.0));
        let number = |value: f64| match self.metric.unit {
            "1" if self.metric != metric::MESSAGES_PER_OP => format!("{value:.5}"),
            _ => format!("{value:.2}"),
        };
        let shown = |cell: Option<&Cell>| match cell {
            None => "-".to_owned(),
            Some((value, None)) => number(*value),
            Some((value, Some(there))) => {
                format!("{} (published {})", number(*value), number(*there))
            }
        };
        let cells = |(x, (_, values)): (&String, &(f64, IndexMap<String, Cell>))| {
            let cells = columns.iter().map(|name| shown(values.get(name)));
            std::iter::once(x.clone()).chain(cells).collect()
        };
        Table {
            headings: std::iter::once(self.x.to_owned()).chain(columns.iter().cloned()).collect(),
            properties: 1,
            lines: lines.iter().map(cells).collect(),
        }
    }
}

const CALIBRATIONS: &str = "Latencies of figures 6, 8 and 11 are by calibration B (zero-overhead's mean latency is 29.71 ms at 600 \
     operations per second), peaks and the other figures by calibration A (zero-overhead's peak is 1349.5): no one disk has \
     both. A peak is the highest load, in steps of two hosts as the published ones, with a mean latency (of three seeds) of at \
     most 89.29 ms, the top of figure 10. Operations lie within one stripe (stripe) or anywhere (free), since the paper does not say.";

/// Figure 6 by each rule of alignment.
fn figure_6(rows: &[Row]) -> Vec<(String, Vec<Row>)> {
    let figure = |alignment: Alignment| {
        let rows = part_of(rows, "6", "alignment", &alignment.name().into());
        (format!("Figure 6, operations {}", alignment.describe()), rows)
    };
    Alignment::ALL.map(figure).into()
}

const DEVICES: &str = "The paper's devices, as its text describes them: they handle a request in turn, when their disk has done what came \
     before, so that locks and pre-writes wait in its queue; and with device locking nothing is handled behind a request that waits \
     for a lock, until a time-out of 5 ms that is fitted to figure 8.";

const TURNS: &str = "Figure 6 with devices that handle requests in another way. at-once: as they come, as the devices of `lockify array` do, \
     so that only reads and writes wait for the disk; in-turn: device locking that holds up nothing but what wants the lock.";

const SCALE: &str = "Beyond the paper: 200 hosts at 200 devices. Loads and latencies with Table 1's costs (calibration A, within one \
     stripe); checked_ops are those of a run of its own, with interruptions, of which everything was checked, and events_per_s how \
     fast that was simulated, checker included, while other measurements ran.";

/// Its rows.
fn at_scale(rows: &[Row]) -> Vec<Row> {
    part_of(rows, "scale", "alignment", &Alignment::Stripe.name().into())
}

/// The tables and expectations, for the terminal.
pub fn text(rows: &[Row]) -> String {
    let mut text = format!("{DEVICES}\n\n{CALIBRATIONS}\n\n");
    for (title, rows) in figure_6(rows) {
        text += &format!("{title}\n\n{}\n", lockify_report::table(&rows));
    }
    for sweep in &SWEEPS {
        text += &format!("{} [{}]\n\n{}\n", sweep.title, sweep.metric.unit, sweep.table(rows));
    }
    let turns = part_of(rows, "6, turns", "alignment", &figures::ALIGNMENT.name().into());
    text += &format!("{TURNS}\n\n{}\n", lockify_report::table(&turns));
    text += &format!("{SCALE}\n\n{}\n", lockify_report::table(&at_scale(rows)));
    text += &verdicts(rows);
    text
}

/// How much is as published.
fn score(criteria: &[Criterion]) -> String {
    let met = criteria.iter().filter(|criterion| criterion.met).count();
    format!("Beside what was published: {met} of {} as published.", criteria.len())
}

/// The published results beside ours, for the terminal.
fn verdicts(rows: &[Row]) -> String {
    let criteria = criteria(rows);
    let mut text = format!("{}\n", score(&criteria));
    for criterion in &criteria {
        text += &format!("\n{:<12}  {}\n", criterion.verdict(), criterion.what);
        text += &format!("    published {}\n", criterion.published);
        text += &format!("    here      {}\n", criterion.here);
        if let Some(because) = &criterion.because {
            text += &format!("    why       {because}\n");
        }
    }
    text
}

/// Writes the rows and the page into a directory; returns where they are.
///
/// # Errors
/// Those of the file system, with the file.
pub fn write(rows: &[Row], dir: &Path) -> Result<(PathBuf, PathBuf), (PathBuf, std::io::Error)> {
    lockify_report::write_folder(rows, &page(rows), dir)
}

fn page(rows: &[Row]) -> Page {
    let mut page = Page::new("A shared array without a controller, simulated").text(
        "The experiments of Amiri, Gibson and Golding, Highly concurrent shared storage, with the state machines that run on \
         real devices. What disks, messages and processors cost was fixed before any protocol was measured.",
    );
    let criteria = criteria(rows);
    page = page.text(score(&criteria)).texts(criteria::table(&criteria));
    page = page.text(DEVICES).text(CALIBRATIONS);
    for (title, rows) in figure_6(rows) {
        page = page.text(title).table(&rows);
    }
    let turns = part_of(rows, "6, turns", "alignment", &figures::ALIGNMENT.name().into());
    page = page.text(TURNS).table(&turns);
    page = page.text(SCALE).table(&at_scale(rows));
    for sweep in &SWEEPS {
        page = page.plot(sweep.plot(rows));
    }
    page.table(rows)
}
