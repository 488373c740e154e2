//! The nodes that an array's hosts run on. Cluster managers fence nodes, and an array fences hosts. So its state says which
//! hosts each node has (docs/design/array.md 3.2).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes: that of a machine (HOST_NAME_MAX).
const LONGEST: usize = 64;
/// How many hosts may be listed.
const MOST_HOSTS: usize = 4096;
/// How many names are remembered.
const MOST_NODES: usize = 1024;

/// The name of a node, as a cluster manager has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NodeName {
    bytes: [u8; LONGEST],
    length: u8,
}

impl NodeName {
    /// The name.
    pub fn as_str(&self) -> &str {
        // It was made of ASCII.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// The name that a machine has. Characters that no name of a node has become underscores.
    pub fn of_machine(name: &[u8]) -> NodeName {
        let name = if name.is_empty() { b"unnamed" } else { name };
        let mut node = NodeName { bytes: [0; LONGEST], length: name.len().min(LONGEST) as u8 };
        for (to, from) in node.bytes.iter_mut().zip(name) {
            *to = if is_of_names(*from) { *from } else { b'_' };
        }
        node
    }
}

/// Lists of fence agents separate names by commas and blanks.
fn is_of_names(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b",;=\"'\\".contains(&byte)
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeName, String> {
        if (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_of_names) {
            return Ok(NodeName::of_machine(text.as_bytes()));
        }
        let start: String = text.chars().take(LONGEST + 1).collect();
        Err(format!(
            "{start:?} is no node's name: it has 1 to {LONGEST} ASCII characters, no blank, quote, backslash, or one of , ; ="
        ))
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(text: String) -> Result<NodeName, String> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.as_str().to_owned()
    }
}

/// What a host attaches for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Usage {
    /// It keeps no content, as a scrub or a rebuild. It disturbs nobody.
    Upkeep,
    /// Other hosts may change what it reads.
    Shared,
    /// It relies on being the only one that writes, as a file system for one machine does.
    Exclusive,
}

impl Usage {
    /// Returns true if both cannot have the array at the same time.
    pub fn excludes(self, other: Usage) -> bool {
        let both = [self, other];
        both.contains(&Usage::Exclusive) && !both.contains(&Usage::Upkeep)
    }
}

/// A host that has attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Listed {
    number: u32,
    /// The random number under which it has attached.
    by: u64,
    usage: Usage,
}

/// A node that hosts have been on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its hosts that have neither ended in order nor been fenced.
    hosts: Vec<Listed>,
}

impl Node {
    /// The numbers of its hosts that have neither ended in order nor been fenced.
    pub fn hosts(&self) -> impl Iterator<Item = u32> {
        self.hosts.iter().map(|host| host.number)
    }

    /// As releases without [`Usage`] had it.
    pub(crate) fn of_earlier(name: NodeName, hosts: Vec<(u32, u64)>) -> Node {
        let usage = Usage::Shared;
        Node {
            name,
            hosts: hosts.into_iter().map(|(number, by)| Listed { number, by, usage }).collect(),
        }
    }
}

/// All nodes of an array, in the order of the last attachments: the newest one comes last.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Nodes(Box<[Node]>);

impl FromIterator<Node> for Nodes {
    fn from_iter<I: IntoIterator<Item = Node>>(nodes: I) -> Nodes {
        Nodes(nodes.into_iter().collect())
    }
}

