//! The facts on which two programs must agree before one replaces the other.

use toml::{Table, Value};

use super::VERSION;
use crate::config::{Config, MembershipKind};

/// The settings that may not change when a daemon restarts with its locks, and the format of its
/// state.
pub(super) fn facts(config: &Config) -> Table {
    let text = |s: &dyn std::fmt::Display| Value::String(s.to_string());
    let nodes = config.nodes.iter().map(|n| format!("{} {}", n.id, n.address));
    let spaces = config.lockspaces.iter();
    // Nothing is handed over if there is a table of remote locks, nor is one added.
    let spaces = spaces.map(|s| {
        let table = s.table.as_ref().map_or(String::new(), |table| format!(" {}", table.display()));
        format!("{} {} {}{table}", s.name, s.policy.name(), s.lvb_len)
    });
    let list = |all: Vec<String>| Value::Array(all.into_iter().map(Value::String).collect());
    let membership = match config.membership {
        MembershipKind::Corosync => "corosync",
        _ => "static",
    };
    [
        ("image", Value::Integer(VERSION.into())),
        ("node", Value::Integer(config.node.into())),
        ("cluster", text(&config.cluster)),
        ("membership", text(&membership)),
        ("fence", text(&format_args!("{:?}", config.fence))),
        ("nodes", list(nodes.collect())),
        ("lease", text(&humantime::format_duration(config.lease))),
        ("weight", Value::Integer(config.weight.into())),
        ("shards", Value::Integer(config.shards.into())),
        ("socket", text(&config.socket.display())),
        ("lockspaces", list(spaces.collect())),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// Checks that a program with these facts can replace one with those facts.
///
/// # Errors
/// The difference, and the remedy.
pub(super) fn agree(now: &Table, before: &str) -> Result<(), String> {
    let before: Table = before.parse().map_err(|_| "the state is not one of a lock daemon")?;
    let image = |facts: &Table| facts.get("image").map_or_else(String::new, Value::to_string);
    if image(now) != image(&before) {
        return Err(format!(
            "the installed program reads state of version {}, and the running one writes version {}: \
             stop the daemon in order and start it again, its clients are told",
            image(now),
            image(&before)
        ));
    }
    let keys = now.keys().chain(before.keys());
    match keys.into_iter().find(|key| now.get(*key) != before.get(*key)) {
        None => Ok(()),
        Some(key) => Err(format!(
            "`{key}` in the configuration is not what the running daemon was started with: put it \
             back, or stop the daemon in order and start it again"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(extra: &str) -> Config {
        let nodes = "[[nodes]]\nid = 1\naddress = \"127.0.0.1:7430\"\n";
        Config::parse(&format!("node = 1\n{extra}\n{nodes}"), Path::new("test.toml")).unwrap()
    }

    #[test]
    fn what_may_change_may_and_what_may_not_is_named() {
        let before = facts(&config("")).to_string();
        agree(&facts(&config("")), &before).unwrap();
        agree(&facts(&config("[limits]\nmax_locks = 5")), &before).unwrap();
        let why = agree(&facts(&config("lease = \"7s\"")), &before).unwrap_err();
        assert!(why.contains("`lease`"), "{why}");
        let why = agree(&facts(&config("")), &before.replace("image = ", "image = 9")).unwrap_err();
        assert!(why.contains("reads state of version"), "{why}");
        assert!(agree(&facts(&config("")), "no facts").is_err());
        let more = format!("{before}\nnew = 1\n");
        assert!(agree(&facts(&config("")), &more).unwrap_err().contains("`new`"));
    }
}
