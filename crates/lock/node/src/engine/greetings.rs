//! Introductions: who may talk to whom.

use std::io::ErrorKind;

use lockify_core::Time;
use lockify_core::link::{Hello, Resumed};
use lockify_trust::{LONGEST_CLUSTER, Reading, Security, printable_start};
use rustix::net::sockopt;

use super::{MS, NodeEngine};
use crate::conn::{Conn, ConnStage};
use crate::membership::Event;
use crate::notice::Level;
use crate::wire::{
    Greeting, GreetingError, Introduction, MAX_GREETING, Packet, decode_greeting, encode_greeting,
};

/// Returns true if a node names itself by a visit, not by a life.
pub(super) fn is_visit(id: u64) -> bool {
    id >= 1 << 63
}

impl NodeEngine {
    /// Handles everything complete that a connection has read.
    pub(super) fn handle_input(&mut self, at: usize, now: Time) {
        loop {
            let Some(conn) = self.conns.get_mut(at) else { return };
            match conn.stage {
                ConnStage::Up { peer } => {
                    if !self.handle_frame(at, peer, now) {
                        return;
                    }
                }
                ConnStage::Accepted | ConnStage::Introduced { .. } => {
                    if !self.handle_greeting(at, now) {
                        return;
                    }
                }
                ConnStage::Closing | ConnStage::Dialing { .. } => {
                    conn.socket.inbox.clear();
                    return;
                }
            }
        }
    }

    /// Handles a greeting; false if it is not complete.
    fn handle_greeting(&mut self, at: usize, now: Time) -> bool {
        let conn = &mut self.conns[at];
        let (stage, address) = (conn.stage, conn.address);
        match decode_greeting(conn.pending()) {
            Ok(None) => return false,
            Ok(Some((greeting, used))) => {
                conn.socket.inbox.skip(used);
                self.greeted(at, stage, greeting, now);
            }
            Err(e) => {
                let whom = self.whom(stage, at);
                match e {
                    // The process there would not understand an answer.
                    GreetingError::Magic => self.close(at, e.to_string(), now),
                    GreetingError::Version(_) => {
                        let me = self.myself();
                        self.refuse(
                            at,
                            stage,
                            format!("{me} speaks another version than {whom}: {e}"),
                        );
                    }
                    _ => self.refuse(at, stage, format!("{} refuses {whom}: {e}", self.myself())),
                }
                self.complain(format!("{whom} ({address}) was refused: {e}"));
            }
        }
        true
    }

    fn greeted(&mut self, at: usize, stage: ConnStage, greeting: Greeting, now: Time) {
        match greeting {
            Greeting::Refusal(why) => self.refused(at, stage, &why, now),
            Greeting::Introduction(i) => match self.admit(at, stage, &i, now) {
                Ok(peer) => self.establish(at, stage, peer, i, now),
                Err(why) => {
                    let whom = self.whom(stage, at);
                    self.complain(format!("{whom} was refused: {why}"));
                    self.note_refusal(at, &i, &why);
                    self.refuse(at, stage, why);
                }
            },
        }
    }

    /// The other side does not talk to this node.
    pub(super) fn refused(&mut self, at: usize, stage: ConnStage, why: &str, now: Time) {
        let whom = self.whom(stage, at);
        self.close(at, format!("refused by {whom}: {why}"), now);
        self.complain(format!("{whom} refuses this node: {why}"));
    }

