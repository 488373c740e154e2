//! The settings that can change while an engine runs.

use std::time::Duration;

use lockify_core::Input;

use super::{NodeEngine, nanos};
use crate::clock::monotonic;
use crate::conn::ConnStage;
use crate::wire::SPOKEN;

impl NodeEngine {
    /// As [`crate::NodeConfig::busy_poll`], from the next wait on.
    pub fn set_busy_poll(&mut self, busy: Duration) {
        self.poll.set_busy(busy);
    }

    /// As [`crate::FenceConfig::command`] and [`crate::FenceConfig::time_limit`], for agents that
    /// are started from now on, by all shards of the node.
    pub fn set_fencing_agent(&mut self, command: &[String], time_limit: Duration) {
        self.fencer.set_agent(command, time_limit);
    }

    /// Speaks versions up to this one, if it is newer than before: connections of an older version
    /// are made anew. Also those whose other end could not do better when it came: it may since have
    /// been raised, or will be, and must know then what this node speaks. Nothing that they carry is
    /// lost.
    pub fn raise_newest_version(&mut self, newest: u16) {
        let newest = newest.min(SPOKEN.newest);
        if newest <= self.identity.versions.newest {
            return;
        }
        self.identity.versions.newest = newest;
        let now = monotonic();
        for i in 0..self.peers.len() {
            let p = &self.peers[i];
            // One that this node has introduced itself on was told the old version.
            let told = p.dialing.filter(|at| {
                self.conns.get(*at).is_some_and(|c| matches!(c.stage, ConnStage::Introduced { .. }))
            });
            if let Some(at) = p.conn.filter(|_| p.version < newest).or(told) {
                self.close(at, "made anew, for a newer version of the protocol".into(), now);
            }
        }
        self.settle(now);
    }

    /// As [`lockify_core::Config::deadlock_after`], in a lockspace that has been joined, for locks
    /// that wait already, too.
    pub fn search_deadlocks_after(&mut self, space: &str, after: Option<Duration>) {
        let (now, after) = (monotonic(), after.map(nanos));
        for at in 0..self.spaces.len() {
            if let Some(s) = self.spaces[at].as_mut().filter(|s| s.name == space) {
                s.config.core.deadlock_after = after;
                // Only client calls fail.
                let _ = s.core.handle(now, Input::SearchAfter(after));
                self.drain(at, now);
            }
        }
        self.settle(now);
    }
}
