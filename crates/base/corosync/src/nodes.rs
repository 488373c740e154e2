//! The cluster's list of nodes, from cmap.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};

use crate::api::{Api, Handle};
use crate::error::{Error, check};

/// `CMAP_KEYNAME_MAXLEN`, and the zero.
const KEY: usize = 256;
/// The value of `CMAP_VALUETYPE_STRING`.
const STRING: c_int = 11;
const PREFIX: &str = "nodelist.node.";
/// The value of `INTERFACE_MAX`.
const MOST_LINKS: u8 = 8;

/// A node of `nodelist` in corosync.conf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The node's number, `nodeid` in corosync.conf.
    pub id: u32,
    /// `name`, if it has one.
    pub name: Option<String>,
    /// `ring0_addr` to `ring7_addr`, those that it has, by link.
    pub links: Vec<LinkAddress>,
    /// `quorum_votes`, by default 1.
    pub votes: u32,
}

/// Where a node is on one of corosync's links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkAddress {
    /// The link's number: that of `ring0_addr` is 0.
    pub link: u8,
    /// An address, or a name to be resolved.
    pub address: String,
}

/// Corosync's knowledge of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// This node's id.
    pub me: u32,
    /// `totem.cluster_name`, if it has one.
    pub cluster: Option<String>,
    /// The nodes, by id.
    pub nodes: Vec<Node>,
    /// The time-out of its token that it uses, in milliseconds, if it tells.
    pub token: Option<u32>,
    /// Its rules may let nodes go on that have no more than half of all votes.
    pub minorities: bool,
}

fn links(fields: &BTreeMap<String, String>) -> Vec<LinkAddress> {
    let of = |link: u8| {
        let address = fields.get(&format!("ring{link}_addr"))?.clone();
        Some(LinkAddress { link, address })
    };
    (0..MOST_LINKS).filter_map(of).collect()
}

/// Reads `nodelist` and the cluster's name.
pub(crate) fn read(api: &Api, cmap: Handle, me: u32) -> Result<Nodes, Error> {
    let mut found = BTreeMap::<String, BTreeMap<String, String>>::new();
    for key in keys(api, cmap)? {
        // nodelist.node.POSITION.FIELD
        let Some((position, field)) = key[PREFIX.len()..].split_once('.') else { continue };
        if let Some(value) = get(api, cmap, &key)? {
            found.entry(position.into()).or_default().insert(field.into(), value);
        }
    }
    let mut nodes = Vec::new();
    for (position, fields) in &found {
        let number = |field: &str| fields.get(field).and_then(|v| v.parse().ok());
        let links = links(fields);
        let Some(id) = number("nodeid").filter(|_| !links.is_empty()) else {
            return Err(Error::Setup(format!(
                "node {position} of nodelist in corosync.conf lacks a nodeid, or an address \
                 (ring0_addr, or that of another link): give it both"
            )));
        };
        let (name, votes) = (fields.get("name").cloned(), number("quorum_votes").unwrap_or(1));
        nodes.push(Node { id, name, links, votes });
    }
    nodes.sort_unstable_by_key(|n| n.id);
    if !nodes.iter().any(|n| n.id == me) {
        return Err(Error::Setup(format!(
            "corosync.conf has no nodelist with this node ({me}): list every node there"
        )));
    }
    let cluster = get(api, cmap, "totem.cluster_name")?;
    // Nothing depends on it but a check: without it, there is none.
    let token = get(api, cmap, "runtime.config.totem.token").ok().flatten();
    let token = token.and_then(|ms| ms.parse().ok());
    let minorities = allows_minorities(api, cmap)?;
    Ok(Nodes { me, cluster, nodes, token, minorities })
}

/// Returns true if a rule of votequorum(5) is in use that does not go by more than half of the votes of
/// nodelist.
fn allows_minorities(api: &Api, cmap: Handle) -> Result<bool, Error> {
    const RULES: [&str; 4] =
        ["two_node", "last_man_standing", "auto_tie_breaker", "allow_downscale"];
    for rule in RULES {
        let value = get(api, cmap, &format!("quorum.{rule}"))?;
        if value.is_some_and(|v| v != "0") {
            return Ok(true);
        }
    }
    Ok(get(api, cmap, "quorum.device.model")?.is_some())
}

fn keys(api: &Api, cmap: Handle) -> Result<Vec<String>, Error> {
    let prefix = CString::new(PREFIX).unwrap_or_default();
    let (mut iterator, mut keys) = (0, Vec::new());
    // SAFETY: the pointers are to live variables, the string ends with a zero.
    let code = unsafe { (api.cmap_iter_init)(cmap, prefix.as_ptr(), &mut iterator) };
    check("cmap_iter_init", code)?;
    loop {
        let (mut name, mut len, mut kind) = ([0u8; KEY], 0, 0);
        // SAFETY: `name` has room for the longest key and its zero (cmap.h).
        let code = unsafe {
            (api.cmap_iter_next)(cmap, iterator, name.as_mut_ptr().cast(), &mut len, &mut kind)
        };
        if check("cmap_iter_next", code).is_err() {
            break;
        }
        let end = name.iter().position(|b| *b == 0).unwrap_or(KEY);
        keys.push(String::from_utf8_lossy(&name[..end]).into_owned());
    }
    // SAFETY: the iterator is this function's.
    let _ = unsafe { (api.cmap_iter_finalize)(cmap, iterator) };
    keys.retain(|k| k.starts_with(PREFIX));
    Ok(keys)
}

/// A value as text: a string, or a number of four bytes at most, or of one.
fn get(api: &Api, cmap: Handle, key: &str) -> Result<Option<String>, Error> {
    let Ok(name) = CString::new(key) else { return Ok(None) };
    let (mut value, mut len, mut kind) = ([0u8; 1024], 1024, 0);
    let pointer: *mut c_void = value.as_mut_ptr().cast();
    // SAFETY: `len` is the size of `value`, and becomes the length of the written data.
    let code = unsafe { (api.cmap_get)(cmap, name.as_ptr(), pointer, &mut len, &mut kind) };
    match check("cmap_get", code) {
        Ok(()) => {}
        Err(e) if e.is_absence() => return Ok(None),
        Err(e) => return Err(e),
    }
    let value = &value[..len.min(1024)];
    Ok(Some(match (kind, value.first_chunk::<4>()) {
        (STRING, _) => {
            let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
            String::from_utf8_lossy(&value[..end]).into_owned()
        }
        (_, Some(bytes)) => u32::from_ne_bytes(*bytes).to_string(),
        (_, None) => value.first().copied().unwrap_or(0).to_string(),
    }))
}
