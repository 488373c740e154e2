//! Checks recorded histories, for `lockify check FILE`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use lockify_history::{LONGEST_LINE, Reader};

use crate::array;
use crate::checker::{Checker, Options};
use crate::outcome::Outcome;

/// How the check of a file of either kind ended.
#[derive(Debug)]
pub enum Judged {
    /// It is a history of locks.
    Locks(Outcome),
    /// It is a history of an array.
    Array(Outcome<array::Counts>),
}

impl Judged {
    /// 0 clean, 1 violated, 2 unreadable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Judged::Locks(outcome) => outcome.exit_code(),
            Judged::Array(outcome) => outcome.exit_code(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            Judged::Locks(outcome) => outcome.text(),
            Judged::Array(outcome) => outcome.text(),
        }
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        match self {
            Judged::Locks(outcome) => outcome.json(),
            Judged::Array(outcome) => outcome.json(),
        }
    }
}

/// Checks a recorded history of either kind: that of an array has `"event":"begin"` with an `array` in its first line.
pub fn check_any(path: impl AsRef<Path>) -> Judged {
    let path = path.as_ref();
    // A file that cannot be read is told of as a history of locks.
    let Ok(Some(input)) = open_array(path) else { return Judged::Locks(check_file(path)) };
    Judged::Array(array::check_reader(lockify_history::array::Reader::new(input)))
}

fn open_array(path: &Path) -> std::io::Result<Option<BufReader<File>>> {
    #[derive(serde::Deserialize)]
    struct First {
        event: String,
        #[serde(rename = "array")]
        _array: serde::de::IgnoredAny,
    }
    let mut input = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    (&mut input).take(LONGEST_LINE as u64).read_until(b'\n', &mut line)?;
    let first: Result<First, _> = serde_json::from_slice(&line);
    let is_array = first.is_ok_and(|First { event, .. }| event == "begin");
    input.rewind()?;
    Ok(is_array.then_some(input))
}

/// Checks a recorded history of locks.
pub fn check_file(path: impl AsRef<Path>) -> Outcome {
    match Reader::open(path) {
        Ok(reader) => check_reader(reader, Options::recorded()),
        Err(error) => {
            Outcome::Unreadable { error, report: Checker::new(Options::recorded()).finish() }
        }
    }
}

/// Checks a reader's events.
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
