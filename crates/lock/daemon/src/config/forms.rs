//! The form of each key of the configuration, for messages: the form of its value, and an example of it.

use std::borrow::Cow;

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// With its table, as `limits.max_locks`.
    pub key: &'static str,
    /// The form of its value.
    pub form: &'static str,
    /// A value, as it is written.
    pub example: &'static str,
}

const fn form(key: &'static str, form: &'static str, example: &'static str) -> Form {
    Form { key, form, example }
}

const NUMBER_OF_LOCKS: &str = "a number, 1 or more";
const COMMAND: &str = "a list: the program and its arguments";
const TIME_LIMIT: &str = "a time, 10ms to 1day";

/// All of them.
pub const FORMS: &[Form] = &[
    form("cluster", "a name of 1 to 64 bytes", "\"production\""),
    form("node", "the number of one of [[nodes]]", "1"),
    form("membership", "\"static\" or \"corosync\"", "\"static\""),
    form("port", "a port, 1 to 65535", "7430"),
    form("nodes_file", "the path of a file with [[nodes]]", "\"nodes.toml\""),
    form("shards", "a number, 1 to 64", "4"),
    form("weight", "a number, 0 or more", "1"),
    form("lease", "a time, 10ms to 1h", "\"4s\""),
    form("fence", "\"lease\", \"command\" or \"none\"", "\"lease\""),
    form("wire_version", "a version of the node protocol", "4"),
    form("delay", "a time, shorter than the lease", "\"10us\""),
    form("busy_poll", "a time, at most 1s", "\"50us\""),
    form("history", "the path of a file", "\"/var/log/lockify/history.jsonl\""),
    form("nodes.id", "a number, of no other node", "1"),
    form("nodes.address", "HOST:PORT, an IP address or a name", "\"192.0.2.1:7430\""),
    form("nodes.voter", "true or false", "false"),
    form("state_dir", "the path of a directory", "\"/var/lib/lockify\""),
    form("listen", "an IP address of this machine and a port", "\"0.0.0.0:7430\""),
    form("security.ca", "the path of a PEM file", "\"ca.pem\""),
    form("security.identity", "the path of a PEM file", "\"node.pem\""),
    form("security.cluster_key", "the path of a key file", "\"cluster.key\""),
    form(
        "security.plain_text",
        "these very words",
        "\"anybody who reaches the network may take and break locks\"",
    ),
    form("security.warn_days", "a number of days, 0 to 3650", "30"),
    form("fencing.command", COMMAND, "[\"/usr/sbin/fence\", \"{node}\"]"),
    form("fencing.time_limit", TIME_LIMIT, "\"60s\""),
    form("fencing.startup_wait", "a time, at most 1day", "\"30s\""),
    form("quorum_lost.action", "\"rejoin\" or \"exit\"", "\"rejoin\""),
    form("quorum_lost.command", COMMAND, "[\"/usr/bin/systemctl\", \"stop\", \"app\"]"),
    form("quorum_lost.time_limit", TIME_LIMIT, "\"60s\""),
    form("lockspace.name", "a name of 1 to 64 bytes, of no other lockspace", "\"backup\""),
    form(
        "lockspace.policy",
        "\"claim\", \"claim-strict\", \"directory\", \"broadcast\" or \"home\"",
        "\"claim\"",
    ),
    form("lockspace.lvb_len", "a number of bytes, 1 to 4096", "32"),
    form("lockspace.owner", "a user's name, or its number in quotes", "\"root\""),
    form("lockspace.group", "a group's name, or its number in quotes", "\"root\""),
    form("lockspace.mode", "three octal digits in quotes, of 666", "\"660\""),
    form("lockspace.deadlock_after", TIME_LIMIT, "\"5s\""),
    form("lockspace.fabric", "\"shm\"", "\"shm\""),
    form("lockspace.table", "the path of a table", "\"/dev/shm/locks\""),
    form("lockspace.hands", "a number, 1 to 256", "16"),
    form("socket", "a path of 1 to 107 bytes", "\"/run/lockify/lockify.sock\""),
    form("socket_mode", "three octal digits in quotes", "\"660\""),
    form("shutdown_grace", "a time, at most 1day", "\"2s\""),
    form("idle_exit", "a time", "\"5m\""),
    form("limits.max_sessions", NUMBER_OF_LOCKS, "1024"),
    form("limits.max_sessions_per_user", NUMBER_OF_LOCKS, "256"),
    form("limits.max_locks", NUMBER_OF_LOCKS, "1_000_000"),
    form("limits.max_locks_per_user", NUMBER_OF_LOCKS, "2_000_000"),
    form("limits.max_unread", "a number of bytes, 1 or more", "16_777_216"),
    form("log.format", "\"human\" or \"json\"", "\"json\""),
    form("log.level", "a level, and levels of parts", "\"info,lockify::request=debug\""),
    form("metrics.address", "a loopback address and a port", "\"127.0.0.1:9464\""),
    form("metrics.socket", "the path of a socket", "\"/run/lockify/metrics.sock\""),
];

