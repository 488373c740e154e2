//! Resource names.

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A resource name of 1 to 64 bytes, kept inline so that locking allocates nothing.
#[derive(Clone, Copy)]
pub struct Name {
    len: u8,
    bytes: [u8; Name::MAX],
}

/// The bytes are no resource name: empty, or longer than 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a resource name has 1 to 64 bytes, this one has {0}")]
pub struct BadName(pub usize);

impl Name {
    /// The longest name, in bytes (Linux `DLM_RESNAME_MAXLEN`).
    pub const MAX: usize = 64;

    /// Makes a name of these bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Name, BadName> {
        let src = bytes.as_ref();
        if src.is_empty() || src.len() > Name::MAX {
            return Err(BadName(src.len()));
        }
        let mut bytes = [0; Name::MAX];
        bytes[..src.len()].copy_from_slice(src);
        Ok(Name { len: src.len() as u8, bytes })
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// The hash that places a name at its directory node (or home); the same on every node.
    pub fn hash64(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.as_bytes())
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}
impl Eq for Name {}
impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Name {
    fn cmp(&self, other: &Name) -> core::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}
impl core::hash::Hash for Name {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}
impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Name, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Name;
            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a resource name of 1 to 64 bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, v: &[u8]) -> Result<Name, E> {
                Name::new(v).map_err(E::custom)
            }
        }
        d.deserialize_bytes(Bytes).map_err(D::Error::custom)
    }
}
