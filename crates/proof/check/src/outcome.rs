//! How the check of a history ended.

use std::fmt::Display;

use lockify_history::ReadError;
use serde::Serialize;

use crate::invariant::Counts;
use crate::report::Report;

/// How the check of a history ended.
#[derive(Debug)]
pub enum Outcome<C = Counts> {
    /// It was read to its end; the report says whether it is clean.
    Checked(Report<C>),
    /// It cannot be read; the report has the findings up to there.
    Unreadable {
        /// Which line, and why.
        error: ReadError,
        /// The findings so far.
        report: Report<C>,
    },
}

#[derive(Serialize)]
struct Json<'a, C> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    report: &'a Report<C>,
}

impl<C: Display + Serialize> Outcome<C> {
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
            Outcome::Unreadable { error, .. } if error.line().is_none_or(|line| line == 1) => {
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
