//! The roles of the simulator's nodes. Devices come first, then the lock servers, if there are any, then the hosts.

use lockify_array::{DeviceId, HostId, Peer, ServerId};
use lockify_sim::NodeId;

/// Which node is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Devices, with those that only vote, and those of groups that the array gets later.
    pub devices: u16,
    /// Those of them that vote: the first ones. Devices of groups that come later do not.
    pub voters: u16,
    /// The number of lock servers.
    pub servers: u16,
    /// The number of hosts.
    pub hosts: u32,
}

/// The role of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// This device.
    Device(DeviceId),
    /// This lock server.
    Server(ServerId),
    /// This host.
    Host(HostId),
}

impl Places {
    /// A device's node.
    pub fn device(self, device: DeviceId) -> NodeId {
        NodeId(device.0.into())
    }

    /// A lock server's node.
    pub fn server(self, server: ServerId) -> NodeId {
        NodeId(u32::from(self.devices) + u32::from(server.0))
    }

    /// A host's node.
    pub fn host(self, host: HostId) -> NodeId {
        NodeId(u32::from(self.devices) + u32::from(self.servers) + host.0)
    }

    /// The role of a node.
    pub fn role(self, node: NodeId) -> Role {
        let (devices, servers) = (u32::from(self.devices), u32::from(self.servers));
        match node.0.checked_sub(devices) {
            None => Role::Device(DeviceId(node.0 as u16)),
            Some(n) if n < servers => Role::Server(ServerId(n as u16)),
            Some(n) => Role::Host(HostId(n - servers)),
        }
    }

    /// How many nodes there are.
    pub fn nodes(self) -> u32 {
        u32::from(self.devices) + u32::from(self.servers) + self.hosts
    }

    /// All nodes that are devices.
    pub fn all_devices(self) -> impl Iterator<Item = NodeId> {
        (0..u32::from(self.devices)).map(NodeId)
    }

    /// All nodes that are devices that vote.
    pub fn all_voters(self) -> impl Iterator<Item = NodeId> {
        (0..u32::from(self.voters)).map(NodeId)
    }

    /// All nodes that are lock servers.
    pub fn all_servers(self) -> impl Iterator<Item = NodeId> {
        (0..self.servers).map(move |server| self.server(ServerId(server)))
    }

    /// All nodes that are hosts.
    pub fn all_hosts(self) -> impl Iterator<Item = NodeId> {
        (0..self.hosts).map(move |host| self.host(HostId(host)))
    }

    pub(super) fn peer(self, node: NodeId) -> Option<Peer> {
        match self.role(node) {
            Role::Device(device) => Some(Peer::Device(device)),
            Role::Server(_) | Role::Host(_) => None,
        }
    }

    /// The node of a device that gets a host's request. Lock servers get others.
    pub(super) fn node(self, peer: Peer) -> Option<NodeId> {
        match peer {
            Peer::Device(device) => Some(self.device(device)),
            Peer::Server => None,
        }
    }
}
