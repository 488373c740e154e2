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
}

/// A change of the array's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A device does not answer.
    Fail(DeviceId),
    /// A device, new or returned, is to be rebuilt from the first stripe.
    Rebuild(DeviceId),
    /// It has been rebuilt up to this stripe.
    Rebuilt(DeviceId, u64),
}
