//! What hosts and devices have agreed on: which devices may be read (section 3.3).

use serde::{Deserialize, Serialize};

use crate::{DeviceId, Epoch};

/// What a device is good for.
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
    /// Whether the device has a stripe's unit.
    pub fn has(self, stripe: u64) -> bool {
        match self {
            Condition::Good => true,
            Condition::Failed => false,
            Condition::Rebuilding { done } => stripe < done,
        }
    }
}

/// The state of an array. Devices keep it durably; a majority of them agrees on the next one, by compare-and-swap of the
/// epoch, so that no host is in charge.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArrayState {
    /// Grows with every change.
    pub epoch: Epoch,
    /// By device id.
    pub devices: Vec<Condition>,
}

impl ArrayState {
    /// That of a new array.
    pub fn new(devices: u16) -> Self {
        ArrayState { epoch: Epoch(1), devices: vec![Condition::Good; usize::from(devices)] }
    }

    /// Whether a device has a stripe's unit.
    pub fn has(&self, device: DeviceId, stripe: u64) -> bool {
        self.devices.get(usize::from(device.0)).is_some_and(|c| c.has(stripe))
    }

    /// The state after a change; `None` if it is there already. What does not make sense is refused, with the reason.
    /// Whether the redundancy bears another failure is for who proposes it: the state does not know the layout.
    pub fn changed(&self, change: Change) -> Result<Option<ArrayState>, String> {
        let (Change::Fail(device) | Change::Rebuild(device) | Change::Rebuilt(device, _)) = change;
        let index = usize::from(device.0);
        let Some(&now) = self.devices.get(index) else {
            return Err(format!("the array has no device {device}"));
        };
        let then = match (change, now) {
            (Change::Fail(_), Condition::Failed) => return Ok(None),
            (Change::Fail(_), _) => Condition::Failed,
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
        let mut next = ArrayState { epoch: Epoch(self.epoch.0 + 1), devices: self.devices.clone() };
        next.devices[index] = then;
        Ok(Some(next))
    }
}

/// A change of the array's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A device does not answer.
    Fail(DeviceId),
    /// A device, new or returned, is to be rebuilt from the first stripe.
    Rebuild(DeviceId),
    /// It has been rebuilt up to this stripe; with `u64::MAX`, all of it.
    Rebuilt(DeviceId, u64),
}
