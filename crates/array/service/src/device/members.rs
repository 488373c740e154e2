//! The present devices: a cluster's membership by a replicated log. It uses the connections of devices, and keeps its
//! state on their media.
//!
//! The log begins with the nodes of the array's file. Up to seven vote. Witnesses come first, since they exist to vote.
//! Devices follow in their order. So whole groups vote, and a group has more votes left than the one device that it may
//! lose. With two parities a group may lose two. Then fewer vote if a part of a group would have no majority without its two. All
//! others learn the decisions, and are members like the voters.
//!
//! The log does not know addresses: the array's file has them, and processes may have different ones while they change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lockify_array::DeviceId;
use lockify_membership::log::{ImageError, MAX_VOTERS};
use lockify_membership::{
    Action, ClusterState, Event, FenceKind, Halt, Lack, LogConfig, LogMembership, Membership,
    NodeEntry, NodeId, Request, Vote, Why,
};
use lockify_trust::Address;

use crate::ArrayFile;
use crate::clock::monotonic;
use crate::wire::{Target, Whom};

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
    /// The device has another life. Every connection is made anew under it.
    Reconnect,
    /// This must be on the medium before any message that depends on it is sent. [`Members::kept`] takes the result.
    Keep {
        number: u64,
        image: Vec<u8>,
    },
    /// The result of an operator's request.
    Answer {
        id: u64,
        result: Result<(), String>,
    },
}

/// The beginning of an added device's address in the log. It tells these from nodes that the array's file has lost.
const ADDED: &str = "added device ";

/// The request of this device itself: the log takes over the content of the array's file.
const OWN: u64 = u64::MAX;

/// A device's part in the membership.
pub(super) struct Members {
    service: LogMembership,
    /// Until when this device may act, and when the service has something to do. Both are asked for with every message, and only
    /// an event changes them.
    acts_until: u64,
    timer: u64,
    me: DeviceId,
    /// The content of the array's file: its lease, in nanoseconds, and its devices and witnesses.
    lease: u64,
    nodes: BTreeMap<NodeId, NodeEntry>,
    /// The log has something else, and has a request to change it.
    asked: bool,
    addresses: BTreeMap<DeviceId, Address>,
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
    /// Begins with the log's state on this device's medium, if there is one.
    ///
    /// # Errors
    /// The state is of another device, or cannot be read.
    pub fn new(
        file: &ArrayFile,
        me: DeviceId,
        image: Option<&[u8]>,
        seed: u64,
    ) -> Result<Members, ImageError> {
        let addresses = file.voters().map(|entry| (DeviceId(entry.id), entry.address.clone()));
        let now = Instant::now();
        let others = file.voters().map(|entry| DeviceId(entry.id)).filter(|&id| id != me);
        let config = log_config(file, me, seed);
        let (lease, nodes) = (lease(file), config.nodes.clone());
        let service = LogMembership::new(config, image, monotonic())?;
        Ok(Members {
            lease,
            nodes,
            acts_until: acts_until(&service),
            timer: service.next_timer(),
            service,
            me,
            asked: false,
            addresses: addresses.collect(),
            connected: BTreeSet::new(),
            missing: others.map(|id| (id, now)).collect(),
            met: BTreeSet::new(),
            lost: BTreeSet::new(),
            looked: now,
        })
    }

    /// The number by which others know this device's connections: its life, or a random number before it has one.
    pub fn life(&self) -> u64 {
        self.service.identity()
    }

