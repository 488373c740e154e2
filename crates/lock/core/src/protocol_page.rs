//! docs/protocol.md says which messages there are: their numbers, classes and fields, and the types of these.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use lockify_shape::types_of;

use super::{Class, class};
use crate::message::{Body, Message};

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// The page has these in other tables: they are in answers to sessions, too.
const ELSEWHERE: [&str; 5] = ["LockInfo", "Mode", "Queue", "ResourceInfo", "Wait"];

/// The page has these in its text.
const NUMBERS: [(&str, &str); 3] = [("ClientId", "u64"), ("LockId", "u64"), ("NodeId", "u32")];

/// Names that the page has for simple types.
const SIMPLE: [(&str, &str); 8] = [
    ("LockFlags", "u32"),
    ("SbFlags", "u8"),
    ("Lvb", "list of u8"),
    ("Name", "bytes"),
    ("client", "ClientId"),
    ("lock", "LockId"),
    ("node", "NodeId"),
    ("time", "u64"),
];

/// The cells of the rows of the table whose head begins so.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(head).expect("the page has this table");
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with("| "));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The content of a cell, with simple types in the place of the page's names for them.
fn plain(cell: &str) -> String {
    let (mut plain, mut word) = (String::new(), String::new());
    for c in cell.chars().filter(|c| *c != '`').chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        // A colon follows the name of a field.
        let simple = SIMPLE.iter().find(|(name, _)| *name == word && c != ':');
        plain.push_str(simple.map_or(word.as_str(), |(_, simple)| simple));
        plain.push(c);
        word.clear();
    }
    plain.trim_end().to_owned()
}

/// A variant as the code has it.
fn variant(name: &str, fields: &str) -> String {
    if fields.is_empty() { plain(name) } else { format!("{}({})", plain(name), plain(fields)) }
}

#[test]
fn the_page_has_every_message() {
    let types = types_of::<Message>();
    let bodies = &types.iter().find(|t| t.name == "Body").expect("a message has a body").parts;
    let rows = table("| number | `Body` | class | fields |");
    let row = |row: &Vec<&str>| format!("{} {} {}", row[0], row[2], variant(row[1], row[3]));
    let page: Vec<String> = rows.iter().map(row).collect();
    for (i, variant) in bodies.iter().enumerate() {
        // After the number of the variant, a 1 can stand for whatever is read.
        let bytes = [&[i as u8][..], &[1; 99]].concat();
        let (body, _) = postcard::take_from_bytes::<Body>(&bytes).unwrap();
        let number = postcard::to_allocvec(&body).unwrap()[0];
        let class = match class(&body) {
            Class::Recovery => "recovery",
            Class::Search => "search",
            Class::Directory => "directory",
            Class::Request => "request",
            Class::Answer => "answer",
        };
        let code = format!("{number} {class} {variant}");
        assert_eq!(page.get(i), Some(&code), "docs/protocol.md, messages, number {i}");
    }
    assert_eq!(page.len(), bodies.len(), "docs/protocol.md, messages");
}

#[test]
fn the_page_has_every_type_in_the_messages() {
    let rows = table("| type | is |");
    let mut page: BTreeMap<String, String> =
        rows.iter().map(|row| (plain(row[0]), plain(row[1]))).collect();
    page.extend(NUMBERS.map(|(name, what)| (name.to_owned(), what.to_owned())));
    let types = types_of::<Message>();
    let is = |kind| if kind == "enum" { "enum: " } else { "" };
    let mut code: BTreeMap<&str, String> =
        types.iter().map(|t| (t.name, format!("{}{}", is(t.kind), t.parts.join(", ")))).collect();
    assert_eq!(code.len(), types.len(), "two types in the messages have the same name");
    for name in ["Body", "Message"].iter().chain(&ELSEWHERE) {
        assert!(code.remove(*name).is_some(), "{name} is in no message any more");
    }
    for (name, what) in &code {
        assert_eq!(page.get(*name), Some(what), "docs/protocol.md, types, {name}");
    }
    assert_eq!(page.len(), code.len(), "docs/protocol.md, types");
}
