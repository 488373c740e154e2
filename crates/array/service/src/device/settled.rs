//! The settled devices ([`lockify_array::Device::is_unsettled`]). No device is given up while another one of its group is
//! unsettled or cannot be asked.

use std::collections::{BTreeMap, BTreeSet};

use lockify_array::{DeviceId, Layout};

pub(super) struct Settled {
    layout: Layout,
    me: DeviceId,
    /// This device itself.
    own: bool,
    /// The present devices, and their reports.
    others: BTreeMap<DeviceId, Option<bool>>,
    /// Those who are there and do not know how it stands with this one.
    untold: BTreeSet<DeviceId>,
    /// Devices that are kept for the sake of others, so that it is logged once.
    kept: BTreeSet<DeviceId>,
    log: fn(&str),
}

impl Settled {
    pub fn new(layout: Layout, me: DeviceId, log: fn(&str)) -> Settled {
        let (others, untold, kept) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Settled { layout, me, own: false, others, untold, kept, log }
    }

    /// There is a connection.
    pub fn met(&mut self, device: DeviceId) {
        self.others.insert(device, None);
        self.untold.insert(device);
        self.kept.remove(&device);
    }

    pub fn lost(&mut self, device: DeviceId) {
        self.others.remove(&device);
        self.untold.remove(&device);
    }

    pub fn heard(&mut self, device: DeviceId, is: bool) {
        self.others.insert(device, Some(is));
    }

    /// This device's present state, and the devices that have to learn it.
    pub fn whom_to_tell(&mut self, own: bool) -> BTreeSet<DeviceId> {
        if self.own != own {
            self.own = own;
            self.untold.extend(self.others.keys());
        }
        std::mem::take(&mut self.untold)
    }

    /// Returns true if all others of a device's group are settled.
    pub fn may_give_up(&mut self, device: DeviceId) -> bool {
        let is = |other: &DeviceId| match *other == self.me {
            true => self.own,
            false => self.others.get(other) == Some(&Some(true)),
        };
        let unsettled = self.layout.beside(device).find(|other| !is(other));
        match unsettled {
            None => drop(self.kept.remove(&device)),
            Some(other) if self.kept.insert(device) => {
                let why = match other == self.me || self.others.contains_key(&other) {
                    true => "does not know yet what hosts were writing when it stopped",
                    false => "is not there either",
                };
                (self.log)(&format!(
                    "the array waits for device {}, since device {} {why}",
                    device.0, other.0
                ));
            }
            Some(_) => {}
        }
        unsettled.is_none()
    }
}

#[cfg(test)]
mod tests {
    use lockify_array::Redundancy;

    use super::*;

    const ME: DeviceId = DeviceId(0);
    const GONE: DeviceId = DeviceId(1);
    const OTHER: DeviceId = DeviceId(2);

    fn three() -> Settled {
        let redundancy = Redundancy::Raid5;
        let layout =
            Layout { redundancy, data: 2, groups: 2, unit: 16, block_size: 4096, stripes: 8 };
        Settled::new(layout, ME, |_| {})
    }

    #[test]
    fn none_is_given_up_beside_one_that_is_unsettled_or_unheard() {
        let mut settled = three();
        settled.met(OTHER);
        assert_eq!(settled.whom_to_tell(true), [OTHER].into());
        assert!(!settled.may_give_up(GONE));
        settled.heard(OTHER, true);
        assert!(settled.may_give_up(GONE));
        settled.heard(OTHER, false);
        assert!(!settled.may_give_up(GONE));
        settled.heard(OTHER, true);
        assert_eq!(settled.whom_to_tell(false), [OTHER].into());
        assert!(!settled.may_give_up(GONE));
        settled.whom_to_tell(true);
        assert!(settled.may_give_up(GONE));
        settled.lost(OTHER);
        assert!(!settled.may_give_up(GONE));
        // Its messages from before its absence do not count.
        settled.met(OTHER);
        assert!(!settled.may_give_up(GONE));
        assert_eq!(settled.whom_to_tell(true), [OTHER].into());
    }

    #[test]
    fn other_groups_and_witnesses_do_not_matter() {
        let mut settled = three();
        settled.whom_to_tell(true);
        settled.heard(OTHER, true);
        settled.heard(DeviceId(4), false);
        settled.heard(DeviceId(6), false);
        assert!(settled.may_give_up(GONE));
    }
}
