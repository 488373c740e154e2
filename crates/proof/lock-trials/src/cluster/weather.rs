//! Faults of messages: crashes at a message of one kind, and claims that are lost, doubled or late.

use std::cell::Cell;
use std::rc::Rc;

use lockify_core::message::Body;
use lockify_sim::{Fault, Inject, MILLISECOND, Observed, Step, Verdict, at_nth};
use rand::{RngExt as _, SeedableRng as _};

use crate::host::LockNode;
use crate::scenario::Target;
use crate::transport::{Packet, may_be_datagram};

/// Kinds of messages, as targets of faults name them.
pub const KINDS: &[&str] = &[
    "Lookup",
    "LookupReply",
    "Remove",
    "Claims",
    "ClaimReplies",
    "Request",
    "Convert",
    "Unlock",
    "Cancel",
    "Merge",
    "Reply",
    "Grant",
    "Bast",
    "WhoMasters",
    "Masters",
    "Assert",
    "AssertAck",
    "Reached",
    "Passed",
    "Names",
    "Orphaned",
    "Adopted",
    "Moved",
    "MovedReply",
];

/// The number of a message's kind in [`KINDS`]; others have none.
pub fn kind_of(body: &Body) -> Option<usize> {
    let name = match body {
        Body::Lookup { .. } => "Lookup",
        Body::LookupReply { .. } => "LookupReply",
        Body::Remove { .. } => "Remove",
        Body::Claims(_) => "Claims",
        Body::ClaimReplies(_) => "ClaimReplies",
        Body::Request(_) => "Request",
        Body::Convert { .. } => "Convert",
        Body::Unlock { .. } => "Unlock",
        Body::Cancel { .. } => "Cancel",
        Body::Merge { .. } => "Merge",
        Body::Reply { .. } => "Reply",
        Body::Grant { .. } => "Grant",
        Body::Bast { .. } => "Bast",
        Body::WhoMasters { .. } => "WhoMasters",
        Body::Masters { .. } => "Masters",
        Body::Assert { .. } => "Assert",
        Body::AssertAck { .. } => "AssertAck",
        Body::Reached { .. } => "Reached",
        Body::Passed { .. } => "Passed",
        Body::Names { .. } => "Names",
        Body::Orphaned(_) => "Orphaned",
        Body::Adopted(_) => "Adopted",
        Body::Moved(_) => "Moved",
        Body::MovedReply(_) => "MovedReply",
        _ => return None,
    };
    KINDS.iter().position(|kind| *kind == name)
}

/// Probabilities of what happens to claim messages now.
#[derive(Default)]
pub(super) struct Weather {
    pub drop: Cell<f64>,
    /// Claims arrive, only their replies get lost.
    pub replies_only: Cell<bool>,
    pub duplicate: Cell<f64>,
    pub delay: Cell<f64>,
}

/// Shared with the hooks and filters inside the engine.
#[derive(Default)]
pub(super) struct Controls {
    pub weather: Weather,
    pub quiet: Cell<bool>,
}

/// Hits a node at a step of the protocol.
pub(super) fn target_hook(target: Target, controls: Rc<Controls>) -> lockify_sim::Hook<LockNode> {
    let is_it = move |observed: &Observed<'_, LockNode>| {
        let packet: Option<&Packet> = match (&observed.step, target.receiver) {
            (Step::Input(lockify_sim::Input::Message { msg, .. }), true) => Some(msg),
            (Step::Send { msg, .. }, false) => Some(msg),
            _ => None,
        };
        let kind = packet.and_then(Packet::message).and_then(|message| kind_of(&message.body));
        !controls.quiet.get() && kind == Some(target.kind)
    };
    at_nth(target.nth, is_it, move |observed| {
        let node = observed.node;
        let fault = if target.pause {
            Fault::Pause(node)
        } else {
            Fault::Crash { node, power_loss: false }
        };
        if target.receiver { Inject::Before(fault) } else { Inject::After(fault) }
    })
}

/// Loses, doubles and delays claim messages while that is in effect.
pub(super) fn claim_filter(controls: Rc<Controls>, seed: u64) -> lockify_sim::Filter<Packet> {
    let mut random = lockify_sim::Random::seed_from_u64(seed ^ 0xf117e2);
    Box::new(move |envelope| {
        let ours = envelope.datagram
            && envelope.msg.message().is_some_and(|message| may_be_datagram(&message.body));
        if !ours {
            return Verdict::Pass;
        }
        let weather = &controls.weather;
        let is_reply = envelope
            .msg
            .message()
            .is_some_and(|message| matches!(message.body, Body::ClaimReplies(_)));
        let spared = weather.replies_only.get() && !is_reply;
        if !spared && random.random_bool(weather.drop.get()) {
            return Verdict::Lose;
        }
        if random.random_bool(weather.duplicate.get()) {
            // Late enough, now and then, for everything that the first copy did to be over.
            return match random.random_bool(0.5) {
                true => Verdict::Duplicate,
                false => Verdict::DuplicateLater(random.random_range(0..60 * MILLISECOND)),
            };
        }
        if random.random_bool(weather.delay.get()) {
            return Verdict::Delay(random.random_range(0..30 * MILLISECOND));
        }
        Verdict::Pass
    })
}