    /// The array has got devices. They are members as the others are, and have no vote in the log.
    pub fn added(&mut self, targets: &[Target]) {
        for Target { whom, address, .. } in targets {
            let Whom::Device(id) = *whom else { continue };
            self.nodes
                .entry(node(id))
                .or_insert_with(|| NodeEntry { address: format!("{ADDED}{}", id.0), voter: false });
            let known = self.addresses.insert(id, address.clone()).is_some();
            if !known && id != self.me {
                self.missing.insert(id, Instant::now());
            }
        }
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

    /// Takes note that a state is on the medium, or that its write has failed.
    pub fn kept(&mut self, number: u64, success: bool) {
        self.handle(Event::Persisted { number, success });
    }

    /// An operator says that the media of more than half of the voters are lost for good. The answer is an [`Order`].
    pub fn recover(&mut self, id: u64) {
        self.handle(Event::Request { id, request: Request::Recover });
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        self.look_for_the_dead();
        if monotonic() >= self.timer {
            self.handle(Event::Tick);
        }
        self.correct_log();
        self.note_missing();
    }

    /// A process that has ended on this machine needs no waiting.
    fn look_for_the_dead(&mut self) {
        if self.lost.is_empty() || self.looked.elapsed() < LOOKS {
            return;
        }
        self.looked = Instant::now();
        for device in self.lost.clone() {
            let address = self.addresses.get(&device).and_then(Address::socket);
            let Some(address) = address else { continue };
            let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
            if TcpStream::connect_timeout(&address, LOOK).is_err_and(refused) {
                self.lost.remove(&device);
                self.handle(Event::Dead { node: node(device) });
            }
        }
    }

    /// All connected processes have the same lease, devices and witnesses in their files. The log may still have the
    /// former ones.
    fn correct_log(&mut self) {
        let wanted = self.service.cluster().and_then(|state| self.wanted(state));
        if let Some(request) = wanted.filter(|_| !self.asked) {
            self.asked = true;
            self.handle(Event::Request { id: OWN, request });
        }
    }

    fn wanted(&self, state: &ClusterState) -> Option<Request> {
        let keys = state.keys.as_ref().filter(|_| state.next_lease.is_none());
        if keys.is_some_and(|keys| keys.lease != self.lease) {
            return Some(Request::Lease(self.lease));
        }
        let new = self.nodes.iter().find(|(node, _)| !state.nodes.contains_key(node));
        let join = new.map(|(&node, entry)| Request::Join { node, entry: entry.clone() });
        // Others may know of an added device first.
        let is_gone = |(node, entry): &(&NodeId, &NodeEntry)| {
            !self.nodes.contains_key(node) && !entry.address.starts_with(ADDED)
        };
        let gone = || state.nodes.iter().find(is_gone);
        join.or_else(|| gone().map(|(&node, _)| Request::Leave { node }))
    }

    fn note_missing(&mut self) {
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
        // The time of day has no part in it.
        self.service.handle(monotonic(), 0, event);
        self.acts_until = acts_until(&self.service);
        self.timer = self.service.next_timer();
    }

    /// The next order.
    pub fn order(&mut self) -> Option<Order> {
        loop {
            return Some(match self.service.poll()? {
                Action::Send { to, vote } => Order::Send { to: device(to), vote },
                Action::Disconnect { node } => Order::Disconnect(device(node)),
                Action::Halt(why) => Order::Halt(describe(why)),
                Action::Reconnect => Order::Reconnect,
                Action::Persist { number, image } => Order::Keep { number, image },
                Action::Answer { id: OWN, .. } => {
                    // The request is repeated if it has had no effect.
                    self.asked = false;
                    continue;
                }
                Action::Answer { id, result } => Order::Answer { id, result: result.map(drop) },
                // The array asks for the present view, and its file has the nodes. Cluster managers and agents use the other
                // actions.
                Action::Install(_) | Action::Nodes(_) | Action::Cast(_) | Action::Fence { .. } => {
                    continue;
                }
            });
        }
    }

    /// Every connection is closed, for another life.
    pub fn parted(&mut self) {
        self.connected.clear();
    }

    /// After a halt, when every connection is closed.
    pub fn reborn(&mut self) {
        self.parted();
        // The log hands the life out.
        self.handle(Event::Reborn { life: 0 });
    }

    /// How long until something is to be done.
    pub fn wait(&self) -> Duration {
        let timer = Duration::from_nanos(self.timer.saturating_sub(monotonic()));
        if self.lost.is_empty() { timer } else { timer.min(LOOKS) }
    }

    /// Returns true if this device may act: it agreed with a majority recently.
    pub fn may_act(&self) -> bool {
        monotonic() < self.acts_until
    }

    /// The number of the view that holds.
    pub fn view(&self) -> Option<u64> {
        self.service.view().map(|view| view.seq)
    }

    /// The devices and witnesses outside the newest view that this device knows, with the reasons.
    pub fn out(&self) -> Vec<(u16, String)> {
        let absent = self.service.absent().into_iter();
        absent.map(|(node, why)| (device(node).0, why.text("device"))).collect()
    }

    /// The reason why this device may not act yet.
    pub fn waits(&self) -> String {
        let lacking = self.service.lacking();
        let begun = self.service.cluster();
        let whom: Vec<String> = lacking.iter().map(|(n, lack)| lacks(device(*n), *lack)).collect();
        let whom = whom.join(", ");
        if begun.is_none() && lacking.iter().any(|(_, lack)| *lack == Lack::Knows) {
            return format!(
                "its medium is new: it waits for what the others know of each other ({whom})"
            );
        }
        let Some(state) = begun else {
            let is = "the array is new, or of a release whose devices kept nothing of each other";
            return format!(
                "{is}: it waits until all its devices and witnesses are there ({whom}); to begin without one that is lost for \
                 good: lockify array recover --id {}",
                self.me.0
            );
        };
        let voters = state.voters.len();
        let mut waits = format!(
            "it waits until it has agreed with more than half of the {voters} devices and witnesses that vote on who is there"
        );
        if !whom.is_empty() {
            waits += &format!(": {whom}");
        }
        for node in self.service.unfenced() {
            waits += &format!("; the lease of device {} has to end first", device(node).0);
        }
        waits
    }

    /// The members of the view that holds.
    pub fn list(&self) -> Vec<DeviceId> {
        let members = self.service.view().map(|view| &view.members);
        members.into_iter().flatten().map(|member| device(member.node)).collect()
    }

    /// The devices that have not been in the view for this time. For devices that never were, the time is much longer. An
    /// array's processes may be started one after the other.
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
        self.addresses.get(&device).is_some_and(Address::is_loopback)
    }
}

