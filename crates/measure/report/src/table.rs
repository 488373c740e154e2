//! Rows as a table: one line per case, one column per metric.

use std::fmt;

use indexmap::{IndexMap, IndexSet};

use crate::row::{Case, Row};

/// A table of results.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The columns' headings; the first `properties` of them are properties of cases.
    pub headings: Vec<String>,
    /// How many columns are properties of cases.
    pub properties: usize,
    /// The cells, line by line.
    pub lines: Vec<Vec<String>>,
}

/// The rows as a table: a line for every case (with its benchmark, if there are several) and a
/// column for every metric, both in the order in which they first occur. Latencies have a column
/// for each percentile; published values stand beside the measured ones.
pub fn table(rows: &[Row]) -> Table {
    let several = rows.iter().any(|row| row.bench != rows[0].bench);
    let mut properties: IndexSet<String> = IndexSet::new();
    let mut metrics: IndexSet<String> = IndexSet::new();
    let mut cases: IndexMap<String, IndexMap<String, String>> = IndexMap::new();
    for row in rows {
        let mut line: IndexMap<String, String> = IndexMap::new();
        if several {
            line.insert("bench".to_owned(), row.bench.clone());
        }
        line.extend(properties_of(&row.case).map(|(name, value)| (name.clone(), value)));
        properties.extend(line.keys().cloned());
        let key = format!("{line:?}");
        let line = cases.entry(key).or_insert(line);
        let heading = heading(row);
        line.insert(heading.clone(), cell(row));
        metrics.insert(heading.clone());
        if let Some(published) = row.published {
            let heading = format!("{heading} published");
            line.insert(heading.clone(), number(published));
            metrics.insert(heading);
        }
    }
    let headings: Vec<String> = properties.iter().chain(&metrics).cloned().collect();
    let cells = |line: &IndexMap<String, String>| {
        headings.iter().map(|h| line.get(h).cloned().unwrap_or_default()).collect()
    };
    let lines = cases.values().map(cells).collect();
    Table { properties: properties.len(), headings, lines }
}

const PERCENTILE: &str = "percentile";

fn properties_of(case: &Case) -> impl Iterator<Item = (&String, String)> {
    case.iter()
        .filter(|(name, _)| *name != PERCENTILE)
        .map(|(name, value)| (name, value.to_string()))
}

fn heading(row: &Row) -> String {
    let percentile = row.case.get(PERCENTILE).map(|p| format!(" p{p}")).unwrap_or_default();
    let unit = if row.unit == "1" { String::new() } else { format!(" [{}]", row.unit) };
    format!("{}{percentile}{unit}", row.metric)
}

/// The value, and how far the rounds were apart.
fn cell(row: &Row) -> String {
    let spread = row.spread().filter(|s| row.rounds.len() > 1 && s.relative() > 0.0);
    match spread {
        Some(spread) => format!("{} ±{:.0}%", number(row.value), spread.relative() * 100.0),
        None => number(row.value),
    }
}

/// A number with four significant digits, but all digits before the point.
pub(crate) fn number(n: f64) -> String {
    if n == 0.0 || !n.is_finite() {
        return format!("{}", n.abs());
    }
    let digits = (3 - n.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{n:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// For the terminal: aligned, properties to the left, numbers to the right.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |i: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(i));
            cells.chain(self.headings.get(i)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let mut line = |cells: &[String]| {
            let mut text = String::new();
            for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                text += &if i < self.properties {
                    format!("{gap}{cell:<width$}")
                } else {
                    format!("{gap}{cell:>width$}")
                };
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(&self.headings)?;
        line(&widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>())?;
        self.lines.iter().try_for_each(|cells| line(cells))
    }
}
