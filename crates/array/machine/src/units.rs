//! Sets of a stripe's data units, and of devices that a write has left out.

use serde::{Deserialize, Serialize};

use crate::DeviceId;

/// As many units as a stripe can have, and more.
const WORDS: usize = 4;

/// Some of a stripe's data units, by number. A stripe has at most 254.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Units([u64; WORDS]);

impl Units {
    /// How many bytes [`Units::to_bytes`] gives.
    pub const BYTES: usize = 8 * WORDS;

    /// Returns true if none is in it.
    pub fn is_empty(self) -> bool {
        self == Units::default()
    }

    /// Returns true if a unit is in it.
    pub fn has(self, unit: usize) -> bool {
        self.0.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    /// The set with one more unit. A number that no stripe has is left out.
    #[must_use]
    pub fn with(mut self, unit: usize) -> Units {
        self.0.get_mut(unit / 64).into_iter().for_each(|word| *word |= 1 << (unit % 64));
        self
    }

    /// The set without a unit.
    #[must_use]
    pub fn without(mut self, unit: usize) -> Units {
        self.0.get_mut(unit / 64).into_iter().for_each(|word| *word &= !(1 << (unit % 64)));
        self
    }

    /// The units of both sets.
    #[must_use]
    pub fn and(mut self, other: Units) -> Units {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
        self
    }

    /// How many they are.
    pub fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The set as bytes.
    pub fn to_bytes(self) -> [u8; Units::BYTES] {
        let mut bytes = [0; Units::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The set that [`Units::to_bytes`] has given.
    pub fn from_bytes(bytes: [u8; Units::BYTES]) -> Units {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Units(words)
    }
}

impl FromIterator<usize> for Units {
    fn from_iter<I: IntoIterator<Item = usize>>(units: I) -> Units {
        units.into_iter().fold(Units::default(), Units::with)
    }
}

/// The devices of a stripe that a degraded write has left out. A stripe bears the absence of two at most.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Skipped([Option<DeviceId>; 2]);

impl Skipped {
    /// This device.
    pub fn only(device: DeviceId) -> Skipped {
        Skipped([Some(device), None])
    }

    /// Returns true if a device is one of them.
    pub fn has(self, device: DeviceId) -> bool {
        self.0.contains(&Some(device))
    }

    /// All of them.
    pub fn devices(self) -> impl Iterator<Item = DeviceId> {
        self.0.into_iter().flatten()
    }

    /// The others.
    #[must_use]
    pub fn without(self, device: DeviceId) -> Skipped {
        self.devices().filter(|other| *other != device).collect()
    }
}

impl FromIterator<DeviceId> for Skipped {
    /// Of more than two, the first ones: such a write cannot be.
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Skipped {
        let mut devices = devices.into_iter();
        Skipped([devices.next(), devices.next()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_and_go_and_come_back_from_bytes() {
        let some: Units = [0, 63, 64, 253].into_iter().collect();
        assert_eq!((some.count(), some.is_empty()), (4, false));
        let all: Vec<usize> = (0..300).filter(|unit| some.has(*unit)).collect();
        assert_eq!(all, [0, 63, 64, 253]);
        assert_eq!(Units::from_bytes(some.to_bytes()), some);
        let none = all.into_iter().fold(some, Units::without);
        assert!(none.is_empty() && none.with(1000) == none && none.without(1000) == none);
    }
}