fn log_config(file: &ArrayFile, me: DeviceId, seed: u64) -> LogConfig {
    let votes = voters(file);
    let entry = |id: u16| NodeEntry { address: format!("device {id}"), voter: votes.contains(&id) };
    LogConfig {
        cluster: file.id.to_string(),
        node: node(me),
        weight: 1,
        nodes: file.voters().map(|e| (NodeId(e.id.into()), entry(e.id))).collect(),
        lease: Some(lease(file)),
        fence: Some(FenceKind::Lease),
        shards: 1,
        heartbeat: None,
        floor: 0,
        seed,
    }
}

/// Until when a device may act. The past if there is no view, and for ever if it is the only voter.
fn acts_until(service: &LogMembership) -> u64 {
    match service.view() {
        Some(_) => service.lease_end().unwrap_or(u64::MAX),
        None => 0,
    }
}

fn lease(file: &ArrayFile) -> u64 {
    file.timing.lease_ms * 1_000_000
}

/// Returns the voters of the log.
fn voters(file: &ArrayFile) -> BTreeSet<u16> {
    let first = |count: usize| -> BTreeSet<u16> {
        file.witnesses.iter().chain(&file.devices).map(|entry| entry.id).take(count).collect()
    };
    let all = first(MAX_VOTERS);
    if file.layout.parities() == 1 {
        return all;
    }
    let bearing = (1..=all.len()).rev().map(first).find(|voters| bears_losses(file, voters));
    bearing.unwrap_or(all)
}

/// Returns true if a majority of voters is left when each group has lost as many devices as its redundancy replaces.
fn bears_losses(file: &ArrayFile, voters: &BTreeSet<u16>) -> bool {
    let mut lost: BTreeMap<u16, u16> = BTreeMap::new();
    for id in voters.iter().filter(|id| **id < file.layout.devices()) {
        let of_group = lost.entry(id / file.layout.group_size()).or_default();
        *of_group = (*of_group + 1).min(file.layout.parities());
    }
    let lost: usize = lost.values().map(|count| usize::from(*count)).sum();
    2 * (voters.len() - lost) > voters.len()
}

/// The reason why this device may no longer act.
fn describe(why: Halt) -> String {
    match why {
        Halt::Lease => "no majority of the devices and witnesses that vote answers: see which are down".into(),
        Halt::Excluded(Why::Link(other)) => format!(
            "the others go on without it, because it and device {} do not reach each other",
            device(other).0
        ),
        Halt::Excluded(why) => format!("the others go on without it, because {why}"),
        Halt::LeftBehind | Halt::NoQuorum | Halt::NoCorosync => {
            "the others went on without it, which had not answered: was this process stopped, or its network down?".into()
        }
    }
}

fn lacks(device: DeviceId, lack: Lack) -> String {
    let what = match lack {
        Lack::Unreached => "is not reached",
        Lack::Forgot => "has lost what was agreed on, or has that of another era",
        Lack::Knows => "knows the others, and waits for a majority of them",
        Lack::Differs => "has another array's file: give all the same",
    };
    format!("device {} {what}", device.0)
}

fn node(device: DeviceId) -> NodeId {
    NodeId(device.0.into())
}

