//! The search for wrong clocks. Devices ask each other for the time. A device serves nobody if its clock and those near it are
//! no majority. By its observations and limits (docs/design/array.md 2.4), hosts' timestamps would become wrong at all devices.
//! The others continue without it, as without one that is gone.

use std::collections::BTreeMap;

use lockify_array::{DeviceId, Time};

/// How far a device's clock may be from the others', beyond the limit for hosts. A host adapts to as much.
const TOLERANCE: Time = 1_000_000_000;

/// The known clocks of an array's devices and witnesses.
pub(super) struct Clocks {
    /// How many there are, this one included.
    voters: usize,
    /// How far apart they may be.
    limit: Time,
    /// By how much others are ahead of this one, as they said last.
    ahead: BTreeMap<DeviceId, i64>,
}

impl Clocks {
    /// `allowed`: how far clocks may be apart by the array's file. `forget`: how long timestamps are remembered; a clock that is
    /// further ahead than that makes hosts take it for theirs.
    pub fn new(voters: usize, allowed: Time, forget: Time) -> Clocks {
        let limit = allowed.saturating_add(TOLERANCE).min(forget / 2);
        Clocks { voters, limit, ahead: BTreeMap::new() }
    }

    /// The array has so many devices and witnesses by now.
    pub fn count(&mut self, voters: usize) {
        self.voters = voters;
    }

    /// Somebody's clock said `theirs` between two times that are `took` apart, the later of which is `now` here. An answer that
    /// took long says nothing.
    pub fn heard(&mut self, from: DeviceId, theirs: Time, now: Time, took: Time) {
        if took <= self.limit / 2 {
            let between = now.saturating_sub(took / 2);
            self.ahead.insert(from, theirs.wrapping_sub(between).cast_signed());
        }
    }

    /// It is not there any more, or another process.
    pub fn forget(&mut self, device: DeviceId) {
        self.ahead.remove(&device);
    }

    fn is_near(&self, ahead: i64) -> bool {
        ahead.unsigned_abs() <= self.limit
    }

    /// Returns true if this device and those whose clocks are near its own are a majority.
    pub fn agree(&self) -> bool {
        let near = self.ahead.values().filter(|ahead| self.is_near(**ahead)).count();
        (1 + near) * 2 > self.voters
    }

    /// How far this device's clock is ahead of the others', if it cannot agree with a majority.
    pub fn own_error(&self) -> Option<i64> {
        let mut far: Vec<i64> =
            self.ahead.values().copied().filter(|ahead| !self.is_near(*ahead)).collect();
        far.sort_unstable();
        (self.voters.saturating_sub(far.len()) * 2 <= self.voters).then(|| -far[far.len() / 2])
    }

    /// Others whose clocks are wrong, and by how much they are ahead, if this device's clock is right.
    pub fn wrong(&self) -> impl Iterator<Item = (DeviceId, i64)> {
        let right = self.agree();
        let all = self.ahead.iter().map(|(&device, &ahead)| (device, ahead));
        all.filter(move |(_, ahead)| right && !self.is_near(*ahead))
    }
}

/// How far a clock is off, for people.
pub(super) fn describe(ahead: i64) -> String {
    let seconds = ahead.unsigned_abs() as f64 / 1e9;
    format!("{seconds:.1} s {}", if ahead < 0 { "behind" } else { "ahead of" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = 1_000_000_000;

    fn clocks(voters: usize, others: &[(u16, i64)]) -> Clocks {
        let mut clocks = Clocks::new(voters, S / 10, 5 * S);
        for &(device, ahead) in others {
            clocks.heard(DeviceId(device), (100 * S).wrapping_add_signed(ahead), 100 * S, 0);
        }
        clocks
    }

    #[test]
    fn the_clock_that_is_not_with_a_majority_is_wrong() {
        const HOUR: i64 = 3600 * S as i64;
        // One of three, as it sees itself and as another sees it.
        assert_eq!(clocks(3, &[(1, -HOUR), (2, -HOUR + 5)]).own_error(), Some(HOUR - 5));
        let right = clocks(3, &[(1, 7), (2, HOUR)]);
        assert!(right.agree() && right.own_error().is_none());
        assert_eq!(right.wrong().collect::<Vec<_>>(), [(DeviceId(2), HOUR)]);
        // Nobody knows which.
        let two = clocks(2, &[(1, -HOUR)]);
        assert!(!two.agree() && two.own_error() == Some(HOUR) && two.wrong().next().is_none());
        // Nothing is known yet, or not enough.
        let unknown = clocks(3, &[(2, HOUR)]);
        assert!(
            !unknown.agree() && unknown.own_error().is_none() && unknown.wrong().next().is_none()
        );
    }

    #[test]
    fn what_is_near_and_what_came_late_is_no_error() {
        let near = clocks(3, &[(1, S as i64), (2, -(S as i64))]);
        assert!(near.agree() && near.own_error().is_none() && near.wrong().next().is_none());
        let mut late = clocks(3, &[(1, 0)]);
        late.heard(DeviceId(2), 0, 100 * S, 60 * S);
        assert!(late.wrong().next().is_none());
        late.heard(DeviceId(1), 0, 100 * S, 0);
        assert!(!late.agree());
        late.forget(DeviceId(1));
        assert!(late.own_error().is_none());
    }
}
