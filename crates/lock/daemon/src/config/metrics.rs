//! The table `[metrics]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::place::Wrong;

/// Where metrics are served, in Prometheus' text format over HTTP (`GET /metrics`). Without an
/// address and a socket they are not, and nothing is measured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// `IP:PORT` of the loopback interface: every process that reaches it can read the names and
    /// the load of lockspaces.
    pub address: Option<SocketAddr>,
    /// A Unix socket instead, with the permissions of `socket_mode`.
    pub socket: Option<PathBuf>,
}

impl Metrics {
    /// Returns true if metrics are served.
    pub fn wanted(&self) -> bool {
        self.address.is_some() || self.socket.is_some()
    }

    pub(super) fn check(&self) -> Result<(), Wrong> {
        if self.address.is_some() && self.socket.is_some() {
            return Err(Wrong::new("socket", "metrics: give an address or a socket, not both"));
        }
        if self.socket.as_deref().is_some_and(lockify_session::is_abstract) {
            let what = "metrics: a name in the abstract namespace has no permissions: name a path";
            return Err(Wrong::new("socket", what));
        }
        match self.address {
            Some(address) if !address.ip().is_loopback() => {
                let what = format!(
                    "metrics: {address} is not an address of the loopback interface: metrics are \
                     not encrypted, so use 127.0.0.1 or [::1], or a socket, and a proxy from there"
                );
                Err(Wrong::new("address", what))
            }
            _ => Ok(()),
        }
    }
}
