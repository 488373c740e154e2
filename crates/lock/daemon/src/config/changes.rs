//! The differences between two configurations, and which of them can change while the daemon runs.

use std::path::Path;

use super::place::Source;
use super::{
    Config, Fencing, Limits, Logging, Metrics, Protection, QuorumLost, SecurityEntry, SpaceEntry,
};

/// Keys that can change while the daemon runs; `docs/configuration.md` says why others cannot.
const CHANGEABLE: [&str; 22] = [
    "busy_poll",
    "fencing.command",
    "fencing.time_limit",
    "idle_exit",
    "limits.max_locks",
    "limits.max_locks_per_user",
    "limits.max_sessions",
    "limits.max_sessions_per_user",
    "limits.max_unread",
    "lockspace.deadlock_after",
    "lockspace.group",
    "lockspace.mode",
    "lockspace.owner",
    "quorum_lost.action",
    "quorum_lost.command",
    "quorum_lost.time_limit",
    "security.ca",
    "security.cluster_key",
    "security.identity",
    "security.warn_days",
    "shutdown_grace",
    "wire_version",
];

/// The keys whose values differ.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Those that can change while the daemon runs.
    pub possible: Vec<String>,
    /// Those that need a restart.
    pub restart: Vec<String>,
}

impl Changes {
    /// A key; `shown` says of which table, if there are several.
    fn note(&mut self, key: &str, shown: &str, differs: bool) {
        match differs {
            true if CHANGEABLE.contains(&key) => self.possible.push(shown.into()),
            true => self.restart.push(shown.into()),
            false => {}
        }
    }
}

impl Config {
    /// Returns true if a key, named as `limits.max_locks`, can change while the daemon runs.
    pub fn changes_while_running(key: &str) -> bool {
        CHANGEABLE.contains(&key)
    }

    /// The file that it was read from.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.source.as_ref().map(Source::path)
    }

    /// The differences to another configuration. Equal meanings are no difference, for example a
    /// default that is written down.
    pub fn changes(&self, new: &Config) -> Changes {
        // All by their names, so that none is forgotten.
        let Config {
            cluster,
            node,
            membership,
            port,
            fence,
            fencing,
            quorum_lost,
            nodes,
            // Its content counts.
            state_dir,
            listen,
            nodes_file: _,
            security,
            lockspaces,
            socket,
            socket_mode,
            shards,
            weight,
            lease,
            wire_version: _,
            delay,
            busy_poll,
            history,
            limits,
            log,
            metrics,
            shutdown_grace,
            idle_exit,
            source: _,
        } = self;
        let mut found = Changes::default();
        let mut note = |key: &str, differs: bool| found.note(key, key, differs);
        note("cluster", *cluster != new.cluster);
        note("node", *node != new.node);
        note("membership", *membership != new.membership);
        note("port", *port != new.port);
        note("fence", *fence != new.fence);
        note("state_dir", *state_dir != new.state_dir);
        note("listen", *listen != new.listen);
        note("nodes", sorted(nodes) != sorted(&new.nodes));
        note("socket", *socket != new.socket);
        note("socket_mode", *socket_mode != new.socket_mode);
        note("shards", *shards != new.shards);
        note("weight", *weight != new.weight);
        note("lease", *lease != new.lease);
        note("delay", *delay != new.delay);
        note("busy_poll", *busy_poll != new.busy_poll);
        note("history", *history != new.history);
        note("shutdown_grace", *shutdown_grace != new.shutdown_grace);
        note("idle_exit", *idle_exit != new.idle_exit);
        let (speaks, shall) = (self.newest_version(), new.newest_version());
        note("wire_version", speaks < shall);
        if speaks > shall {
            // Work under way may be of the newer one only.
            found.restart.push("wire_version (lowered)".into());
        }
        let mut note = |key: &str, differs: bool| found.note(key, key, differs);
        let Fencing { command, time_limit, startup_wait } = fencing;
        note("fencing.command", *command != new.fencing.command);
        note("fencing.time_limit", *time_limit != new.fencing.time_limit);
        note("fencing.startup_wait", *startup_wait != new.fencing.startup_wait);
        let QuorumLost { action, command, time_limit } = quorum_lost;
        note("quorum_lost.action", *action != new.quorum_lost.action);
        note("quorum_lost.command", *command != new.quorum_lost.command);
        note("quorum_lost.time_limit", *time_limit != new.quorum_lost.time_limit);
        let Limits {
            max_sessions,
            max_sessions_per_user,
            max_locks,
            max_locks_per_user,
            max_unread,
        } = limits;
        note("limits.max_sessions", *max_sessions != new.limits.max_sessions);
        let per_user = new.limits.max_sessions_per_user;
        note("limits.max_sessions_per_user", *max_sessions_per_user != per_user);
        note("limits.max_locks", *max_locks != new.limits.max_locks);
        note("limits.max_locks_per_user", *max_locks_per_user != new.limits.max_locks_per_user);
        note("limits.max_unread", *max_unread != new.limits.max_unread);
        let Logging { format, level } = log;
        note("log.format", *format != new.log.format);
        note("log.level", *level != new.log.level);
        let Metrics { address, socket } = metrics;
        note("metrics.address", *address != new.metrics.address);
        note("metrics.socket", *socket != new.metrics.socket);
        security.changes(&new.security, &mut found);
        spaces(lockspaces, &new.lockspaces, &mut found);
        found
    }
}

