//! docs/configuration.md agrees with the code: the same keys, the same defaults, an example that is
//! understood.

use std::collections::BTreeSet;
use std::path::Path;

use lockify_daemon::{Config, FORMS, Form};

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

/// A row of one of the page's tables.
#[derive(Debug)]
struct Row {
    key: String,
    default: String,
    reload: String,
}

/// The rows, with the tables' names before their keys.
fn rows() -> Vec<Row> {
    let mut table = String::new();
    let mut rows = Vec::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            // "## `[[nodes]]`: ..."
            let name = heading.strip_prefix("`[").and_then(|h| h.split_once("]`"));
            let name = name.map(|(n, _)| n.trim_matches(|c| c == '[' || c == ']'));
            table = name.map_or_else(String::new, |n| format!("{n}."));
        }
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let Some(key) = cells[0].strip_prefix("| `").and_then(|k| k.strip_suffix('`')) else {
            continue;
        };
        assert_eq!(cells.len(), 5, "a row has five cells: {line}");
        let text = |i: usize| cells[i].trim_matches('`').to_owned();
        rows.push(Row { key: format!("{table}{key}"), default: text(2), reload: text(3) });
    }
    rows
}

/// The keys in the parser's error about an unknown one.
fn known(text: &str) -> Option<Vec<String>> {
    let e = Config::parse(text, Path::new("x")).err()?.to_string();
    let (_, known) = e.split_once("there is no key `no_such_key` here: the keys here are ")?;
    Some(known.split(';').next()?.split(", ").map(str::to_owned).collect())
}

/// Every key that the parser knows; tables by their keys.
fn all_keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for key in known("no_such_key = 1\n").expect("an unknown key is refused") {
        let inside =
            [format!("[{key}]\nno_such_key = 1\n"), format!("[[{key}]]\nno_such_key = 1\n")];
        match inside.iter().find_map(|text| known(text)) {
            Some(fields) => keys.extend(fields.iter().map(|f| format!("{key}.{f}"))),
            None => drop(keys.insert(key)),
        }
    }
    keys
}

#[test]
fn the_page_has_every_key_and_no_other() {
    let keys = all_keys();
    assert!(keys.contains("limits.max_locks") && keys.contains("nodes.address"), "{keys:?}");
    let page: BTreeSet<String> = rows().into_iter().map(|r| r.key).collect();
    assert_eq!(page.len(), rows().len(), "a key is there twice");
    assert_eq!(page, keys);
}

/// A configuration to which one key can be added, and its meaning then.
fn with(key: &str, value: &str) -> String {
    let (table, key) = key.split_once('.').unwrap_or(("", key));
    let line = format!("{key} = {value}\n");
    let own = |name: &str| if table == name { line.as_str() } else { "" };
    let plain = if ["", "nodes", "lockspace"].contains(&table) {
        own("").to_owned()
    } else {
        format!("{table}.{line}")
    };
    let text = format!(
        "node = 1\n{plain}[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n{}\
         [[lockspace]]\nname = \"default\"\n{}",
        own("nodes"),
        own("lockspace")
    );
    format!("{:?}", Config::parse(&text, Path::new("x")).unwrap_or_else(|e| panic!("{e}\n{text}")))
}

#[test]
fn the_defaults_are_those_of_the_page() {
    let plain = with("shards", "1");
    let mut checked = 0;
    for Row { key, default, .. } in rows() {
        // "none", "needed" and words for a default that is no constant.
        if toml::from_str::<toml::Table>(&format!("x = {default}\n")).is_err() {
            assert!(["none", "needed"].contains(&&*default) || default.contains(' '), "{key}");
            continue;
        }
        assert_eq!(with(&key, &default), plain, "{key} = {default}");
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
}

/// A message about any key has a form and an example to show, and the example is good.
#[test]
fn every_key_has_an_example_that_is_understood() {
    let forms: BTreeSet<String> = FORMS.iter().map(|form| form.key.to_owned()).collect();
    assert_eq!(forms, all_keys());
    for Form { key, example, .. } in FORMS {
        let value = toml::from_str::<toml::Table>(&format!("x = {example}\n"));
        assert!(value.is_ok(), "{key} = {example}");
        // Those that need another key beside them, or a file.
        let alone = [
            "nodes_file",
            "security.ca",
            "security.identity",
            "fencing.command",
            "lockspace.fabric",
            "lockspace.table",
        ];
        let there = ["node", "nodes.id", "nodes.address", "lockspace.name"];
        if !alone.contains(key) && !there.contains(key) {
            with(key, example);
        }
    }
}

#[test]
fn the_example_is_understood() {
    let (_, example) = PAGE.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let config = Config::parse(example, Path::new("x")).unwrap();
    assert_eq!((config.node, config.nodes.len(), config.lockspaces.len()), (1, 3, 2));
}

#[test]
fn what_reload_does_is_told_of_every_key() {
    for Row { key, reload, .. } in rows() {
        let told = if Config::changes_while_running(&key) { "yes" } else { "restart" };
        assert_eq!(reload, told, "{key}");
    }
}
