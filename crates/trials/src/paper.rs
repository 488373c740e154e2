//! A paper's experiments: measuring their parts on all cores, and showing what was expected and found.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use lockify_report::{Page, Row, Writer};
use lockify_sim::{Seeds, run_seeds};

/// An expectation.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
    /// Whether they agree. Where rows are missing, they do not.
    pub met: bool,
    /// Why not, by what was counted, where that is known.
    pub because: Option<String>,
}

/// An expectation of which nothing is known but whether it is met.
pub(crate) fn criterion(
    expected: impl Into<String>,
    found: impl Into<String>,
    met: bool,
) -> Criterion {
    Criterion { expected: expected.into(), found: found.into(), met, because: None }
}

impl Criterion {
    /// With the reason, which only counts if it is not met.
    pub(crate) fn because(self, reason: String) -> Criterion {
        Criterion { because: (!self.met).then_some(reason), ..self }
    }
}

/// Runs all parts on all cores; `progress` is told how many are done.
///
/// # Errors
/// The first part that could not be measured.
pub(crate) fn run<P: Sync, E: Send>(
    parts: &[P],
    measure: impl Fn(&P) -> Result<Vec<Row>, E> + Sync,
    progress: impl Fn(u64) + Sync,
) -> Result<Vec<Row>, E> {
    let seeds = Seeds { max_failures: 0, ..Seeds::new(0..parts.len() as u64, "") };
    let one = |number: u64| Ok(parts.get(number as usize).map_or(Ok(Vec::new()), &measure));
    let report = run_seeds(&seeds, one, progress);
    if let Some(failure) = report.failures.first() {
        // Only a panic is a failure here; rows that are not there would pass for a result.
        resume_unwind(Box::new(failure.to_string()));
    }
    let mut rows = Vec::new();
    for (_, part) in report.passed {
        rows.extend(part?);
    }
    Ok(rows)
}

/// What was expected, for the terminal.
pub(crate) fn text(criteria: &[Criterion]) -> String {
    let mut text = String::from("Expected and found:\n");
    for criterion in criteria {
        let met = if criterion.met { "pass       " } else { "FALLS SHORT" };
        text += &format!("  {met}  {}: {}\n", criterion.expected, criterion.found);
        if let Some(because) = &criterion.because {
            text += &format!("               {because}\n");
        }
    }
    text
}

/// The page, with what was expected and all rows at its end.
pub(crate) fn finish(page: Page, criteria: &[Criterion], rows: &[Row]) -> Page {
    let mut page = page.text("Expected and found:");
    for criterion in criteria {
        let met = if criterion.met { "Pass" } else { "Falls short" };
        let because = criterion.because.as_ref().map_or_else(String::new, |b| format!("; {b}"));
        page = page.text(format!("{met}: {}: {}{because}", criterion.expected, criterion.found));
    }
    page.table(rows)
}

/// Writes the rows and the page into a directory; returns where they are.
///
/// # Errors
/// Those of the file system, with the file.
pub(crate) fn write(
    rows: &[Row],
    page: &Page,
    dir: &Path,
) -> Result<(PathBuf, PathBuf), (PathBuf, std::io::Error)> {
    std::fs::create_dir_all(dir).map_err(|e| (dir.to_path_buf(), e))?;
    let (jsonl, html) = (dir.join("report.jsonl"), dir.join("report.html"));
    let failed = |e: lockify_report::WriteError| (jsonl.clone(), std::io::Error::other(e));
    let mut writer = Writer::create(&jsonl).map_err(failed)?;
    for row in rows {
        writer.write(row).map_err(failed)?;
    }
    page.write(&html).map_err(|e| (html.clone(), e))?;
    Ok((jsonl, html))
}
