//! A secret that all nodes of a cluster share, instead of an authority that is kept elsewhere.

use std::path::Path;

use ring::hkdf;

use crate::authority::{Authority, Lifetime};
use crate::error::TrustError;
use crate::files;
use crate::seed::{self, SEED};

/// How a key's text begins; the number is that of the derivation below.
const PREFIX: &str = "lockify-key-1:";

/// Bytes of the secret.
const BYTES: usize = SEED;

/// Keys that a file may have: each is one more to be derived, and to be believed.
const MOST_KEYS: usize = 8;

/// The secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey([u8; BYTES]);

impl std::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedKey")
    }
}

impl SharedKey {
    /// A new one.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn generate() -> Result<SharedKey, TrustError> {
        seed::random().map(SharedKey)
    }

    /// Its text, a line.
    pub fn to_text(&self) -> String {
        let hex: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        format!("{PREFIX}{hex}\n")
    }

    /// Reads its text. Only the full length is accepted: a password would not do, because whoever
    /// has seen one certificate can try passwords as fast as he likes.
    pub fn parse(text: &str) -> Option<SharedKey> {
        let hex = text.trim().strip_prefix(PREFIX)?;
        if hex.len() != 2 * BYTES || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(SharedKey(bytes))
    }

    /// Reads the keys of a file, a line each, that only this user may read: one, or while one is
    /// replaced by another, the one to be shown and then those to be believed.
    ///
    /// # Errors
    /// The file cannot be read, is open to others, or has something else in it.
    pub fn read(path: &Path) -> Result<Vec<SharedKey>, TrustError> {
        let text = files::read_secret(path)?;
        let keys: Option<Vec<_>> = text.lines().map(SharedKey::parse).collect();
        keys.filter(|keys| (1..=MOST_KEYS).contains(&keys.len())).ok_or_else(|| {
            TrustError::Content {
                path: path.to_owned(),
                what: format!(
                    "not 1 to {MOST_KEYS} cluster keys, a line each: make one with `lockify \
                     cluster key FILE`, and give all nodes the same"
                ),
            }
        })
    }

    /// The authority of this cluster: the same key pair wherever it is derived.
    ///
    /// The signing key is HKDF-SHA256 (RFC 5869) of the secret, with the cluster's name as
    /// information: two clusters that share a secret by mistake still have different authorities.
    /// Nodes trust a public key and a name, not the rest of the certificate, so that it does not
    /// matter when each derives it.
    ///
    /// # Errors
    /// The cluster's name is of an impossible length.
    pub fn authority(&self, cluster: &str) -> Result<Authority, TrustError> {
        let failed = TrustError::crypto("cannot derive a key");
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"Lockify cluster key 1");
        let info = [b"authority of ", cluster.as_bytes()];
        let mut seed = [0; BYTES];
        let derived = salt.extract(&self.0);
        let derived = derived.expand(&info, hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut seed));
        derived.map_err(|e| failed(&e))?;
        Authority::with_key(cluster, seed::key_of(&seed)?, Lifetime::Endless)
    }
}

/// Writes a new key to a file that only this user may read.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn generate_key_file(path: &Path) -> Result<(), TrustError> {
    files::create(path, files::SECRET, &SharedKey::generate()?.to_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_text() {
        let key = SharedKey::generate().unwrap();
        assert_eq!(SharedKey::parse(&key.to_text()), Some(key.clone()));
        assert_ne!(SharedKey::generate().unwrap(), key);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let good = SharedKey::generate().unwrap().to_text();
        let short = &good[..good.len() - 3];
        let (long, sign) = (format!("{}00", good.trim()), good.replacen(':', ":+", 1));
        for bad in ["", "secret", short, &long, &sign, &good.replace("key-1", "key-2")] {
            assert_eq!(SharedKey::parse(bad), None, "{bad}");
        }
        assert_eq!(SharedKey::parse(&format!("{PREFIX}{}", "ä".repeat(BYTES))), None);
    }

    #[test]
    fn one_key_makes_one_authority_per_cluster() {
        let key = SharedKey::generate().unwrap();
        let secret = |key: &SharedKey, cluster| key.authority(cluster).unwrap().secret();
        assert_eq!(secret(&key, "a"), secret(&key, "a"));
        assert_ne!(secret(&key, "a"), secret(&key, "b"));
        assert_ne!(secret(&key, "a"), secret(&SharedKey::generate().unwrap(), "a"));
    }

    /// The derivation is a part of the protocol: nodes of different releases must agree on it.
    #[test]
    fn the_derivation_does_not_change() {
        let key = SharedKey([7; BYTES]);
        let pem = key.authority("cluster").unwrap().secret();
        assert_eq!(pem.lines().nth_back(1), Some(DERIVED), "{pem}");
    }

    /// Computed with Python's hmac module.
    const DERIVED: &str = "MC4CAQAwBQYDK2VwBCIEIOOer8vKmkE+l2KjDEANUPrJx5wdU7E/tnb873ljmqne";
}
