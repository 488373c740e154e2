//! Checking recorded histories: what `lockify check FILE` does.

use std::io::BufRead;
use std::path::Path;

use serde::Serialize;

use crate::checker::{Checker, Options};
use crate::history::{ReadError, Reader};
use crate::report::Report;

/// How the check of a file ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was read to its end; the report says whether it is clean.
    Checked(Report),
    /// It cannot be read; what was found up to there is in the report.
    Unreadable {
        /// Which line, and why.
        error: ReadError,
        /// What was found before.
        report: Report,
    },
}

#[derive(Serialize)]
struct Json<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    report: &'a Report,
}

impl Outcome {
    /// 0 clean, 1 violated, 2 unreadable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Checked(report) => u8::from(!report.is_clean()),
            Outcome::Unreadable { .. } => 2,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            Outcome::Checked(report) => report.to_string(),
            Outcome::Unreadable { error, report } if report.counts.events == 0 => {
                format!("unreadable: {error}\n")
            }
            Outcome::Unreadable { error, report } => {
                format!("unreadable: {error}\nup to there:\n{report}")
            }
        }
    }

    /// One JSON object: `outcome` is clean, violated or unreadable.
    pub fn json(&self) -> String {
        let (error, report) = match self {
            Outcome::Checked(report) => (None, report),
            Outcome::Unreadable { error, report } => (Some(error), report),
        };
        let outcome = ["clean", "violated", "unreadable"][usize::from(self.exit_code())];
        let line = error.and_then(ReadError::line);
        let json = Json { outcome, error: error.map(ToString::to_string), line, report };
        // Only maps with keys that are no strings, and foreign Serialize impls, can fail.
        serde_json::to_string(&json).unwrap_or_default()
    }
}

/// Checks a recorded history.
pub fn check_file(path: impl AsRef<Path>) -> Outcome {
    match Reader::open(path) {
        Ok(reader) => check_reader(reader, Options::recorded()),
        Err(error) => {
            Outcome::Unreadable { error, report: Checker::new(Options::recorded()).finish() }
        }
    }
}

/// Checks what a reader reads.
pub fn check_reader<R: BufRead>(mut reader: Reader<R>, options: Options) -> Outcome {
    let mut checker = Checker::new(options);
    loop {
        match reader.read() {
            // The report repeats every violation: this is no place to stop.
            Ok(Some(event)) => drop(checker.observe_line(&event, reader.line())),
            Ok(None) => return Outcome::Checked(checker.finish()),
            Err(error) => {
                return Outcome::Unreadable { error, report: checker.finish() };
            }
        }
    }
}
