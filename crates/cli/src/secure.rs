//! How servers of memory and of arrays, and their clients on other machines, prove who they are: the options, which are named as the keys of
//! a daemon's configuration.

use std::path::PathBuf;

use lockify_trust::{Identity, PLAIN_TEXT, Source};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::exit::{Code, Failure, OrFail as _};

/// The identity, and its proof.
#[derive(clap::Args)]
#[command(next_help_heading = "Security")]
pub struct Secure {
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "lockify")]
    cluster: String,
    /// The number of this machine's node in the cluster; with keys
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Certificates of the authorities that are trusted (`lockify cluster init`)
    #[arg(long, value_name = "FILE", requires_all = ["identity", "node"])]
    ca: Option<PathBuf>,
    /// The node's certificate and key (`lockify cluster add-node`)
    #[arg(long, value_name = "FILE", requires = "ca")]
    identity: Option<PathBuf>,
    /// Instead of both: the key that all nodes share (`lockify cluster key`)
    #[arg(long, value_name = "FILE", requires = "node", conflicts_with_all = ["ca", "identity"])]
    cluster_key: Option<PathBuf>,
    /// Instead of keys: plain text, if the words are "anybody who reaches the network may take and break locks"
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["ca", "identity", "cluster_key"])]
    plain_text: Option<String>,
}

impl Secure {
    /// The identity that the options give. Without keys or words, only loopback addresses will do.
    pub fn identity(&self) -> Result<Identity, Failure> {
        // The value does not matter then, but both sides must have the same.
        let node = self.node.unwrap_or(0);
        if let Some(keys) = self.keys() {
            return Identity::tls(&self.cluster, node, &keys).or_fail(Code::Unreadable);
        }
        match self.plain_text.as_deref() {
            None => Ok(Identity::loopback(&self.cluster, node)),
            Some(PLAIN_TEXT) => Ok(Identity::plain_text(&self.cluster, node)),
            Some(_) => {
                let what = format!(
                    "for plain text between machines write --plain-text \"{PLAIN_TEXT}\", or use keys (`lockify cluster`)"
                );
                Err(Failure::new(Code::Unreadable, what))
            }
        }
    }

    fn keys(&self) -> Option<Source> {
        match (&self.ca, &self.identity, &self.cluster_key) {
            (Some(ca), Some(identity), _) => {
                Some(Source::Certificates { ca: ca.clone(), identity: identity.clone() })
            }
            (_, _, Some(key)) => Some(Source::SharedKey(key.clone())),
            _ => None,
        }
    }

    /// As [`Secure::identity`], for a process that runs for long: at SIGHUP it reads its keys again, as a daemon does,
    /// and uses them for connections from then on. Without keys the signal keeps its meaning.
    pub fn renewed_identity(&self, tell: fn(&str)) -> Result<Identity, Failure> {
        let identity = self.identity()?;
        let (Some(keys), Some(keyring)) = (self.keys(), identity.keyring().cloned()) else {
            return Ok(identity);
        };
        let (cluster, node) = (identity.cluster().to_owned(), identity.node());
        let mut signals = Signals::new([SIGHUP]).or_fail(Code::Failed)?;
        let renew = move || {
            for _ in signals.forever() {
                match keys.read(&cluster, node) {
                    Ok(credentials) => {
                        let until = credentials.until();
                        tell(&format!(
                            "the keys have been read again; this process proves who it is until {until}"
                        ));
                        keyring.replace(credentials);
                    }
                    Err(error) => tell(&format!("the keys stay as they are: {error}")),
                }
            }
        };
        std::thread::Builder::new().name("keys".into()).spawn(renew).or_fail(Code::Failed)?;
        Ok(identity)
    }
}
