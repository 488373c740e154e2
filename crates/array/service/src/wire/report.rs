//! The state of a device or a lock server, for people and scripts.

use lockify_array::ArrayState;
use serde::{Deserialize, Serialize};

/// A device's or lock server's report about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The newest state of the array that it knows.
    pub state: ArrayState,
    /// It serves hosts.
    pub serving: bool,
    /// Its blocks are the array's; a new device's are not. The log of a lock server has every lock.
    pub in_service: bool,
    /// The reason for its wait, if it does not serve.
    pub waits: Option<String>,
    /// The devices and witnesses that it has agreed with on who is there.
    pub members: Vec<u16>,
    /// The life of its process, by which the others know it. The log's number is larger than that of any life before.
    /// Until the process has it, the life is a random number above 2^63.
    pub life: u64,
    /// The number of its view, larger than that of any view before.
    pub view: Option<u64>,
    /// Devices and witnesses that are not in the view, with the reasons.
    pub out: Vec<(u16, String)>,
    /// Hosts that are connected: number and incarnation.
    pub hosts: Vec<(u32, u64)>,
    /// Requests of hosts that it has handled.
    pub requests: u64,
    /// Stripes that may have been written in when this device stopped, and have to be checked yet.
    pub unchecked: u64,
    /// How often the medium has not returned a block, since the process began.
    pub errors: u64,
    /// Blocks that it does not return now.
    pub unreadable: u64,
    /// Blocks that were written anew after such an error or loss.
    pub rewritten: u64,
    /// How often the medium has returned an older state of a block than was written last.
    pub lost_writes: u64,
    /// It has restarted, and hosts have not yet told it their unfinished writes. No other device of its group is given up
    /// meanwhile.
    pub unsettled: bool,
}

/// Somebody who is connected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Peer {
    /// A host of this number.
    Host(u32),
    /// A device or witness.
    Device(u16),
    /// A lock server.
    LockServer(u16),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Host(number) => write!(f, "host {number}"),
            Peer::Device(id) => write!(f, "device {id}"),
            Peer::LockServer(id) => write!(f, "lock server {id}"),
        }
    }
}

/// The release that a process runs, and the versions of arrays' messages that it speaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Software {
    /// The release.
    pub release: String,
    /// The newest version that it speaks, as its array's file lets it.
    pub newest: u16,
    /// The version that it speaks with each that is connected to it.
    pub spoken: Vec<(Peer, u16)>,
}