    /// Nothing can be written any more to a peer without an introduction. Its earlier bytes say more than the system's
    /// error: a refusal, perhaps.
    pub(super) fn last_words(&mut self, at: usize, stage: ConnStage, error: ErrorKind, now: Time) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        let reading = loop {
            match conn.read() {
                (_, Reading::More) if conn.pending().len() < MAX_GREETING => {}
                (_, reading) => break reading,
            }
        };
        let greeting = decode_greeting(conn.pending());
        match (reading, greeting) {
            (Reading::Distrusted(why), _) => self.distrust(at, &why, now),
            (_, Ok(Some((Greeting::Refusal(why), _)))) => self.refused(at, stage, &why, now),
            _ => self.close(at, error.to_string(), now),
        }
    }

    /// A node that was refused when it came, for the status; not one that only says that it is it.
    fn note_refusal(&mut self, at: usize, i: &Introduction, why: &str) {
        let proved = self.conns.get(at).is_none_or(|c| c.socket.proves(&i.cluster, i.node.0));
        let Some(peer) = self.peer_of(i.node) else { return };
        let p = &mut self.peers[peer];
        if proved && p.conn.is_none() {
            p.error = Some(why.to_owned());
        }
    }

    /// A connection on which TLS has failed: who is there has not proved who it is.
    pub(super) fn distrust(&mut self, at: usize, why: &str, now: Time) {
        let Some(conn) = self.conns.get(at) else { return };
        let (stage, address) = (conn.stage, conn.address);
        let whom = self.whom(stage, at);
        self.stats.refused += 1;
        self.close(at, format!("{whom} ({address}): {why}"), now);
        self.complain(format!("{whom} ({address}) was refused: {why}"));
    }

    fn myself(&self) -> String {
        format!("node {} of cluster \"{}\"", self.identity.node, self.identity.cluster)
    }

    fn whom(&self, stage: ConnStage, at: usize) -> String {
        match stage {
            ConnStage::Introduced { peer } | ConnStage::Up { peer } => {
                format!("node {}", self.peers[peer].node)
            }
            _ => {
                self.conns.get(at).map_or("a peer".into(), |c| format!("the peer at {}", c.address))
            }
        }
    }

    /// Sends the introduction on a connection that this node has dialled.
    pub(super) fn introduce(&mut self, at: usize, peer: usize) {
        let hello = self.peers[peer].link.hello();
        self.write_introduction(at, peer, hello);
    }

    fn write_introduction(&mut self, at: usize, peer: usize, link: Hello) {
        let id = &self.identity;
        let introduction = Introduction {
            cluster: id.cluster.clone(),
            node: id.node,
            to: self.peers[peer].node,
            shard: id.shard,
            shards: id.shards,
            membership: id.kind,
            newest: id.versions.newest,
            link,
            oldest: id.versions.oldest,
        };
        if let Some(conn) = self.conns.get_mut(at) {
            conn.out.append(|out| encode_greeting(out, &Greeting::Introduction(introduction)));
            self.mark(at);
        }
    }

    /// Tells the other side why, then closes. One that refused is not told: it knows.
    fn refuse(&mut self, at: usize, stage: ConnStage, why: String) {
        self.stats.refused += 1;
        let now = self.now();
        if let ConnStage::Introduced { peer } | ConnStage::Up { peer } = stage {
            let p = &mut self.peers[peer];
            p.dialing = None;
            p.back_off(now);
            p.error = Some(why.clone());
        }
        let Some(conn) = self.conns.get_mut(at) else { return };
        conn.stage = ConnStage::Closing;
        conn.since = now;
        conn.socket.inbox.clear();
        conn.out.append(|out| encode_greeting(out, &Greeting::Refusal(why)));
        self.mark(at);
    }

    /// Finds the peer, or the error in its introduction (told to both sides, so it names both).
    fn admit(
        &mut self,
        at: usize,
        stage: ConnStage,
        i: &Introduction,
        now: Time,
    ) -> Result<usize, String> {
        // Every machine that reaches the port can choose this name.
        let cluster = printable_start(i.cluster.as_bytes(), LONGEST_CLUSTER);
        let (me, it) = (&self.identity, format!("node {} of cluster \"{cluster}\"", i.node));
        let we = self.myself();
        // Before all else: an introduction is not worth anything without its proof.
        if self.conns.get(at).is_some_and(|c| !c.socket.proves(&i.cluster, i.node.0)) {
            return Err(format!(
                "what calls itself {it} showed {we} the certificate of another node or cluster: \
                 give every node its own"
            ));
        }
        if i.cluster != me.cluster {
            return Err(format!("{it} met {we}: correct the address or the cluster's name"));
        }
        if i.node == me.node {
            return Err(format!("{it} met a node of the same id: give every node its own"));
        }
        if i.to != me.node {
            return Err(format!(
                "{it} looked for node {} and met {we}: correct the list of nodes",
                i.to
            ));
        }
        if me.versions.common(i.versions()).is_none() {
            let (theirs, ours) = (i.versions(), me.versions);
            let older = if theirs.newest < ours.oldest { i.node } else { me.node };
            return Err(format!(
                "{it} speaks {theirs} of Lockify's protocol and {we} {ours}: upgrade node {older}, or \
                 raise its wire_version; over a release that speaks a version of each, if they are \
                 far apart"
            ));
        }
        if i.membership != me.kind {
            return Err(format!(
                "{it} and {we} have different kinds of membership: give both the same key membership, and \
                 the same release"
            ));
        }
        if (i.shards, i.shard) != (me.shards, me.shard) {
            return Err(format!(
                "shard {} of {} of {it} met shard {} of {} of {we}: give all nodes the same number of shards",
                i.shard, i.shards, me.shard, me.shards
            ));
        }
        let Some(peer) = self.peer_of(i.node).filter(|p| !self.peers[*p].removed) else {
            return Err(format!(
                "{it} is not a node that {we} knows: add it with `lockify cluster join {} HOST:PORT` on a \
                 member, or to corosync.conf",
                i.node
            ));
        };
        if let ConnStage::Introduced { peer: dialled } = stage
            && dialled != peer
        {
            return Err(format!(
                "{it} answered at the address of node {}",
                self.peers[dialled].node
            ));
        }
        let p = &self.peers[peer];
        if let Some(old) = p.conn {
            if p.link.peer() != Some(i.link.from) {
                let from = self
                    .conns
                    .get(old)
                    .map_or_else(String::new, |c| format!(" from {}", c.address));
                return Err(format!(
                    "{it} is connected to {we} already, as incarnation {}{from}, and now comes as incarnation {}: \
                     two processes have one id; stop one, or give it its own",
                    p.link.peer().unwrap_or(0),
                    i.link.from
                ));
            }
            // The same process connects again: it has noticed before this node that the old
            // connection is of no use.
            debug_assert_ne!(old, at);
            self.close(old, String::new(), now);
        }
        Ok(peer)
    }

    /// Both have introduced themselves: the link goes on where it was.
    fn establish(&mut self, at: usize, stage: ConnStage, peer: usize, i: Introduction, now: Time) {
        let (own, backlog) = (self.incarnation, self.backlog);
        let p = &mut self.peers[peer];
        // Before it has a life, a node is known by a random number, which is no older or newer than others.
        if is_visit(i.link.from) || p.link.peer().is_some_and(is_visit) {
            p.forget(own, backlog);
        }
        let hello = p.link.hello();
        let resumed = match p.link.connect(i.link) {
            Ok(resumed) => resumed,
            Err(e) => {
                let text = format!("{} and node {}: {e}", self.myself(), i.node);
                self.complain(text.clone());
                return self.refuse(at, stage, text);
            }
        };
        if resumed != Resumed::Same {
            p.channels.clear();
        }
        if resumed == Resumed::NewLife {
            p.opened.clear();
        }
        if p.dialing == Some(at) {
            p.dialing = None;
        }
        p.conn = Some(at);
        p.certificate_ends = shown_ends(&self.security, &self.conns[at]);
        // There is one, or it would not have been admitted.
        p.version = self.identity.versions.common(i.versions()).unwrap_or(p.version);
        p.error = None;
        p.dead = false;
        p.dial_soon(now);
        let (node, life, sole, version) = (p.node, i.link.from, p.same_host, p.version);
        self.conns[at].stage = ConnStage::Up { peer };
        self.notice_a_dead_link(at, peer);
        if stage == ConnStage::Accepted {
            self.write_introduction(at, peer, hello);
        }
        self.resend(at, peer, now);
        self.note_backlog(peer);
        self.complaint.clear();
        // Without keys, every machine that reaches the port may come and go as this node.
        if self.admission.arrivals.admits(now) {
            let text = format!(
                "connected to node {node} (incarnation {life}, version {version} of the protocol)"
            );
            self.notice(Level::Info, text);
        }
        self.membership_event(now, Event::Connected { node, life, sole });
    }

    /// A link that goes down says nothing: a connection whose data nobody acknowledges is closed by
    /// the kernel, early enough to go on over another link before a lease is over.
    fn notice_a_dead_link(&self, at: usize, peer: usize) {
        if self.peers[peer].links() > 1 {
            let limit = u32::try_from(self.lease / 3 / MS).unwrap_or(u32::MAX).max(1);
            // Without it, the lease has the same effect later.
            let _ = sockopt::set_tcp_user_timeout(self.conns[at].socket.stream(), limit);
        }
    }

    /// Sends the frames again that the peer has not received.
    fn resend(&mut self, at: usize, peer: usize, now: Time) {
        let due = self.delayed_until(now);
        let again: Vec<_> = self.peers[peer]
            .link
            .resend()
            .filter_map(|f| {
                Some(Packet::Data { seq: f.seq, ack: f.ack, payload: f.payload?.clone() })
            })
            .collect();
        self.stats.resent += again.len() as u64;
        again.iter().for_each(|packet| self.put(at, packet, due));
    }
}

/// When the certificate ends that the other side of a connection has shown.
fn shown_ends(security: &Security, conn: &Conn) -> Option<i64> {
    match security {
        Security::Tls(keyring) => conn.socket.shown_ends(&keyring.current()),
        Security::Loopback | Security::PlainText => None,
    }
}
