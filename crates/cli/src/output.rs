//! The output of subcommands.

use std::io::{ErrorKind, Write as _};

use lockify_trust::{printable, printable_json, printable_lines};
use serde::Serialize;

use crate::exit::{Code, Failure, OrFail as _};

/// Prints a message for the user at the terminal, on standard error.
pub fn print_message(what: &str) {
    eprintln!("lockify: {}", printable_lines(what));
}

/// Prints to standard output, without anything that a terminal would obey: names, refusals and
/// errors are texts of others. A reader that has closed its end (`| head`) has all that it wants.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(printable_lines(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            let what = format!("cannot write the output: {e}; free space or print elsewhere");
            Err(Failure::new(Code::Failed, what))
        }
        _ => Ok(()),
    }
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).or_fail(Code::Failed)?;
    print(&(printable_json(&text) + "\n"))
}

/// Lays rows out in columns under a heading; each row is one line, whatever is in its cells.
pub fn columns(heading: &[&str], rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| row.iter().map(|cell| printable(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(line).collect();
    let heading: Vec<String> = heading.iter().map(|h| (*h).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&heading).chain(&rows).collect();
    let width = |c: usize| all.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
    let widths: Vec<usize> = (0..heading.len()).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in all {
        let padded = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:w$}"));
        text += padded.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Compares printed JSON with that from when its schema was fixed. To change it on purpose, run the
/// test with `LOCKIFY_GOLDEN` set, look at the difference, and mind `SCHEMA`.
#[cfg(test)]
pub fn assert_golden(name: &str, value: &impl Serialize, golden: &str) {
    let text = serde_json::to_string_pretty(value).unwrap() + "\n";
    if std::env::var_os("LOCKIFY_GOLDEN").is_some() {
        let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, &text).unwrap();
        return;
    }
    assert_eq!(text, golden, "the JSON of {name} has changed: see docs/observing.md");
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "long one".into()], vec!["wider".into(), "b".into()]];
        assert_eq!(columns(&["X", "Y"], &rows), "X      Y\na      long one\nwider  b\n");
    }

    #[test]
    fn a_cell_makes_no_further_line() {
        let rows = [vec!["a\nb\u{1b}[1m".into(), "c".into()]];
        assert_eq!(columns(&["X", "Y"], &rows), "X              Y\na\\nb\\u{1b}[1m  c\n");
    }
}
