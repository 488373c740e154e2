//! The settled devices ([`lockify_array::Device::is_unsettled`]). No device is given up while another one of its group is
//! unsettled or cannot be asked. With two parities, one other may be gone. It must not have been unsettled when it went.

use std::collections::{BTreeMap, BTreeSet};

use lockify_array::{DeviceId, Layout};

pub(super) struct Settled {
    layout: Layout,
    me: DeviceId,
    /// This device itself.
    own: bool,
    /// The present devices, and their reports.
    others: BTreeMap<DeviceId, Option<bool>>,
    /// Those who went while they were unsettled, or before they had said it.
    went_unsettled: BTreeSet<DeviceId>,
    /// Those who are there and do not know how it stands with this one.
    untold: BTreeSet<DeviceId>,
    /// Devices that are kept for the sake of others, so that it is logged once.
    kept: BTreeSet<DeviceId>,
    log: fn(&str),
}

impl Settled {
    pub fn new(layout: Layout, me: DeviceId, log: fn(&str)) -> Settled {
        let (untold, kept, went_unsettled) = Default::default();
        Settled {
            layout,
            me,
            own: false,
            others: BTreeMap::new(),
            went_unsettled,
            untold,
            kept,
            log,
        }
    }

    /// The array is laid out in this way.
    pub fn grown(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// There is a connection.
    pub fn met(&mut self, device: DeviceId) {
        self.others.insert(device, None);
        self.untold.insert(device);
        self.kept.remove(&device);
    }

    pub fn lost(&mut self, device: DeviceId) {
        match self.others.remove(&device) {
            Some(Some(true)) => drop(self.went_unsettled.remove(&device)),
            Some(_) => drop(self.went_unsettled.insert(device)),
            None => {}
        }
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

    /// Returns true if all others of a device's group are settled. With two parities, one may be gone, empty, or out of the array.
    /// An empty one settles nothing: it has no blocks in the place of those that are given up.
    pub fn may_give_up(
        &mut self,
        device: DeviceId,
        is_out: impl Fn(DeviceId) -> bool,
        is_empty: impl Fn(DeviceId) -> bool,
    ) -> bool {
        let is = |other: &DeviceId| match *other == self.me {
            _ if is_empty(*other) => false,
            true => self.own,
            false => self.others.get(other) == Some(&Some(true)),
        };
        // With one parity, the array's agreement refuses it beside one that is out.
        let is_out = |other: DeviceId| self.layout.parities() > 1 && is_out(other);
        let is_gone = |other: &DeviceId| {
            let is_there = *other == self.me || self.others.contains_key(other);
            let has_nothing = is_out(*other) || is_empty(*other);
            has_nothing || !is_there && !self.went_unsettled.contains(other)
        };
        let not_settled = self.layout.beside(device).filter(|other| !is(other) || is_out(*other));
        let (gone, unsettled): (Vec<_>, Vec<_>) = not_settled.partition(is_gone);
        let is_borne = gone.len() < usize::from(self.layout.parities());
        let unsettled = unsettled.first().or(gone.first().filter(|_| !is_borne)).copied();
        match unsettled {
            None => drop(self.kept.remove(&device)),
            Some(other) if self.kept.insert(device) => {
                let why = match other == self.me || self.others.contains_key(&other) {
                    _ if is_out(other) => "is out of the array, and one more is not there",
                    _ if is_empty(other) => "is empty",
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

    fn of(redundancy: Redundancy) -> Settled {
        let layout = Layout {
            redundancy,
            data: 2,
            groups: 2,
            unit: 16,
            block_size: 4096,
            stripes: 8,
            added: Default::default(),
        };
        Settled::new(layout, ME, |_| {})
    }

    fn three() -> Settled {
        of(Redundancy::Raid5)
    }

    /// That one of a device's group is given up, none being out.
    fn gives_up(settled: &mut Settled) -> bool {
        settled.may_give_up(GONE, |_| false, |_| false)
    }

    #[test]
    fn with_two_parities_one_more_may_be_gone_if_it_was_settled() {
        let mut settled = of(Redundancy::Raid6);
        let last = DeviceId(3);
        settled.met(OTHER);
        settled.met(last);
        settled.whom_to_tell(true);
        settled.heard(OTHER, true);
        assert!(!gives_up(&mut settled), "one is there and has not said it");
        settled.heard(last, false);
        settled.lost(last);
        assert!(!gives_up(&mut settled), "it went unsettled");
        settled.met(last);
        settled.heard(last, true);
        assert!(gives_up(&mut settled));
        settled.lost(last);
        assert!(gives_up(&mut settled));
        settled.heard(OTHER, false);
        assert!(!gives_up(&mut settled));
        settled.heard(OTHER, true);
        settled.lost(OTHER);
        assert!(!gives_up(&mut settled), "two others are gone");
        // One that is out has nothing to say, whether it is there or not.
        settled.met(OTHER);
        settled.heard(OTHER, true);
        assert!(settled.may_give_up(GONE, |other| other == last, |_| false));
        settled.met(last);
        settled.heard(last, false);
        assert!(settled.may_give_up(GONE, |other| other == last, |_| false));
        assert!(!settled.may_give_up(GONE, |other| [last, OTHER].contains(&other), |_| false));
    }

    #[test]
    fn an_empty_device_counts_as_one_that_is_gone() {
        for redundancy in [Redundancy::Raid5, Redundancy::Raid6] {
            let mut settled = of(redundancy);
            settled.whom_to_tell(true);
            let last = DeviceId(3);
            for other in [OTHER, last] {
                settled.met(other);
                settled.heard(other, true);
            }
            let is_borne = redundancy == Redundancy::Raid6;
            for empty in [ME, OTHER] {
                let beside = |other| other == empty;
                assert_eq!(settled.may_give_up(GONE, |_| false, beside), is_borne, "{empty:?}");
                // It is one and the same that is out and empty.
                assert_eq!(settled.may_give_up(GONE, beside, beside), is_borne, "{empty:?}");
            }
            assert!(!settled.may_give_up(GONE, |_| false, |other| [OTHER, last].contains(&other)));
        }
    }

    #[test]
    fn none_is_given_up_beside_one_that_is_unsettled_or_unheard() {
        let mut settled = three();
        settled.met(OTHER);
        assert_eq!(settled.whom_to_tell(true), [OTHER].into());
        assert!(!gives_up(&mut settled));
        settled.heard(OTHER, true);
        assert!(gives_up(&mut settled));
        settled.heard(OTHER, false);
        assert!(!gives_up(&mut settled));
        settled.heard(OTHER, true);
        assert_eq!(settled.whom_to_tell(false), [OTHER].into());
        assert!(!gives_up(&mut settled));
        settled.whom_to_tell(true);
        assert!(gives_up(&mut settled));
        settled.lost(OTHER);
        assert!(!gives_up(&mut settled));
        // Its messages from before its absence do not count.
        settled.met(OTHER);
        assert!(!gives_up(&mut settled));
        assert_eq!(settled.whom_to_tell(true), [OTHER].into());
    }

    #[test]
    fn other_groups_and_witnesses_do_not_matter() {
        let mut settled = three();
        settled.whom_to_tell(true);
        settled.heard(OTHER, true);
        settled.heard(DeviceId(4), false);
        settled.heard(DeviceId(6), false);
        assert!(gives_up(&mut settled));
    }
}