impl Nodes {
    /// All nodes that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.0.iter()
    }

    /// The node of this name, if any of its hosts has ever attached.
    pub fn get(&self, name: NodeName) -> Option<&Node> {
        self.0.iter().find(|node| node.name == name)
    }

    /// The node that has a host.
    pub fn of_host(&self, host: u32) -> Option<&Node> {
        self.0.iter().find(|node| node.hosts().any(|listed| listed == host))
    }

    /// Returns true if a host has attached under this random number, and is listed.
    pub(crate) fn has(&self, host: u32, by: u64) -> bool {
        let is_it = |listed: &Listed| (listed.number, listed.by) == (host, by);
        self.0.iter().any(|node| node.hosts.iter().any(is_it))
    }

    /// The hosts of a usage, each with its node's name.
    pub fn of_usage(
        &self,
        is_meant: impl Fn(Usage) -> bool,
    ) -> impl Iterator<Item = (u32, NodeName)> {
        self.0.iter().flat_map(move |node| {
            let meant = node.hosts.iter().filter(|host| is_meant(host.usage));
            meant.map(|host| (host.number, node.name)).collect::<Vec<_>>()
        })
    }

    /// Why a host cannot attach for this: another one excludes it.
    fn exclusion(&self, usage: Usage) -> Option<String> {
        let (host, node) = self.of_usage(|other| other.excludes(usage)).next()?;
        let why = match usage {
            Usage::Exclusive => "uses the array, which is to be exclusive",
            _ => "has the array for itself (--exclusive)",
        };
        Some(format!(
            "host {host} on node {node} {why}: end it; or fence it if it is gone (`lockify array fence --host {host}`)"
        ))
    }

    /// With one more host, unless another one excludes it. Names of nodes without a host make room for new ones, the oldest
    /// first.
    pub(crate) fn with(
        &self,
        name: NodeName,
        number: u32,
        by: u64,
        usage: Usage,
    ) -> Result<Nodes, String> {
        if let Some(why) = self.exclusion(usage) {
            return Err(why);
        }
        let listed: usize = self.0.iter().map(|node| node.hosts.len()).sum();
        if listed >= MOST_HOSTS {
            return Err(format!(
                "{listed} hosts have attached and have not ended: fence those that are gone (lockify array fence)"
            ));
        }
        let mut nodes = self.0.to_vec();
        let known = nodes.iter().position(|node| node.name == name);
        let mut node = match known {
            Some(index) => nodes.remove(index),
            None => Node { name, hosts: Vec::new() },
        };
        if nodes.len() >= MOST_NODES {
            let idle = nodes.iter().position(|node| node.hosts.is_empty());
            let idle = idle.ok_or_else(|| {
                format!(
                    "{MOST_NODES} nodes have hosts: fence those that are gone (lockify array fence)"
                )
            })?;
            nodes.remove(idle);
        }
        node.hosts.push(Listed { number, by, usage });
        nodes.push(node);
        Ok(Nodes(nodes.into()))
    }

    /// Without a host that has ended or is fenced; `None` if it is not listed.
    pub(crate) fn without(&self, host: u32) -> Option<Nodes> {
        self.of_host(host)?;
        let mut nodes = self.clone();
        nodes.0.iter_mut().for_each(|node| node.hosts.retain(|listed| listed.number != host));
        Some(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Usage = Usage::Shared;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_those_of_machines() {
        for good in ["a", "node-1.example.org", "(none)", &"x".repeat(64)] {
            assert_eq!(name(good).to_string(), *good);
            let bytes = postcard::to_allocvec(&name(good)).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(name(good)));
        }
        for bad in ["", "a b", "a,b", "a=b", "knoten-ä", "line\n", &"x".repeat(65)] {
            assert!(bad.parse::<NodeName>().unwrap_err().contains("is no node's name"), "{bad}");
            let bytes = postcard::to_allocvec(bad).unwrap();
            assert!(postcard::from_bytes::<NodeName>(&bytes).is_err(), "{bad}");
        }
        assert_eq!(NodeName::of_machine("ä b".as_bytes()), name("___b"));
        assert_eq!(NodeName::of_machine(b""), name("unnamed"));
        assert_eq!(NodeName::of_machine(&[b'x'; 99]).as_str().len(), 64);
    }

    #[test]
    fn a_node_has_the_hosts_that_have_not_ended() {
        let nodes = Nodes::default()
            .with(name("a"), 1, 7, SHARED)
            .unwrap()
            .with(name("b"), 2, 8, SHARED)
            .unwrap();
        let nodes = nodes.with(name("a"), 3, 9, SHARED).unwrap();
        let hosts = |nodes: &Nodes, node| nodes.get(node).unwrap().hosts().collect::<Vec<_>>();
        assert_eq!(hosts(&nodes, name("a")), [1, 3]);
        assert!(nodes.has(3, 9) && !nodes.has(3, 8));
        assert_eq!(nodes.of_host(2).unwrap().name, name("b"));
        let fewer = nodes.without(2).unwrap();
        assert_eq!(hosts(&fewer, name("b")), []);
        assert_eq!((fewer.without(2), fewer.get(name("c"))), (None, None));
    }

    #[test]
    fn a_host_that_has_the_array_for_itself_is_alone_but_for_upkeep() {
        let all = [Usage::Upkeep, Usage::Shared, Usage::Exclusive];
        for first in all {
            let nodes = Nodes::default().with(name("a"), 1, 7, first).unwrap();
            for second in all {
                let apart =
                    [(first, second), (second, first)].contains(&(Usage::Exclusive, SHARED));
                let twice = first == Usage::Exclusive && second == first;
                let made = nodes.with(name("b"), 2, 8, second);
                assert_eq!(made.is_err(), apart || twice, "{first:?} {second:?}");
                // It is gone.
                assert!(nodes.without(1).unwrap().with(name("b"), 2, 8, second).is_ok());
            }
        }
        let one = Nodes::default().with(name("a"), 1, 7, Usage::Exclusive).unwrap();
        let why = one.with(name("b"), 2, 8, SHARED).unwrap_err();
        assert!(why.contains("host 1 on node a has the array for itself"), "{why}");
        assert_eq!(
            one.of_usage(|usage| usage != Usage::Upkeep).collect::<Vec<_>>(),
            [(1, name("a"))]
        );
    }

    #[test]
    fn neither_hosts_nor_names_grow_without_bound() {
        let mut nodes = Nodes::default();
        for number in 0..MOST_NODES as u32 {
            nodes = nodes.with(name(&format!("n{number}")), number, 1, SHARED).unwrap();
        }
        let why = nodes.with(name("more"), 5000, 1, SHARED).unwrap_err();
        assert!(why.contains("1024 nodes have hosts: fence"), "{why}");
        nodes = nodes.without(7).unwrap().with(name("more"), 5000, 1, SHARED).unwrap();
        assert_eq!((nodes.get(name("n7")), nodes.iter().count()), (None, MOST_NODES));
        for number in 0..(MOST_HOSTS - MOST_NODES) as u32 {
            nodes = nodes.with(name("more"), 6000 + number, 1, SHARED).unwrap();
        }
        let why = nodes.with(name("more"), 5001, 1, SHARED).unwrap_err();
        assert!(why.contains("4096 hosts have attached"), "{why}");
    }
}
