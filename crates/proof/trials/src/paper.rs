//! A paper's experiments: measuring their parts on all cores, and writing the results.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use lockify_report::{Page, Row, Writer};
use lockify_sim::{Seeds, run_seeds};

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
