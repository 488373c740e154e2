//! The node's keys while the daemon runs.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use lockify_node::Security;
use lockify_trust::{Credentials, Keyring, TrustError};

use crate::config::{Config, Protection};
use crate::log::Log;

const DAY: i64 = 24 * 3600;

/// The keys, and where they are used.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) security: Security,
    keyring: Option<Arc<Keyring>>,
    cluster: String,
    node: u32,
}

impl Keys {
    /// Reads them for the first time.
    pub(crate) fn read(config: &Config, log: &Log) -> Result<Keys, TrustError> {
        let (cluster, node) = (config.cluster.clone(), config.node);
        let protection =
            config.security.protection().map_err(|e| TrustError::Asked(e.to_string()))?;
        let (security, keyring) = match protection {
            Protection::Loopback => (Security::Loopback, None),
            Protection::PlainText => {
                log.warning(
                    "nodes talk plain text and do not prove who they are, as the configuration \
                     says: whoever reaches the network may take and break locks",
                );
                (Security::PlainText, None)
            }
            Protection::Tls(source) => {
                let credentials = source.read(&cluster, node)?;
                let credentials = credentials.warn_from(config.security.warn_days);
                log_expiry(&credentials, log);
                let keyring = Arc::new(Keyring::new(credentials));
                (Security::Tls(keyring.clone()), Some(keyring))
            }
        };
        Ok(Keys { security, keyring, cluster, node })
    }

    /// Reads them again, from where the configuration now says, without using them yet; `None`
    /// without keys.
    pub(crate) fn read_again(&self, config: &Config) -> Result<Option<NewKeys>, TrustError> {
        let protection = config.security.protection();
        match (protection.map_err(|e| TrustError::Asked(e.to_string()))?, &self.keyring) {
            (Protection::Tls(source), Some(keyring)) => {
                let credentials = source.read(&self.cluster, self.node)?;
                let credentials = credentials.warn_from(config.security.warn_days);
                Ok(Some(NewKeys { credentials, keyring: keyring.clone() }))
            }
            _ => Ok(None),
        }
    }
}

/// Keys that have been read and can be used.
pub(crate) struct NewKeys {
    credentials: Credentials,
    keyring: Arc<Keyring>,
}

impl NewKeys {
    /// For connections from now on.
    pub(crate) fn use_now(self, log: &Log) {
        log_expiry(&self.credentials, log);
        self.keyring.replace(self.credentials);
    }
}

fn log_expiry(credentials: &Credentials, log: &Log) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let left = credentials.expires().saturating_sub(i64::try_from(now).unwrap_or(i64::MAX)) / DAY;
    let until = credentials.until();
    if left < i64::from(credentials.warn_days()) {
        log.warning(format!(
            "this node's certificate, or the authority that has signed it, ends in {left} days \
             ({until}): renew it (`lockify cluster renew`, or first `roll-over`), then `lockify \
             reload`; nodes refuse it afterwards"
        ));
    } else {
        log.info(format!("nodes prove to each other who they are; this one until {until}"));
    }
}
