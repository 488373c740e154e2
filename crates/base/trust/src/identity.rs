//! A process's identity in its cluster, and its proof.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::Address;
use crate::error::TrustError;
use crate::keyring::{Keyring, Security, Source};

/// An identity and its proof, as `[security]`, `cluster` and `node` are for a daemon.
#[derive(Clone, Debug)]
pub struct Identity {
    cluster: String,
    node: u32,
    security: Security,
}

impl Identity {
    /// Proves nothing, and only takes part on loopback addresses: every user of the machine can.
    pub fn loopback(cluster: &str, node: u32) -> Identity {
        Identity { cluster: cluster.to_owned(), node, security: Security::Loopback }
    }

    /// Proves nothing, on any network: whoever can reach the other side can take part. For networks that are safe by other
    /// means.
    pub fn plain_text(cluster: &str, node: u32) -> Identity {
        Identity { cluster: cluster.to_owned(), node, security: Security::PlainText }
    }

    /// Proves to be this node of this cluster, and talks TLS.
    ///
    /// # Errors
    /// The keys cannot be read or used.
    pub fn tls(cluster: &str, node: u32, keys: &Source) -> Result<Identity, TrustError> {
        let keyring = Arc::new(Keyring::new(keys.read(cluster, node)?));
        Ok(Identity { cluster: cluster.to_owned(), node, security: Security::Tls(keyring) })
    }

    /// The cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns true if others that look for this node at its address would accept this process. Without keys they accept
    /// any.
    pub fn is_found_as(&self, node: u32) -> bool {
        self.keyring().is_none() || self.node == node
    }

    /// How it is proved.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The keys that new connections use, to replace them while a process runs.
    pub fn keyring(&self) -> Option<&Arc<Keyring>> {
        match &self.security {
            Security::Tls(keyring) => Some(keyring),
            Security::Loopback | Security::PlainText => None,
        }
    }

    /// Returns true if an address may be used: without keys, nobody else may reach it.
    pub fn allows(&self, address: SocketAddr) -> bool {
        match self.security {
            Security::Loopback => address.ip().to_canonical().is_loopback(),
            Security::PlainText | Security::Tls(_) => true,
        }
    }

    /// As [`Identity::allows`]. A name may become that of another machine.
    pub fn allows_at(&self, address: &Address) -> bool {
        let named = || !matches!(self.security, Security::Loopback);
        address.socket().map_or_else(named, |socket| self.allows(socket))
    }
}
