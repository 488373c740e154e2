//! Requests for locks that wait until their lockspace runs: there may be as many as clients may have
//! locks. Each comes, times out or goes with its client without a look at the others.

use std::collections::{BTreeMap, BTreeSet};

use lockify_core::ClientId;

use super::Waiting;

/// Requests in their order of arrival, found by their deadlines and their clients, too.
#[derive(Default)]
pub(super) struct Lounge {
    last: u64,
    requests: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(u64, u64)>,
    clients: BTreeSet<(ClientId, u64)>,
}

impl Lounge {
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.last += 1;
        self.deadlines.extend(waiting.until.map(|until| (until, self.last)));
        self.clients.insert((waiting.client, self.last));
        self.requests.insert(self.last, waiting);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The earliest time-out, on the engine's clock.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Takes one whose time-out is over.
    pub(super) fn take_late(&mut self, now: u64) -> Option<Waiting> {
        let number = self.deadlines.first().filter(|(until, _)| *until <= now)?.1;
        self.remove(number)
    }

    /// Takes all, in order of arrival.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        std::mem::take(self).requests.into_values().collect()
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        let all = self.clients.range((client, 0)..=(client, u64::MAX));
        let numbers: Vec<u64> = all.map(|(_, number)| *number).collect();
        numbers.into_iter().for_each(|number| drop(self.remove(number)));
    }

    /// Keeps those that are so.
    pub(super) fn retain(&mut self, mut such: impl FnMut(&Waiting) -> bool) {
        for waiting in self.take_all() {
            if such(&waiting) {
                self.push(waiting);
            }
        }
    }

    /// In order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.requests.values()
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.requests.remove(&number)?;
        self.clients.remove(&(waiting.client, number));
        if let Some(until) = waiting.until {
            self.deadlines.remove(&(until, number));
        }
        Some(waiting)
    }
}

impl FromIterator<Waiting> for Lounge {
    fn from_iter<T: IntoIterator<Item = Waiting>>(requests: T) -> Lounge {
        let mut lounge = Lounge::default();
        requests.into_iter().for_each(|waiting| lounge.push(waiting));
        lounge
    }
}

#[cfg(test)]
mod tests {
    use lockify_core::{LockArgs, Mode, Name};

    use super::*;
    use lockify_session::protocol::{LockRequest, Space};

    fn waiting(client: u64, tag: u64, until: Option<u64>) -> Waiting {
        let request = LockRequest {
            space: Space(0),
            args: LockArgs { tag, ..LockArgs::new(Name::new("r").unwrap(), Mode::EX) },
        };
        Waiting { client: ClientId(client), request, until }
    }

    #[test]
    fn requests_time_out_and_go_with_their_clients_and_the_rest_keep_their_order() {
        let requests =
            [(1, 1, None), (2, 2, Some(20)), (1, 3, Some(10)), (3, 4, Some(30)), (2, 5, None)];
        let mut lounge: Lounge = requests.into_iter().map(|(c, t, u)| waiting(c, t, u)).collect();
        assert_eq!(lounge.next_deadline(), Some(10));
        assert_eq!(lounge.take_late(15).map(|w| w.request.args.tag), Some(3));
        assert!(lounge.take_late(15).is_none());
        lounge.forget(ClientId(2));
        assert_eq!(lounge.next_deadline(), Some(30));
        lounge.push(waiting(4, 6, None));
        lounge.retain(|w| w.request.args.tag != 1);
        assert_eq!(lounge.iter().map(|w| w.request.args.tag).collect::<Vec<_>>(), [4, 6]);
        assert_eq!(lounge.take_all().len(), 2);
        assert!(lounge.is_empty() && lounge.next_deadline().is_none());
    }
}
