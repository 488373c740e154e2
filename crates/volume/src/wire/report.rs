//! How a device or a lock server stands, for people and scripts.

use lockify_array::ArrayState;
use serde::{Deserialize, Serialize};

/// What a device or lock server says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The newest state of the array that it knows.
    pub state: ArrayState,
    /// It serves hosts.
    pub serving: bool,
    /// Its blocks are the array's; a new device's are not.
    pub in_service: bool,
    /// What it waits for, if it does not serve.
    pub waits: Option<String>,
    /// The devices and witnesses that it has agreed with on who is there.
    pub members: Vec<u16>,
    /// Its process's life, by which the others know it: the log's number, larger than that of any life before, or a random one above
    /// 2^63 until it has that.
    pub life: u64,
    /// The number of the view that it is in: larger than that of any view before.
    pub view: Option<u64>,
    /// Devices and witnesses that are not in the view, and why.
    pub out: Vec<(u16, String)>,
    /// Hosts that are connected: number and incarnation.
    pub hosts: Vec<(u32, u64)>,
    /// Requests of hosts that it has handled.
    pub requests: u64,
    /// Stripes that may have been written in when this device stopped, and have to be checked yet.
    pub unchecked: u64,
    /// It has restarted, and hosts that were writing then have not told it yet what that was: no other device of its group is
    /// given up meanwhile.
    pub unsettled: bool,
}
