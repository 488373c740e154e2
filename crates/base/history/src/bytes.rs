//! Byte strings in JSON: resource names, escaped, and lock value blocks, in hexadecimal.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A resource name: any bytes.
///
/// In JSON and in messages, printable UTF-8 stands for itself. `%`, control characters and bytes
/// that are not UTF-8 are written `%XX` (two hexadecimal digits), as in URLs. A clone is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<[u8]>);

/// A `%` in a resource name that is not followed by two hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a `%` in a resource name must be followed by two hexadecimal digits (write `%25` for a `%`)"
)]
pub struct BadEscape;

impl Resource {
    /// The resource with this name.
    pub fn new(name: impl AsRef<[u8]>) -> Resource {
        Resource(name.as_ref().into())
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the escaped form.
    pub fn from_escaped(text: &str) -> Result<Resource, BadEscape> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            rest = tail;
            if *first != b'%' {
                bytes.push(*first);
                continue;
            }
            let [high, low, tail @ ..] = rest else {
                return Err(BadEscape);
            };
            bytes.push(hex_byte(*high, *low).ok_or(BadEscape)?);
            rest = tail;
        }
        Ok(Resource(bytes.into()))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '%' || c.is_control() {
                    let mut buffer = [0; 4];
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        write!(f, "%{byte:02X}")?;
                    }
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Resource {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Resource {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Resource::from_escaped(&Cow::<str>::deserialize(d)?).map_err(D::Error::custom)
    }
}

/// A lock value block. In JSON, two hexadecimal digits per byte. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lvb(Arc<[u8]>);

impl Lvb {
    /// The block with this content.
    pub fn new(content: impl AsRef<[u8]>) -> Lvb {
        Lvb(content.as_ref().into())
    }

    /// The content.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// All zero, as a buffer that nothing was read into usually is.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }
}

impl fmt::Display for Lvb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Lvb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Lvb {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lvb {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(d)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| hex_byte(*high, *low)).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(Lvb(bytes.into())),
            _ => Err(D::Error::custom(
                "a lock value block is written as pairs of hexadecimal digits",
            )),
        }
    }
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |c: u8| char::from(c).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_stay_readable() {
        assert_eq!(Resource::new("2 größe").to_string(), "2 größe");
        assert_eq!(Resource::new(b"a%\n\xff").to_string(), "a%25%0A%FF");
        assert_eq!(Resource::from_escaped("a%2"), Err(BadEscape));
        assert_eq!(Resource::from_escaped("a%+1"), Err(BadEscape));
    }

    proptest! {
        #[test]
        fn every_name_survives_escaping(bytes: Vec<u8>) {
            let name = Resource::new(&bytes);
            prop_assert_eq!(&Resource::from_escaped(&name.to_string()).unwrap(), &name);
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<Resource>(&json).unwrap(), name);
        }

        #[test]
        fn every_block_survives_json(bytes: Vec<u8>) {
            let lvb = Lvb::new(&bytes);
            let json = serde_json::to_string(&lvb).unwrap();
            prop_assert_eq!(serde_json::from_str::<Lvb>(&json).unwrap(), lvb);
        }
    }
}
