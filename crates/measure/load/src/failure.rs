//! Errors, with the step that failed.

use std::io;
use std::path::Path;

/// Why a load ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file system refused an operation.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// The operation.
        what: &'static str,
        /// On which file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The witness or the network failed.
    #[error("{what}: {source}")]
    Network {
        /// The attempted step, and its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// Anything else; the text says what to do.
    #[error("{0}")]
    Other(String),
}

/// Says of an error which operation on which file it ended.
pub trait OnFile<T> {
    /// The value, or the failure of `what` on `path`.
    fn on(self, what: &'static str, path: &Path) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> OnFile<T> for Result<T, E> {
    fn on(self, what: &'static str, path: &Path) -> Result<T, Failure> {
        self.map_err(|e| Failure::File { what, path: path.display().to_string(), source: e.into() })
    }
}