fn sorted(nodes: &[super::NodeEntry]) -> Vec<(u32, &super::Address, bool)> {
    let mut nodes: Vec<_> = nodes.iter().map(|n| (n.id, &n.address, n.voter)).collect();
    nodes.sort_unstable();
    nodes
}

impl SecurityEntry {
    fn changes(&self, new: &SecurityEntry, found: &mut Changes) {
        let SecurityEntry { ca, identity, cluster_key, plain_text, warn_days } = self;
        let differing = [
            ("security.ca", *ca != new.ca),
            ("security.identity", *identity != new.identity),
            ("security.cluster_key", *cluster_key != new.cluster_key),
            ("security.plain_text", *plain_text != new.plain_text),
        ];
        found.note("security.warn_days", "security.warn_days", *warn_days != new.warn_days);
        // With keys and without are two ways to talk.
        let tls = |entry: &SecurityEntry| matches!(entry.protection(), Ok(Protection::Tls(_)));
        for (key, differs) in differing {
            match differs && tls(self) != tls(new) {
                true => found.restart.push(key.into()),
                false => found.note(key, key, differs),
            }
        }
    }
}

fn spaces(old: &[SpaceEntry], new: &[SpaceEntry], found: &mut Changes) {
    let gone = |there: &[SpaceEntry], s: &SpaceEntry| !there.iter().any(|t| t.name == s.name);
    for space in old.iter().filter(|s| gone(new, s)) {
        found.restart.push(format!("lockspace {:?} (removed)", space.name));
    }
    for space in new.iter().filter(|s| gone(old, s)) {
        found.restart.push(format!("lockspace {:?} (added)", space.name));
    }
    for (old, new) in old.iter().filter_map(|o| Some((o, new.iter().find(|n| n.name == o.name)?))) {
        let SpaceEntry {
            name,
            policy,
            lvb_len,
            owner,
            group,
            mode,
            deadlock_after,
            fabric,
            table,
            hands,
        } = old;
        for (key, differs) in [
            ("policy", *policy != new.policy),
            ("lvb_len", *lvb_len != new.lvb_len),
            ("owner", *owner != new.owner),
            ("group", *group != new.group),
            ("mode", *mode != new.mode),
            ("deadlock_after", *deadlock_after != new.deadlock_after),
            ("fabric", *fabric != new.fabric),
            ("table", *table != new.table),
            ("hands", *hands != new.hands),
        ] {
            let shown = format!("{key} of lockspace {name:?}");
            found.note(&format!("lockspace.{key}"), &shown, differs);
        }
    }
}
