//! `[security]`: how nodes know each other (docs/security.md).

use std::path::{Path, PathBuf};

use lockify_trust::{PLAIN_TEXT, Source};
use serde::Deserialize;

use super::place::Wrong;

/// How nodes know each other. Without it, plain text between loopback addresses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecurityEntry {
    /// Certificates of the authorities that are trusted (PEM). As all files here, relative to the
    /// configuration file.
    pub ca: Option<PathBuf>,
    /// This node's certificate and key (PEM).
    pub identity: Option<PathBuf>,
    /// Instead of both: a file with a key that all nodes share, or, while one is replaced by another,
    /// with the one that this node shows and then those that it believes, a line each.
    pub cluster_key: Option<PathBuf>,
    /// Instead of all: plain text, if these very words are written.
    pub plain_text: Option<String>,
    /// From so many days before a node's certificate ends, the log and `lockify status` warn of it.
    pub warn_days: u32,
}

impl Default for SecurityEntry {
    fn default() -> SecurityEntry {
        let (ca, identity, cluster_key, plain_text) = Default::default();
        SecurityEntry { ca, identity, cluster_key, plain_text, warn_days: 30 }
    }
}

/// The most days that a certificate's end may be warned of before.
const MOST_DAYS: u32 = 3650;

/// The meaning of a [`SecurityEntry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Loopback,
    PlainText,
    Tls(Source),
}

impl SecurityEntry {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        match self.warn_days {
            0..=MOST_DAYS => Ok(()),
            days => {
                let what = format!("warn_days = {days}: use 0 to {MOST_DAYS}");
                Err(Wrong::new("security.warn_days", what))
            }
        }
    }

    /// Files' paths, seen from where the configuration file is.
    pub(crate) fn resolve(&mut self, base: &Path) {
        let paths = self.ca.iter_mut().chain(&mut self.identity).chain(&mut self.cluster_key);
        paths.for_each(|path| *path = base.join(&*path));
    }

    /// The meaning of the entry.
    ///
    /// # Errors
    /// It contradicts itself, or says only half.
    pub(crate) fn protection(&self) -> Result<Protection, Wrong> {
        match (&self.ca, &self.identity, &self.cluster_key, &self.plain_text) {
            (None, None, None, None) => Ok(Protection::Loopback),
            (Some(ca), Some(identity), None, None) => {
                let (ca, identity) = (ca.clone(), identity.clone());
                Ok(Protection::Tls(Source::Certificates { ca, identity }))
            }
            (None, None, Some(key), None) => Ok(Protection::Tls(Source::SharedKey(key.clone()))),
            (None, None, None, Some(words)) if words == PLAIN_TEXT => Ok(Protection::PlainText),
            (None, None, None, Some(_)) => {
                let what = format!(
                    "security: for plain text between machines write plain_text = \
                     \"{PLAIN_TEXT}\", or use keys (`lockify cluster`)"
                );
                Err(Wrong::new("security.plain_text", what))
            }
            (Some(_), None, None, None) => {
                let what = "security: identity is missing: name this node's certificate and key \
                            (`lockify cluster add-node` makes them)";
                Err(Wrong::new("security.ca", what))
            }
            (None, Some(_), None, None) => {
                let what = "security: ca is missing: name the certificate of the authority \
                            (`lockify cluster init` makes it)";
                Err(Wrong::new("security.identity", what))
            }
            _ => {
                let what = "security: give either ca and identity, or cluster_key, or plain_text: \
                            remove the others";
                Err(Wrong::new("security", what))
            }
        }
    }
}