fn device(node: NodeId) -> DeviceId {
    // Nodes of the list are voters' ids.
    DeviceId(u16::try_from(node.0).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use lockify_array::{Layout, Redundancy, Scheme};

    use super::*;
    use crate::{ArrayId, BLOCK, DeviceEntry, Durability, SECTOR, Timing};

    fn array(redundancy: Redundancy, data: u16, groups: u16, witnesses: u16) -> ArrayFile {
        let layout = Layout {
            redundancy,
            data,
            groups,
            unit: 4,
            block_size: BLOCK,
            stripes: 100,
            added: Default::default(),
        };
        let entry = DeviceEntry::local;
        ArrayFile {
            spoken: crate::SPOKEN,
            id: ArrayId([7; 16]),
            scheme: Scheme::TimestampOrdering,
            durability: Durability::Write,
            layout,
            sector: SECTOR,
            timing: Timing::default(),
            devices: (0..layout.devices()).map(entry).collect(),
            witnesses: (layout.devices()..).take(witnesses.into()).map(entry).collect(),
            lock_server: None,
            standbys: Vec::new(),
            added: Vec::new(),
        }
    }

    /// If the loss of one device in each group leaves a majority of all, it leaves a majority of
    /// the voters, too.
    #[test]
    fn a_lost_device_of_each_group_leaves_a_majority_of_the_voters() {
        for groups in 1..=20 {
            for (redundancy, data) in
                [(Redundancy::Mirror, 1), (Redundancy::Raid5, 2), (Redundancy::Raid5, 4)]
            {
                for witnesses in 0..4 {
                    let file = array(redundancy, data, groups, witnesses);
                    let all = file.voters().count();
                    let votes = voters(&file);
                    assert_eq!(votes.len(), all.min(MAX_VOTERS));
                    let size = file.layout.group_size();
                    let devices = votes.iter().filter(|id| **id < file.layout.devices());
                    let lost = devices.map(|id| id / size).collect::<BTreeSet<_>>().len();
                    let left = 2 * (votes.len() - lost) > votes.len();
                    let left_of_all = 2 * (all - usize::from(groups)) > all;
                    assert!(
                        left || !left_of_all,
                        "{groups} groups of {size}, {witnesses} witnesses"
                    );
                }
            }
        }
    }

    /// As above, for two lost devices of each group.
    #[test]
    fn two_lost_devices_of_each_group_leave_a_majority_of_the_voters() {
        let redundancy = Redundancy::Raid6;
        let mut fewer = 0;
        for (groups, data, witnesses) in (1..=12)
            .flat_map(|groups| (2..=8).map(move |data| (groups, data)))
            .flat_map(|(groups, data)| (0..4).map(move |witnesses| (groups, data, witnesses)))
        {
            let file = array(redundancy, data, groups, witnesses);
            let all = file.voters().count();
            let left_of_all = 2 * (all - 2 * usize::from(groups)) > all;
            let votes = voters(&file);
            let what = format!("{groups} groups of {}, {witnesses} witnesses", data + 2);
            assert!(bears_losses(&file, &votes) || !left_of_all, "{what}");
            assert!(votes.len() == all.min(MAX_VOTERS) || bears_losses(&file, &votes), "{what}");
            fewer += u32::from(votes.len() < all.min(MAX_VOTERS));
        }
        assert!(fewer > 0);
        let of =
            |data, groups, witnesses| voters(&array(redundancy, data, groups, witnesses)).len();
        // One group of five; a part of the second one would leave three of seven.
        assert_eq!((of(3, 1, 0), of(3, 2, 0), of(4, 2, 0), of(2, 2, 1)), (5, 5, 7, 5));
    }

    #[test]
    fn a_state_of_another_device_is_refused() {
        let file = array(Redundancy::Raid5, 2, 1, 0);
        let mut members = Members::new(&file, DeviceId(1), None, 5).unwrap();
        members.tick();
        let image = std::iter::from_fn(|| members.order()).find_map(|order| match order {
            Order::Keep { image, .. } => Some(image),
            _ => None,
        });
        let image = image.unwrap();
        assert!(Members::new(&file, DeviceId(1), Some(&image), 6).is_ok());
        assert!(Members::new(&file, DeviceId(2), Some(&image), 6).is_err());
        assert!(Members::new(&file, DeviceId(1), Some(&image[1..]), 6).is_err());
        let waits = members.waits();
        assert!(waits.contains("device 0 is not reached, device 2 is not reached"), "{waits}");
        assert!(!members.may_act());
    }
}
