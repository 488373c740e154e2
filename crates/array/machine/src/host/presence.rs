//! Messages to devices beside operations: renewals, and the host's state on a new connection.

use std::collections::BTreeSet;

use super::ArrayHost;
use super::engine::{Held, Phase, Refused, Sibling};
use crate::message::{Action, Call, Request};
use crate::{OpId, Peer, Stamp, Time};

impl ArrayHost {
    pub(super) fn post(&mut self, now: Time, to: Peer, request: Request) {
        self.heard_from_us.insert(to, now);
        self.renewal.get_or_insert(now.saturating_add(self.config.lease / 3));
        self.output.push_back(super::HostOutput::Send { to, request });
    }

    /// Says something that is no try's: nobody looks for its answer.
    fn say_to_device(&mut self, now: Time, to: Peer, action: Action) {
        let op = OpId { life: self.config.life, seq: 0 };
        let call = Call { op, sibling: 0, step: 0 };
        let stamp = Stamp { time: now, host: self.config.life.host.0 };
        self.post(now, to, Request { call, stamp, epoch: self.state.since, action });
    }

    /// Handles a new connection. Messages on the old one may not have arrived, and a restarted device has forgotten its
    /// grants.
    pub(super) fn connected(&mut self, now: Time, peer: Peer, boot: u64) {
        self.installing.remove(&peer);
        if self.owed.is_to_be_informed(peer) {
            self.install_at(now, peer);
        }
        let unanswered = self.unanswered(peer);
        if self.boots.insert(peer, boot).is_some_and(|before| before != boot) {
            self.granted_in_vain(now, peer);
            if let Peer::Device(device) = peer {
                self.unflushed.restarted(device);
            }
        }
        // Replacements have been sent on this connection already, so only older requests are repeated.
        for (seq, index, _) in self.unanswered(peer).intersection(&unanswered) {
            self.transmit(now, *seq, *index);
        }
        if self.heard_from_us.contains_key(&peer) {
            self.settling.insert(peer, self.next_seq);
        }
    }

    /// The tries, siblings and steps that a peer has not answered.
    fn unanswered(&self, peer: Peer) -> BTreeSet<(u64, usize, u8)> {
        let all = self.outstanding(|sibling| sibling.peer == peer).into_iter();
        let step = |seq: u64, index: usize| {
            let out = self.tries.get(&seq)?.siblings.get(index)?.out.as_ref()?;
            Some((seq, index, out.step))
        };
        all.filter_map(|(seq, index)| step(seq, index)).collect()
    }

    /// Sends unanswered requests again.
    pub(super) fn resend(&mut self, now: Time, peer: Peer) {
        for (seq, index) in self.outstanding(|sibling| sibling.peer == peer) {
            self.transmit(now, seq, index);
        }
    }

    /// A device may have forgotten its grants of phase 1, and other operations may come before phase 2. Such tries begin anew.
    fn granted_in_vain(&mut self, now: Time, peer: Peer) {
        let first = self.tries.iter().filter(|(_, this)| this.phase == Phase::First);
        let asked = |s: &Sibling| s.peer == peer && s.held != Held::Nothing;
        let lost = first.filter(|(_, this)| this.siblings.iter().any(asked));
        for seq in lost.map(|(seq, _)| *seq).collect::<Vec<_>>() {
            self.restart(now, seq, 0);
        }
    }

    /// Tells devices when all that had to be taken up on a new connection is.
    pub(super) fn settle(&mut self, now: Time) {
        if self.settling.is_empty() || self.fenced {
            return;
        }
        let unsettled = |peer: Peer, before: u64| {
            let tries = self.tries.range(..before).map(|(_, this)| this);
            let writing = tries.filter(|this| this.phase == Phase::Second);
            writing.flat_map(|this| &this.siblings).any(|sibling| {
                let to_do = matches!(sibling.refused, None | Some(Refused::Epoch));
                sibling.peer == peer && sibling.blocks.is_some() && to_do
            })
        };
        let settled = self.settling.iter().filter(|(peer, before)| !unsettled(**peer, **before));
        for peer in settled.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.settling.remove(&peer);
            self.say_to_device(now, peer, Action::Settled);
        }
    }

    /// Peers at which something may be held.
    fn holders(&self) -> impl Iterator<Item = Peer> {
        let siblings = self.tries.values().flat_map(|this| &this.siblings);
        siblings.filter(|s| s.held != Held::Nothing).map(|s| s.peer)
    }

    /// The time of the next renewal. The search visits everything under way, so it runs when a renewal may be due, not with
    /// every step.
    fn next_renewal(&self) -> Option<Time> {
        let last = self.holders().filter_map(|peer| self.heard_from_us.get(&peer)).min();
        last.map(|last| last.saturating_add(self.config.lease / 3))
    }

    /// Renews this life at every peer that holds state for it and has not heard of it for long.
    pub(super) fn renew(&mut self, now: Time) {
        if self.renewal.is_none_or(|time| time > now) {
            return;
        }
        let due = self.holders().filter(|peer| {
            let last = self.heard_from_us.get(peer).copied().unwrap_or(0);
            last.saturating_add(self.config.lease / 3) <= now
        });
        let due: BTreeSet<Peer> = due.collect();
        for peer in due {
            self.counts.leases += 1;
            self.say_to_device(now, peer, Action::Lease);
        }
        self.renewal = self.next_renewal();
    }
}
