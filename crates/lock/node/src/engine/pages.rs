//! The search of a lockspace for a page of its resources: a piece a turn, for any number of askers,
//! so that nothing else waits for it.

use lockify_core::{Name, NodeId, ResourceInfo, Time};

use super::NodeEngine;
use crate::clock::wall;
use crate::page::{MOST_PER_PAGE, PageOf, Rest, Selection};
use crate::wire::{Packet, Part, Payload};

/// Slots that one piece looks at.
const PIECE: u32 = 4096;
/// Locks of one resource, and of one page, that an answer tells of; more would not fit.
pub(super) const MOST_LOCKS: usize = 8192;
/// Resources for a node that does not know of pages.
const MOST_AT_ONCE: u32 = 16 * 1024;
/// Looks that one peer may have under way here: it asks for no more than [`super::queries::AT_ONCE`]
/// at a time.
const MOST_PER_PEER: usize = 16;

/// For whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A query of this node's host.
    Own(u64),
    /// A peer's; `whole`: it does not know of pages.
    Peer { node: NodeId, id: u64, whole: bool },
}

/// A look through a lockspace.
#[derive(Debug)]
pub(super) struct Look {
    asker: Asker,
    space: String,
    waited: bool,
    next: u32,
    chosen: Selection,
}

impl Look {
    pub(super) fn is_for(&self, asker: Asker) -> bool {
        self.asker == asker
    }

    /// For a page.
    pub(super) fn page(asker: Asker, of: &PageOf) -> Look {
        let most = of.limit.clamp(1, MOST_PER_PAGE) as usize;
        let chosen = Selection::new(of.after, most);
        Look { asker, space: of.space.clone(), waited: of.waited, next: 0, chosen }
    }

    /// For all, as nodes of before pages ask.
    pub(super) fn whole(asker: Asker, space: &str) -> Look {
        let chosen = Selection::new(None, MOST_AT_ONCE as usize);
        Look { asker, space: space.to_owned(), waited: false, next: 0, chosen }
    }
}

impl NodeEngine {
    /// Takes a peer's look up, unless it has too many under way.
    pub(super) fn look_for_peer(&mut self, node: NodeId, id: u64, look: Look, now: Time) {
        let of_peer = |l: &&Look| matches!(l.asker, Asker::Peer { node: of, .. } if of == node);
        if self.looks.iter().filter(of_peer).count() < MOST_PER_PEER {
            return self.looks.push_back(look);
        }
        let Some(at) = self.connection_of(node) else { return };
        let refused = Packet::<Payload>::Tell { id, part: Part::Resources(Vec::new()), last: true };
        self.complain(format!(
            "node {node} asks more than {MOST_PER_PEER} questions at once: answered with nothing"
        ));
        let due = self.delayed_until(now);
        self.put(at, &refused, due);
    }

    /// No asker waits for queries over this connection any more.
    pub(super) fn stop_looks_of(&mut self, node: NodeId) {
        let of_peer = |l: &Look| matches!(l.asker, Asker::Peer { node: of, .. } if of == node);
        self.looks.retain(|l| !of_peer(l));
    }

    /// One piece of the look whose turn it is.
    pub(super) fn look_on(&mut self, now: Time) {
        let Some(mut look) = self.looks.pop_front() else { return };
        if self.survey(&mut look) {
            self.end_look(look, now);
        } else {
            self.looks.push_back(look);
        }
    }

    /// True at the end.
    fn survey(&mut self, look: &mut Look) -> bool {
        let Some(s) = self.spaces.iter().flatten().find(|s| s.name == look.space) else {
            return true;
        };
        let me = self.identity.node;
        let (chosen, waited) = (&mut look.chosen, look.waited);
        let next = s.core.survey(look.next, PIECE, |seen| {
            if !waited || seen.waited {
                chosen.offer(seen.name, seen.master.is_none_or(|m| m == me));
            }
        });
        next.map(|next| look.next = next).is_none()
    }

    fn end_look(&mut self, mut look: Look, now: Time) {
        let resources = self.describe(&mut look, now);
        let rest = look.chosen.rest;
        match look.asker {
            Asker::Own(id) => self.collect_own(id, resources, rest),
            Asker::Peer { node, id, whole } => {
                let Some(at) = self.connection_of(node) else { return };
                let rest = Some(rest).filter(|_| !whole);
                self.answer_in_parts(at, id, resources, rest);
            }
        }
    }

    /// This node's knowledge of the chosen resources; times since 1970.
    fn describe(&self, look: &mut Look, now: Time) -> Vec<ResourceInfo> {
        let names = look.chosen.take();
        let Some(s) = self.spaces.iter().flatten().find(|s| s.name == look.space) else {
            return Vec::new();
        };
        let (mut found, mut room) = (Vec::with_capacity(names.len()), MOST_LOCKS);
        let me = self.identity.node;
        for name in names {
            let Some((resource, left_out)) = s.core.resource_in_part(&name, MOST_LOCKS) else {
                continue;
            };
            if !found.is_empty() && resource.locks.len() > room {
                // The page ends here, or it would not fit.
                room = 0;
                look.chosen.leave_out(resource.master.is_none_or(|m| m == me));
                continue;
            }
            room = room.saturating_sub(resource.locks.len());
            look.chosen.rest.locks += left_out as u64;
            found.push(since_1970(resource, now));
        }
        found
    }

    /// This node's knowledge of one resource, and the number of its locks that are left out.
    pub(super) fn resource(&self, space: &str, name: &Name, now: Time) -> (Vec<ResourceInfo>, u64) {
        let Some(s) = self.spaces.iter().flatten().find(|s| s.name == space) else {
            return (Vec::new(), 0);
        };
        let found = s.core.resource_in_part(name, MOST_LOCKS);
        let left_out = found.as_ref().map_or(0, |(_, left_out)| *left_out as u64);
        (found.into_iter().map(|(r, _)| since_1970(r, now)).collect(), left_out)
    }

    fn connection_of(&self, node: NodeId) -> Option<usize> {
        let peer = self.peers.binary_search_by_key(&node, |p| p.node).ok()?;
        self.peers[peer].conn
    }

    /// Sends an answer piece by piece, as the connection takes it.
    pub(super) fn answer_in_parts(
        &mut self,
        at: usize,
        id: u64,
        resources: Vec<ResourceInfo>,
        rest: Option<Rest>,
    ) {
        if let Some(conn) = self.conns.get_mut(at) {
            conn.answers.push_back((id, resources, rest));
            self.mark(at);
        }
    }
}

fn since_1970(mut resource: ResourceInfo, now: Time) -> ResourceInfo {
    let epoch = wall().saturating_sub(now);
    for lock in &mut resource.locks {
        lock.since = lock.since.saturating_add(epoch);
    }
    resource
}