/// The form of a key, whichever of several tables it is in (`nodes.1.address`).
pub(super) fn of(key: &str) -> Option<&'static Form> {
    let plain: Vec<&str> = key.split('.').filter(|step| step.parse::<usize>().is_err()).collect();
    let plain = plain.join(".");
    FORMS.iter().find(|form| form.key == plain)
}

/// How similar two words have to be for one to be meant where the other is written, as clap judges it.
const SIMILAR: f64 = 0.8;

/// The one of these words that was probably meant.
pub(super) fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.replace('-', "_").to_lowercase();
    among
        .map(|candidate| (strsim::jaro(&word, candidate), candidate))
        .filter(|(similar, _)| *similar > SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// The key that was probably meant by an unknown one of its table.
pub(super) fn meant(unknown: &str, here: &[&str]) -> Cow<'static, str> {
    if let Some(near) = nearest(unknown, here.iter().copied()) {
        return format!("did you mean `{near}`?").into();
    }
    let elsewhere = FORMS.iter().filter_map(|form| form.key.rsplit_once('.'));
    let last = |(_, key): &(&'static str, &'static str)| *key;
    let near = nearest(unknown, elsewhere.clone().map(|found| last(&found)));
    let tables: Vec<String> = elsewhere
        .filter(|found| Some(last(found)) == near)
        .map(|(table, key)| format!("`{key}` of {}", heading(table)))
        .collect();
    match tables.is_empty() {
        true => format!("the keys here are {}", here.join(", ")).into(),
        false => format!("did you mean {}?", tables.join(" or ")).into(),
    }
}

/// How a table begins.
fn heading(table: &str) -> String {
    match table {
        "nodes" | "lockspace" => format!("[[{table}]]"),
        _ => format!("[{table}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found() {
        let here = ["lease", "shards", "socket", "socket_mode", "metrics", "lockspace"];
        for (written, says) in [
            ("leese", "did you mean `lease`?"),
            ("socket-mode", "did you mean `socket_mode`?"),
            ("Shards", "did you mean `shards`?"),
            ("lockspaces", "did you mean `lockspace`?"),
            ("max_lock", "did you mean `max_locks` of [limits]?"),
            (
                "time_limits",
                "did you mean `time_limit` of [fencing] or `time_limit` of [quorum_lost]?",
            ),
            ("xyzzy", "the keys here are lease, shards, socket, socket_mode, metrics, lockspace"),
        ] {
            assert_eq!(meant(written, &here), says, "{written}");
        }
    }

    #[test]
    fn forms_are_found_in_arrays_of_tables() {
        assert_eq!(of("nodes.3.address").unwrap().key, "nodes.address");
        assert_eq!(of("limits"), None);
    }
}
