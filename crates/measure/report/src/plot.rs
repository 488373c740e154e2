//! The content of a plot.

use indexmap::{IndexMap, IndexSet};

use crate::metric::Metric;
use crate::row::{Row, Value};
use crate::scale::Scale;

/// A measured point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Where; in a plot of bars, the number of the category, from 0.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The smallest and the largest value of the rounds, shown as an error bar.
    pub range: Option<(f64, f64)>,
}

/// Points that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in order of x.
    pub points: Vec<Point>,
}

/// How series are drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// Points, joined by lines.
    Lines,
    /// Steps without points: distributions.
    Steps,
    /// A group of bars for each of these categories.
    Bars(Vec<String>),
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    /// The title of the series.
    pub title: String,
    /// The x axis's quantity and unit.
    pub x_label: String,
    /// The y axis's quantity and unit.
    pub y_label: String,
    /// How its series are drawn.
    pub form: Form,
    /// How the x axis is spaced; bars ignore it.
    pub x_scale: Scale,
    /// How the y axis is spaced.
    pub y_scale: Scale,
    /// The series of the plot.
    pub series: Vec<Series>,
}

impl Series {
    /// A series through these places and values.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| Point { x, y, range: None });
        Series { name: name.into(), points: points.collect() }
    }

    /// The cumulative distribution of samples, in any order: x a sample, y the percentage of
    /// samples that are not larger. At most 500 points, evenly spread, and both ends.
    pub fn cdf(name: impl Into<String>, samples: &[f64]) -> Series {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let stride = n.div_ceil(500).max(1);
        let kept = (0..n).filter(|i| i % stride == 0 || i + 1 == n);
        Series::new(name, kept.map(|i| (sorted[i], 100.0 * (i + 1) as f64 / n as f64)))
    }
}

impl Plot {
    /// A plot of lines without series.
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Plot {
        Plot {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            form: Form::Lines,
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            series: Vec::new(),
        }
    }

    /// A plot of cumulative distributions on a logarithmic axis; add [`Series::cdf`]s.
    pub fn cdf(title: impl Into<String>, x_label: impl Into<String>) -> Plot {
        let plot = Plot::new(title, x_label, "operations [%]");
        Plot { form: Form::Steps, x_scale: Scale::Log, ..plot }
    }

    /// The metric by a numerical property of the case, a line for each combination of the
    /// properties in `by`.
    pub fn lines_of(rows: &[Row], metric: &Metric, x: &str, by: &[&str]) -> Plot {
        let place = |row: &Row| row.case.get(x).and_then(Value::number);
        let mut plot = Plot::new(metric.title, x, label(metric));
        plot.series = series_of(rows, metric, by, place);
        plot
    }

    /// The metric by any property of the case, a group of bars for each of its values, a bar for
    /// each combination of the properties in `by`.
    pub fn bars_of(rows: &[Row], metric: &Metric, x: &str, by: &[&str]) -> Plot {
        let of_metric = rows.iter().filter(|row| row.metric == metric.name);
        let category = |row: &Row| row.case.get(x).map(Value::to_string);
        let categories: IndexSet<String> = of_metric.filter_map(category).collect();
        let place = |row: &Row| Some(categories.get_index_of(&category(row)?)? as f64);
        let mut plot = Plot::new(metric.title, x, label(metric));
        plot.series = series_of(rows, metric, by, place);
        plot.form = Form::Bars(categories.into_iter().collect());
        plot
    }

    /// Latencies by percentile, a line for each combination of the properties in `by`. Both axes
    /// spread the tail.
    pub fn percentiles_of(rows: &[Row], metric: &Metric, by: &[&str]) -> Plot {
        let plot = Plot::lines_of(rows, metric, "percentile", by);
        let title = format!("{} by percentile", metric.title);
        Plot { title, x_scale: Scale::Nines, y_scale: Scale::Log, ..plot }
    }

    /// The plot, with this title.
    pub fn title(self, title: impl Into<String>) -> Plot {
        Plot { title: title.into(), ..self }
    }

    /// The plot, with a further series.
    pub fn series(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
    }

    /// The plot, with its x axis spaced so.
    pub fn x_scale(self, x_scale: Scale) -> Plot {
        Plot { x_scale, ..self }
    }

    /// The plot, with its y axis spaced so.
    pub fn y_scale(self, y_scale: Scale) -> Plot {
        Plot { y_scale, ..self }
    }
}

fn label(metric: &Metric) -> String {
    match metric.unit {
        "1" => metric.title.to_owned(),
        unit => format!("{} [{unit}]", metric.title),
    }
}

fn series_of(
    rows: &[Row],
    metric: &Metric,
    by: &[&str],
    place: impl Fn(&Row) -> Option<f64>,
) -> Vec<Series> {
    let mut series: IndexMap<String, Vec<Point>> = IndexMap::new();
    for row in rows.iter().filter(|row| row.metric == metric.name) {
        let Some(x) = place(row) else { continue };
        let range = row.spread().filter(|_| row.rounds.len() > 1).map(|s| (s.min, s.max));
        let point = Point { x, y: row.value, range };
        series.entry(name(row, by)).or_default().push(point);
    }
    let series = series.into_iter().map(|(name, mut points)| {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { name, points }
    });
    series.collect()
}

/// Texts are clear by themselves; numbers need the name of the counted thing.
fn name(row: &Row, by: &[&str]) -> String {
    let parts = by.iter().filter_map(|key| {
        Some(match row.case.get(*key)? {
            Value::Text(text) => text.clone(),
            value => format!("{key} {value}"),
        })
    });
    parts.collect::<Vec<_>>().join(", ")
}
