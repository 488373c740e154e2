//! The state that hosts and devices have agreed on: which devices may be read (docs/design/array.md 3.3).

use serde::{Deserialize, Serialize};

use crate::{DeviceId, Epoch};

/// The uses that a device permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Condition {
    /// It has everything.
    #[default]
    Good,
    /// It has failed, or missed writes: hosts go on without it.
    Failed,
    /// It is being rebuilt: stripes below `done` are good, the others as if it had failed.
    Rebuilding {
        /// The first stripe that is not rebuilt yet.
        done: u64,
    },
}

impl Condition {
    /// Returns true if the device has a stripe's unit.
    pub fn has(self, stripe: u64) -> bool {
        match self {
            Condition::Good => true,
            Condition::Failed => false,
            Condition::Rebuilding { done } => stripe < done,
        }
    }
}

/// The state of an array. Devices keep it durably. A majority of them agrees on the next one, by compare-and-swap of the
/// epoch, without a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArrayState {
    /// Grows with every change.
    pub epoch: Epoch,
    /// The epoch of the last change of a device's condition. Plans of this epoch or a later one still fit.
    pub since: Epoch,
    /// By device id.
    pub devices: Vec<Condition>,
    /// The term of each device: it serves blocks only in the one that it has been let in for. By device id.
    pub terms: Vec<u64>,
}

impl ArrayState {
    /// That of a new array.
    pub fn new(devices: u16) -> Self {
        let devices = usize::from(devices);
        let (devices, terms) = (vec![Condition::Good; devices], vec![0; devices]);
        ArrayState { epoch: Epoch(1), since: Epoch(1), devices, terms }
    }

    /// Returns true if the state has an entry for each device of the other one, and no further entries.
    pub fn fits(&self, other: &ArrayState) -> bool {
        let devices = other.devices.len();
        self.devices.len() == devices && self.terms.len() == devices
    }

    /// The term of a device; 0 for one that the array does not have.
    pub fn term(&self, device: DeviceId) -> u64 {
        self.terms.get(usize::from(device.0)).copied().unwrap_or(0)
    }

    /// That a device is to be left out which was found to be gone by this state.
    pub fn without(&self, device: DeviceId) -> Change {
        Change::Fail(device, self.term(device))
    }

    /// Returns true if a device is being rebuilt.
    pub fn is_rebuilding(&self, device: DeviceId) -> bool {
        let condition = self.devices.get(usize::from(device.0));
        matches!(condition, Some(Condition::Rebuilding { .. }))
    }

    /// Returns true if a device has everything.
    pub fn is_good(&self, device: DeviceId) -> bool {
        self.devices.get(usize::from(device.0)) == Some(&Condition::Good)
    }

    /// Returns true if a device has a stripe's unit.
    pub fn has(&self, device: DeviceId, stripe: u64) -> bool {
        self.devices.get(usize::from(device.0)).is_some_and(|c| c.has(stripe))
    }

    /// The state after a change; `None` if it is already so. An invalid change is refused, with the reason. The proposer
    /// checks whether the redundancy bears another failure: the state does not know the layout.
    pub fn changed(&self, change: Change) -> Result<Option<ArrayState>, String> {
        let (Change::Fail(device, _)
        | Change::LetIn(device, _)
        | Change::Rebuild(device)
        | Change::Rebuilt(device, _)) = change;
        let index = usize::from(device.0);
        let (Some(&now), Some(&term)) = (self.devices.get(index), self.terms.get(index)) else {
            return Err(format!("the array has no device {device}"));
        };
        let mut next = self.clone();
        next.epoch.0 += 1;
        let then = match (change, now) {
            (Change::LetIn(_, to), _) if to <= term => return Ok(None),
            (Change::LetIn(_, to), _) => {
                next.terms[index] = to;
                return Ok(Some(next));
            }
            (Change::Fail(..), Condition::Failed) => return Ok(None),
            (Change::Fail(_, seen), _) if seen != term => {
                return Err(format!("{device} has come back"));
            }
            (Change::Fail(..), _) => Condition::Failed,
            (Change::Rebuild(_), Condition::Failed) => Condition::Rebuilding { done: 0 },
            (Change::Rebuild(_), Condition::Rebuilding { .. }) => return Ok(None),
            (Change::Rebuild(_), Condition::Good) => {
                return Err(format!("{device} is in use; it has to fail before it is rebuilt"));
            }
            (Change::Rebuilt(_, to), Condition::Rebuilding { done }) if to > done => {
                if to == u64::MAX { Condition::Good } else { Condition::Rebuilding { done: to } }
            }
            (Change::Rebuilt(..), Condition::Good | Condition::Rebuilding { .. }) => {
                return Ok(None);
            }
            (Change::Rebuilt(..), Condition::Failed) => {
                return Err(format!("{device} has failed again"));
            }
        };
        next.since = next.epoch;
        next.devices[index] = then;
        Ok(Some(next))
    }
}

/// A change of the array's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A device is gone that was last let in for this term.
    Fail(DeviceId, u64),
    /// A device that was away serves again, for this term.
    LetIn(DeviceId, u64),
    /// A device, new or returned, is to be rebuilt from the first stripe.
    Rebuild(DeviceId),
    /// It has been rebuilt up to this stripe; with `u64::MAX`, all of it.
    Rebuilt(DeviceId, u64),
}
