//! The errors of the benchmark.

use std::fmt::Display;

/// Why something could not be measured; the text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// An error with this text.
    pub fn new(what: impl Display) -> Error {
        Error(what.to_string())
    }
}

/// Names the step during which it went wrong.
pub trait During<T> {
    /// The value, or an error that begins with `what`.
    fn during(self, what: impl Display) -> Result<T, Error>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Result<T, Error> {
        self.map_err(|e| Error(format!("{what}: {e}")))
    }
}
