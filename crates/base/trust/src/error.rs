//! The errors of keys and certificates.

use std::path::PathBuf;

/// Keys or certificates cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file cannot be read or written.
    #[error("{what} {path}: {error}")]
    File {
        /// The attempted step.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        error: std::io::Error,
    },
    /// A secret that others can read or change.
    #[error("{path} is a secret, but {who}: {remedy}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The users and their permissions.
        who: String,
        /// The remedy.
        remedy: String,
    },
    /// A file that would have been overwritten.
    #[error("{0} exists: it is not overwritten; {1}")]
    Exists(PathBuf, &'static str),
    /// A file that is not what it should be.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The error, and its remedy.
        what: String,
    },
    /// Something that was asked for makes no sense.
    #[error("{0}")]
    Asked(String),
    /// The library refuses.
    #[error("{what}: {error}")]
    Crypto {
        /// The attempted step.
        what: &'static str,
        /// The library's error.
        error: String,
    },
}

impl TrustError {
    /// An error of a library, with what was tried.
    pub(crate) fn crypto(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> TrustError {
        move |error| TrustError::Crypto { what, error: error.to_string() }
    }
}
