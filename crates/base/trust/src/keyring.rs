//! The credentials in use, and where they come from.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::authority::Lifetime;
use crate::credentials::Credentials;
use crate::error::TrustError;
use crate::files;
use crate::shared_key::SharedKey;

/// Where a node's credentials are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Certificates that an authority has signed.
    Certificates {
        /// The authorities that are trusted, PEM: usually one; two while one replaces the other.
        ca: PathBuf,
        /// This node's certificate and key, PEM. A secret.
        identity: PathBuf,
    },
    /// Secrets that all nodes share, in one file: the first is shown, all of them are believed.
    SharedKey(PathBuf),
}

impl Source {
    /// Reads them for this node.
    ///
    /// # Errors
    /// A file cannot be read or is not safe, or something does not fit.
    pub fn read(&self, cluster: &str, node: u32) -> Result<Credentials, TrustError> {
        match self {
            Source::Certificates { ca, identity } => {
                let (own, trusted) = (files::read_secret(identity)?, files::read_public(ca)?);
                let wrong = |what| {
                    let path = format!("{} with {}", identity.display(), ca.display()).into();
                    TrustError::Content { path, what }
                };
                Credentials::new(cluster, node, &own, &trusted).map_err(wrong)
            }
            Source::SharedKey(path) => shared(cluster, node, path),
        }
    }
}

fn shared(cluster: &str, node: u32, path: &Path) -> Result<Credentials, TrustError> {
    let (mut own, mut trusted) = (None, String::new());
    for key in SharedKey::read(path)? {
        let authority = key.authority(cluster)?;
        trusted += authority.certificate();
        if own.is_none() {
            own = Some(authority.issue(cluster, node, Lifetime::Endless)?);
        }
    }
    let wrong = |what| TrustError::Content { path: path.to_owned(), what };
    Credentials::new(cluster, node, &own.unwrap_or_default(), &trusted).map_err(wrong)
}

/// How nodes know that they talk to each other.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// They do not, and every user of the machine can pass for a node; so only loopback addresses
    /// are allowed.
    #[default]
    Loopback,
    /// They do not, on any network: whoever can reach a node can take and break its locks.
    PlainText,
    /// TLS 1.3: each proves which node it is. New connections use what the keyring then holds.
    Tls(Arc<Keyring>),
}

/// The exact words that [`Security::PlainText`] requires.
pub const PLAIN_TEXT: &str = "anybody who reaches the network may take and break locks";

/// The credentials that new connections use. Those that are there keep what they began with.
#[derive(Debug)]
pub struct Keyring(Mutex<Arc<Credentials>>);

impl Keyring {
    /// Begins with these.
    pub fn new(credentials: Credentials) -> Keyring {
        Keyring(Mutex::new(Arc::new(credentials)))
    }

    /// Those in use now.
    pub fn current(&self) -> Arc<Credentials> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses these from now on.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
    }
}
