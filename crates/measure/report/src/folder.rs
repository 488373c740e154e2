//! A report as two files of a folder: rows, and a page.

use std::path::{Path, PathBuf};

use crate::html::Page;
use crate::jsonl::{WriteError, Writer};
use crate::row::Row;

/// Writes the rows and the page into a folder; returns where they are.
///
/// # Errors
/// Those of the file system, with the file.
pub fn write_folder(
    rows: &[Row],
    page: &Page,
    dir: &Path,
) -> Result<(PathBuf, PathBuf), (PathBuf, std::io::Error)> {
    std::fs::create_dir_all(dir).map_err(|e| (dir.to_path_buf(), e))?;
    let (jsonl, html) = (dir.join("report.jsonl"), dir.join("report.html"));
    let failed = |e: WriteError| (jsonl.clone(), std::io::Error::other(e));
    let mut writer = Writer::create(&jsonl).map_err(failed)?;
    for row in rows {
        writer.write(row).map_err(failed)?;
    }
    page.write(&html).map_err(|e| (html.clone(), e))?;
    Ok((jsonl, html))
}
