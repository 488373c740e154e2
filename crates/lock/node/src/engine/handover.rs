//! Handing the node over to another program that takes this one's place in the same process.
//!
//! The hand-over contains the node's promises: its lockspaces, what its links have sent and
//! received, its leases. Connections are not, as TLS could not go on with them: the links make new
//! ones, in the same life, and lose and double nothing. Peers see a connection that breaks and comes
//! back. Clocks go on, as the machine does, so times are handed over as they are.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};

use lockify_core::link::Link;
use lockify_core::{ClientId, Mode, Name, NodeId, Time};
use serde::{Deserialize, Serialize};

use super::shards::Held;
use super::spaces::Space;
use super::{Identity, NodeEngine};
use crate::clock::monotonic;
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::event::SpaceId;
use crate::history::{History, HistoryImage};
use crate::membership::{Event, MembershipImage};
use crate::notice::Level;
use crate::query::EngineStats;
use crate::shard::ShardLetter;
use crate::wire::Payload;

/// All that one shard of a node is to its peers and to itself; see [`NodeEngine::image`].
#[derive(Serialize, Deserialize)]
pub struct EngineImage<'a> {
    members: MembershipImage,
    incarnation: u64,
    last_life: u64,
    lease: Time,
    peers: Vec<PeerImage<'a>>,
    spaces: Cow<'a, [Option<Space>]>,
    next_query: u64,
    held: Cow<'a, [Held]>,
    next_claim_wait: u64,
    letters: Vec<ShardLetter>,
    stats: EngineStats,
    histories: BTreeMap<String, Option<HistoryImage>>,
}

#[derive(Serialize, Deserialize)]
struct PeerImage<'a> {
    node: NodeId,
    link: Cow<'a, Link<Payload>>,
    /// There was a connection.
    up: bool,
    dead: bool,
    opened: Cow<'a, HashSet<SpaceId>>,
    channels: Cow<'a, HashMap<u32, String>>,
}

impl NodeEngine {
    /// Ends the work that cannot be handed over. Queries to the cluster get the answers so far, and
    /// histories are written. The resulting events are in [`NodeEngine::take_events`].
    pub fn prepare_image(&mut self) {
        for i in 0..self.peers.len() {
            self.silence(self.peers[i].node);
        }
        let now = monotonic();
        self.end_queries(now);
        self.members.prepare_image(now + self.skew);
        self.act(now);
        self.flush(now);
    }

    /// All that this shard is, for the program that takes this one's place, between two turns and
    /// after [`NodeEngine::prepare_image`]; the host must have taken all events.
    ///
    /// # Errors
    /// The reason why that is impossible now.
    pub fn image(&self) -> Result<EngineImage<'_>, String> {
        // Without `..`: who adds a field has to say here what becomes of it.
        let NodeEngine {
            // Of this program.
            poll: _,
            disk: _,
            next_request: _,
            announce_soon: _,
            starts_alone: _,
            events: _,
            waker: _,
            timer: _,
            listener: _,
            other_listeners: _,
            accept_again: _,
            mailbox: _,
            fencer: _,
            lease_end: _,
            members_due: _,
            complaint: _,
            view_changes: _,
            skew: _,
            woke: _,
            turn_end: _,
            cluster: _,
            // Made anew.
            conns: _,
            dirty: _,
            unread: _,
            looks: _,
            admission: _,
            // As the configuration says.
            identity,
            security: _,
            delay: _,
            backlog: _,
            names: _,
            history: _,
            // Handed over.
            members,
            incarnation,
            lease,
            peers,
            spaces,
            last_life,
            next_query,
            held,
            next_claim_wait,
            stats,
            histories,
            // Must be nothing.
            parting,
            queries,
            pending,
        } = self;
        if *parting || !queries.is_empty() || !pending.is_empty() {
            return Err("the node is just losing its quorum, or has not told all it knows".into());
        }
        let members = members.image()?;
        let letters = identity.group.as_ref().map(|g| g.unread(identity.shard));
        let peers = peers.iter().map(|p| PeerImage {
            node: p.node,
            link: Cow::Borrowed(&p.link),
            up: p.conn.is_some(),
            dead: p.dead,
            opened: Cow::Borrowed(&p.opened),
            channels: Cow::Borrowed(&p.channels),
        });
        let written = |h: &Option<History>| h.as_ref().map(History::image);
        Ok(EngineImage {
            members,
            incarnation: *incarnation,
            last_life: *last_life,
            lease: *lease,
            peers: peers.collect(),
            spaces: Cow::Borrowed(spaces),
            next_query: *next_query,
            held: Cow::Borrowed(held),
            next_claim_wait: *next_claim_wait,
            letters: letters.unwrap_or_default(),
            stats: *stats,
            histories: histories.iter().map(|(name, h)| (name.clone(), written(h))).collect(),
        })
    }

    /// The socket at which this shard listens for its peers, if it has any: it must go on
    /// listening, or they would think that the process is gone.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// The locks of this node's clients: lockspace, name, mode and client.
    pub fn held_locks(&self) -> impl Iterator<Item = (&str, Name, Mode, ClientId)> + '_ {
        let spaces = self.spaces.iter().flatten();
        spaces.flat_map(|s| s.core.held().map(|(name, mode, c)| (s.name.as_str(), name, mode, c)))
    }

    /// Goes on as the shard of which this is the image, with the same list of nodes. `config` must
    /// have its socket; its siblings must not run before all of them have been resumed.
    ///
    /// # Errors
    /// As for [`NodeEngine::new`]; [`NodeError::Config`] if the image is of another node.
    pub fn resume(
        config: NodeConfig,
        image: EngineImage<'static>,
    ) -> Result<NodeEngine, NodeError> {
        let EngineImage {
            members,
            incarnation,
            last_life,
            lease,
            peers,
            spaces,
            next_query,
            held,
            next_claim_wait,
            letters,
            stats,
            histories,
        } = image;
        let service = members.into_service().map_err(|e| NodeError::Config(e.to_string()))?;
        let mut engine = NodeEngine::build(config, Some((service, incarnation)))?;
        if engine.lease != lease
            || !engine.peers.iter().map(|p| p.node).eq(peers.iter().map(|p| p.node))
        {
            return Err(NodeError::Config(
                "another list of nodes, or another lease, than the node has".into(),
            ));
        }
        (engine.last_life, engine.next_query, engine.next_claim_wait) =
            (last_life, next_query, next_claim_wait);
        engine.stats = stats;
        engine.spaces = spaces.into_owned();
        engine.held = held.into_owned();
        let mut cut = Vec::new();
        for (p, image) in engine.peers.iter_mut().zip(peers) {
            let PeerImage { node, link, up, dead, opened, channels } = image;
            (p.link, p.dead) = (link.into_owned(), dead);
            (p.opened, p.channels) = (opened.into_owned(), channels.into_owned());
            p.link.disconnect();
            p.congested = p.link.over_limit();
            cut.extend(up.then_some(node));
        }
        for (name, image) in histories {
            engine.resume_history(name, image);
        }
        if let Identity { group: Some(group), shard, .. } = &engine.identity {
            letters.into_iter().for_each(|letter| group.send(*shard, letter));
        }
        engine.share_unsettled();
        for node in cut {
            engine.membership_event(monotonic(), Event::Disconnected { node });
        }
        engine.notice(Level::Info, format!("goes on as incarnation {incarnation}"));
        engine.begin(Event::Tick);
        Ok(engine)
    }
}
