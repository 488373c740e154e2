//! The present devices: the node's membership service, over the connections of devices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockify_array::DeviceId;
use lockify_core::NodeId;
use lockify_node::FenceKind;
use lockify_node::membership::{Action, Event, Membership, StaticConfig, StaticMembership, Vote};

use crate::ArrayFile;
use crate::clock::{incarnation, monotonic};

/// The time limit for finding out that a process of this machine is gone. The answer comes at once or not at all.
const LOOK: Duration = Duration::from_millis(20);
/// How many times longer a device may take to be there for the first time.
const STARTING: u32 = 10;
/// How often that is looked at.
const LOOKS: Duration = Duration::from_millis(200);

/// An order from the membership service.
#[derive(Debug)]
pub(super) enum Order {
    Send {
        to: DeviceId,
        vote: Vote,
    },
    /// The connection is of no use.
    Disconnect(DeviceId),
    /// This device may not act: every connection is to be closed.
    Halt(String),
}

/// A device's part in the membership.
pub(super) struct Members {
    service: Box<dyn Membership + Send>,
    me: DeviceId,
    life: u64,
    addresses: BTreeMap<DeviceId, SocketAddr>,
    connected: BTreeSet<DeviceId>,
    /// Since when others are not in the view.
    missing: BTreeMap<DeviceId, Instant>,
    /// Those who have been in one since this process began.
    met: BTreeSet<DeviceId>,
    /// Those on this machine that are out of reach, and not known to be gone.
    lost: BTreeSet<DeviceId>,
    looked: Instant,
}

impl Members {
    pub fn new(file: &ArrayFile, me: DeviceId) -> Members {
        let life = incarnation();
        let config = StaticConfig {
            node: NodeId(me.0.into()),
            life,
            weight: 1,
            nodes: file.voters().map(|entry| NodeId(entry.id.into())).collect(),
            lease: file.timing.lease_ms * 1_000_000,
            fence: FenceKind::Lease,
        };
        let addresses = file.voters().map(|entry| (DeviceId(entry.id), entry.address));
        let now = Instant::now();
        let others = file.voters().map(|entry| DeviceId(entry.id)).filter(|&id| id != me);
        Members {
            service: Box::new(StaticMembership::new(config, monotonic())),
            me,
            life,
            addresses: addresses.collect(),
            connected: BTreeSet::new(),
            missing: others.map(|id| (id, now)).collect(),
            met: BTreeSet::new(),
            lost: BTreeSet::new(),
            looked: now,
        }
    }

    /// This process's life.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// There is a connection to another device.
    pub fn connected(&mut self, device: DeviceId, life: u64) {
        if self.connected.contains(&device) {
            self.handle(Event::Disconnected { node: node(device) });
        }
        self.connected.insert(device);
        self.lost.remove(&device);
        // It has the port that an earlier life of this machine had.
        let sole = self.is_here(device);
        self.handle(Event::Connected { node: node(device), life, sole });
    }

    pub fn disconnected(&mut self, device: DeviceId) {
        if self.connected.remove(&device) {
            self.handle(Event::Disconnected { node: node(device) });
            if self.is_here(device) {
                self.lost.insert(device);
                self.looked = Instant::now() - LOOKS;
            }
        }
    }

    pub fn voted(&mut self, from: DeviceId, vote: Vote) {
        if self.connected.contains(&from) {
            self.handle(Event::Vote { from: node(from), vote });
        }
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        if !self.lost.is_empty() && self.looked.elapsed() >= LOOKS {
            self.looked = Instant::now();
            for device in self.lost.clone() {
                let Some(address) = self.addresses.get(&device) else { continue };
                let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
                if TcpStream::connect_timeout(address, LOOK).is_err_and(refused) {
                    self.lost.remove(&device);
                    self.handle(Event::Dead { node: node(device) });
                }
            }
        }
        self.handle(Event::Tick);
        let members = self.list();
        for device in self.addresses.keys().copied().filter(|&device| device != self.me) {
            if members.contains(&device) {
                self.missing.remove(&device);
                self.met.insert(device);
            } else {
                self.missing.entry(device).or_insert_with(Instant::now);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        self.service.handle(monotonic(), wall, event);
    }

    /// The next order.
    pub fn order(&mut self) -> Option<Order> {
        loop {
            return Some(match self.service.poll()? {
                Action::Send { to, vote } => Order::Send { to: device(to), vote },
                Action::Disconnect { node } => Order::Disconnect(device(node)),
                Action::Halt(why) => Order::Halt(why.to_string()),
                // The array asks for the present view. Cluster managers, agents and logs use the other actions.
                Action::Install(_)
                | Action::Cast(_)
                | Action::Fence { .. }
                | Action::Persist { .. }
                | Action::Reconnect
                | Action::Nodes(_)
                | Action::Answer { .. } => continue,
            });
        }
    }

    /// After a halt, when every connection is closed.
    pub fn reborn(&mut self) {
        self.life = incarnation().max(self.life + 1);
        self.connected.clear();
        self.handle(Event::Reborn { life: self.life });
    }

    /// How long until something is to be done.
    pub fn wait(&self) -> Duration {
        let timer = Duration::from_nanos(self.service.next_timer().saturating_sub(monotonic()));
        if self.lost.is_empty() { timer } else { timer.min(LOOKS) }
    }

    /// Returns true if this device may act: it agreed with a majority recently.
    pub fn may_act(&self) -> bool {
        self.service.view().is_some()
            && self.service.lease_end().is_none_or(|end| monotonic() < end)
    }

    /// The members of the view that holds.
    pub fn list(&self) -> Vec<DeviceId> {
        let members = self.service.view().map(|view| &view.members);
        members.into_iter().flatten().map(|member| device(member.node)).collect()
    }

    /// The devices that have not been in the view for this time. For devices that never were, the time is much longer,
    /// because an array's processes may be started one after the other.
    pub fn gone(&self, time: Duration) -> impl Iterator<Item = DeviceId> {
        let gone = move |device: &DeviceId, since: &Instant| {
            since.elapsed() >= if self.met.contains(device) { time } else { STARTING * time }
        };
        self.missing.iter().filter(move |(id, since)| gone(id, since)).map(|(&id, _)| id)
    }

    /// A device is out of the array. When it is to be rebuilt it has as long as any to come into the view.
    pub fn excuse(&mut self, device: DeviceId) {
        if let Some(since) = self.missing.get_mut(&device) {
            *since = Instant::now();
        }
    }

    fn is_here(&self, device: DeviceId) -> bool {
        self.addresses.get(&device).is_some_and(|a| a.ip().to_canonical().is_loopback())
    }
}

fn node(device: DeviceId) -> NodeId {
    NodeId(device.0.into())
}

fn device(node: NodeId) -> DeviceId {
    // Nodes of the list are voters' ids.
    DeviceId(u16::try_from(node.0).unwrap_or(u16::MAX))
}
