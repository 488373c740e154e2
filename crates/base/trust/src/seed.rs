//! Ed25519 keys, from the 32 bytes that are all of one.

use rcgen::KeyPair;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::error::TrustError;

/// Bytes of a seed.
pub(crate) const SEED: usize = 32;

/// PKCS #8 of version 1 (RFC 8410, 7) around a seed. The key library would write version 2, which GnuTLS 3.7 does not read:
/// QEMU and other clients of block devices use that.
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Bytes that nobody knows.
pub(crate) fn random() -> Result<[u8; SEED], TrustError> {
    let mut bytes = [0; SEED];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|e| TrustError::crypto("cannot make a key")(&e))?;
    Ok(bytes)
}

/// The key of a seed.
pub(crate) fn key_of(seed: &[u8; SEED]) -> Result<KeyPair, TrustError> {
    let pkcs8 = [&PKCS8_HEAD[..], seed].concat();
    KeyPair::try_from(pkcs8.as_slice()).map_err(|e| TrustError::crypto("cannot make a key")(&e))
}

/// A new key.
pub(crate) fn new_key() -> Result<KeyPair, TrustError> {
    key_of(&random()?)
}
