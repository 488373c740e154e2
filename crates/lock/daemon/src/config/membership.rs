//! Membership, and the fencing of nodes that have left.

use std::time::Duration;

use lockify_node::{ClusterList, CorosyncConfig, FenceConfig, FenceKind, NodeError};
use serde::Deserialize;

use super::place::Wrong;
use super::{Config, ConfigError, NodeEntry, duration};

/// How long corosync may take to tell the list of nodes when the daemon starts.
const PATIENCE: Duration = Duration::from_secs(10);

/// The source of membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MembershipKind {
    /// The list in `nodes`: a majority of it goes on.
    #[default]
    Static,
    /// Corosync on this machine; `nodes` is its list then.
    Corosync,
}

/// The proof that recovery of a dead node's locks waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// The end of its lease.
    #[default]
    Lease,
    /// The success of the agent in `fencing.command`.
    Command,
    /// Nothing: recovery does not wait.
    None,
}

/// The agent of `fence = "command"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fencing {
    /// The program and its arguments; `{node}`, `{name}` and `{address}` in them, and
    /// `LOCKIFY_NODE`, `LOCKIFY_NAME` and `LOCKIFY_ADDRESS` in its environment, say whom to
    /// fence. Exit status 0: that machine writes no more.
    pub command: Vec<String>,
    /// After this long an agent is killed and has failed.
    #[serde(deserialize_with = "duration")]
    pub time_limit: Duration,
    /// How long the first view of a starting cluster waits for nodes that do not come, before it
    /// has them fenced.
    #[serde(deserialize_with = "duration")]
    pub startup_wait: Duration,
}

impl Default for Fencing {
    fn default() -> Fencing {
        let FenceConfig { command, time_limit, startup_wait, .. } = FenceConfig::default();
        Fencing { command, time_limit, startup_wait }
    }
}

/// The daemon's action when this node has lost its quorum, and its clients have been told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuorumLostAction {
    /// It joins again when there is a quorum.
    #[default]
    Rejoin,
    /// It ends, with an error.
    Exit,
}

/// The actions when this node has lost its quorum.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuorumLost {
    /// The daemon's action.
    pub action: QuorumLostAction,
    /// A program to run at once, with its arguments: to stop services, or the machine.
    pub command: Vec<String>,
    /// After this long the program is killed.
    #[serde(deserialize_with = "duration")]
    pub time_limit: Duration,
}

impl Default for QuorumLost {
    fn default() -> QuorumLost {
        let (action, command) = Default::default();
        QuorumLost { action, command, time_limit: Duration::from_secs(60) }
    }
}

impl Config {
    /// The checks beyond the types of the fields in this file; `nodes` is there already.
    pub(super) fn check_membership(&self) -> Result<(), Wrong> {
        let corosync = self.membership == MembershipKind::Corosync;
        if corosync && !self.nodes.is_empty() {
            let key = if self.nodes_file.is_some() { "nodes_file" } else { "nodes" };
            let what = format!(
                "membership = \"corosync\" and {key}: corosync.conf has the list of nodes, remove \
                 this one"
            );
            return Err(Wrong::new(key, what));
        }
        if corosync && self.port.checked_add(self.shards.saturating_sub(1)).is_none() {
            let what = format!("port = {}: no {} ports from there on", self.port, self.shards);
            return Err(Wrong::new("port", what));
        }
        if corosync && self.port == 0 {
            return Err(Wrong::new("port", "port = 0: name one that is free on every node"));
        }
        if (self.fence == Fence::Command) == self.fencing.command.is_empty() {
            let key = if self.fence == Fence::Command { "fence" } else { "fencing.command" };
            let what = "fence = \"command\" and fencing.command belong together: give both, or \
                        neither";
            return Err(Wrong::new(key, what));
        }
        Ok(())
    }

    /// This configuration with the list of nodes that the cluster has; for a static list, itself.
    pub(crate) fn resolved(&self) -> Result<(Config, Option<CorosyncConfig>), NodeError> {
        let mut config = self.clone();
        if self.membership == MembershipKind::Static {
            return Ok((config, None));
        }
        let list = ClusterList::read(self.port, PATIENCE)?;
        if config.node != 0 && config.node != list.node.0 {
            return Err(NodeError::Config(format!(
                "node = {}, where corosync says that this is node {}: remove it, or correct it",
                config.node, list.node
            )));
        }
        config.node = list.node.0;
        if let Some(token) = list.token {
            config.fit_lease(token).map_err(|e| NodeError::Config(e.to_string()))?;
        }
        let entry = |n: &lockify_node::ClusterNode| NodeEntry {
            id: n.address.node.0,
            address: n.address.address.into(),
            voter: true,
        };
        config.nodes = list.nodes.iter().map(entry).collect();
        let votes = list.nodes.iter().map(|n| (n.address.node, n.votes));
        let names = list.nodes.iter().map(|n| (n.address.node, n.name.clone()));
        let others = list.nodes.iter().map(|n| (n.address.node, n.others.clone()));
        let (votes, names, others) = (votes.collect(), names.collect(), others.collect());
        Ok((config, Some(CorosyncConfig { votes, names, others })))
    }

    /// A lease that ends before corosync can have noticed anything has nodes halt for nothing.
    /// One that is not given is as long as the token's time-out, if its default is not.
    fn fit_lease(&mut self, token: Duration) -> Result<(), ConfigError> {
        if self.lease >= token {
            return Ok(());
        }
        match self.source.as_ref().filter(|source| source.line("lease").is_some()) {
            None => {
                self.lease = token;
                Ok(())
            }
            Some(source) => {
                let [lease, token] = [self.lease, token].map(humantime::format_duration);
                let what = format!(
                    "lease = \"{lease}\" is shorter than the time-out of corosync's token, {token}: \
                     nodes would halt before corosync looks for another ring; make it that long or \
                     longer, or remove it"
                );
                Err(source.refuse(Wrong::new("lease", what)))
            }
        }
    }

    /// The engine's part.
    pub(super) fn fence_config(&self) -> FenceConfig {
        FenceConfig {
            kind: match self.fence {
                Fence::Lease => FenceKind::Lease,
                Fence::Command => FenceKind::Command,
                Fence::None => FenceKind::None,
            },
            command: self.fencing.command.clone(),
            time_limit: self.fencing.time_limit,
            startup_wait: self.fencing.startup_wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_not_shorter_than_corosyncs_token() {
        let token = Duration::from_secs(5);
        let fitted = |text: &str| {
            let path = std::path::Path::new("lockify.toml");
            let mut config = Config::parse(text, path).unwrap();
            config.fit_lease(token).map(|()| config.lease)
        };
        let corosync = "membership = \"corosync\"\n";
        assert_eq!(fitted(corosync).unwrap(), token);
        assert_eq!(fitted(&format!("{corosync}lease = \"7s\"\n")).unwrap(), Duration::from_secs(7));
        let e = fitted(&format!("{corosync}lease = \"2s\"\n")).unwrap_err().to_string();
        assert!(e.starts_with("lockify.toml: line 2, column 1: ") && e.contains("5s"), "{e}");
    }
}
