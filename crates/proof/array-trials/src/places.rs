//! The roles of the simulator's nodes. Devices come first, then the lock server, if there is one, then the hosts.

use lockify_array::{DeviceId, HostId, Peer};
use lockify_sim::NodeId;

/// Which node is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Devices, with those that only vote.
    pub devices: u16,
    /// True if the array has a lock server.
    pub server: bool,
    /// The number of hosts.
    pub hosts: u32,
}

/// The role of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// This device.
    Device(DeviceId),
    /// The lock server.
    Server,
    /// This host.
    Host(HostId),
}

impl Places {
    /// A device's node.
    pub fn device(self, device: DeviceId) -> NodeId {
        NodeId(device.0.into())
    }

    /// The lock server's node, whether or not there is one.
    pub fn server(self) -> NodeId {
        NodeId(self.devices.into())
    }

    /// A host's node.
    pub fn host(self, host: HostId) -> NodeId {
        NodeId(u32::from(self.devices) + u32::from(self.server) + host.0)
    }

    /// The role of a node.
    pub fn role(self, node: NodeId) -> Role {
        let devices = u32::from(self.devices);
        match node.0.checked_sub(devices) {
            None => Role::Device(DeviceId(node.0 as u16)),
            Some(0) if self.server => Role::Server,
            Some(n) => Role::Host(HostId(n - u32::from(self.server))),
        }
    }

    /// How many nodes there are.
    pub fn nodes(self) -> u32 {
        u32::from(self.devices) + u32::from(self.server) + self.hosts
    }

    /// All nodes that are devices.
    pub fn all_devices(self) -> impl Iterator<Item = NodeId> {
        (0..u32::from(self.devices)).map(NodeId)
    }

    /// All nodes that are hosts.
    pub fn all_hosts(self) -> impl Iterator<Item = NodeId> {
        (0..self.hosts).map(move |host| self.host(HostId(host)))
    }

    pub(super) fn peer(self, node: NodeId) -> Option<Peer> {
        match self.role(node) {
            Role::Device(device) => Some(Peer::Device(device)),
            Role::Server => Some(Peer::Server),
            Role::Host(_) => None,
        }
    }

    pub(super) fn node(self, peer: Peer) -> NodeId {
        match peer {
            Peer::Device(device) => self.device(device),
            Peer::Server => self.server(),
        }
    }
}
