//! Hosts that are cut off at the word of a cluster manager or an operator, by their number or by their node's name.

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, Change, HostId, Life, NodeName, OpError, Usage, Work};

use super::Array;
use crate::wire::Whom;

/// The name of this machine, as the node on which hosts run.
pub fn this_node() -> NodeName {
    NodeName::of_machine(rustix::system::uname().nodename().to_bytes())
}

impl Array {
    /// Has a function called when this host is fenced; at once if it is. It is called on the array's thread, and must not wait
    /// for anything.
    pub fn on_fence(&self, told: Box<dyn FnOnce() + Send>) {
        self.calls.on_fence(told);
    }

    /// Returns true if others have taken this host for dead.
    pub fn is_fenced(&self) -> bool {
        self.calls.is_fenced()
    }

    /// The array's state in which this host has attached. It has all hosts that had attached before. `None` for a visitor.
    pub fn attached(&self) -> Option<&ArrayState> {
        self.attached.as_deref().map(|attached| &attached.state)
    }

    /// Cuts a host off, for good. When this returns, all devices of the array have recorded that durably, and so no write of the
    /// host takes effect any more. Its unfinished writes are repaired, and its locks are free.
    ///
    /// If the number may be that of a [`Reservation`](super::Reservation), its owner is cut off as well: others may attach
    /// without the reservation. The state does not tell owners from hosts that disturb nobody, so all of these on its node are.
    ///
    /// # Errors
    /// [`OpError`]; after this time, too. The host may be cut off all the same, at some devices or all.
    pub fn fence(&self, host: u32, patience: Duration) -> Result<(), OpError> {
        let end = Instant::now() + patience;
        let node = self.node_of_exclusive(host);
        self.cut_off(host, end)?;
        let mut owners = BTreeSet::new();
        self.cut_off_owners(node, &mut owners, end)?;
        // Not before: whoever fences the node would take this host for cut off. An owner that has attached by then with the
        // reservation is listed in the state which is agreed on.
        self.detach(host, end)?;
        self.cut_off_owners(node, &mut owners, end)?;
        owners.iter().try_for_each(|owner| self.detach(*owner, end))
    }

    /// Cuts off the hosts of a node that disturb nobody, until the newest state lists no further ones, and adds them.
    fn cut_off_owners(
        &self,
        node: Option<NodeName>,
        cut: &mut BTreeSet<u32>,
        end: Instant,
    ) -> Result<(), OpError> {
        let next = |cut: &BTreeSet<u32>| {
            let state = self.newest_state();
            let mut listed = state.nodes.of_usage(|usage| usage == Usage::Upkeep);
            let is_new = |owner: u32| owner != self.number() && !cut.contains(&owner);
            listed.find(|(owner, of)| Some(*of) == node && is_new(*owner)).map(|(owner, _)| owner)
        };
        while let Some(owner) = next(cut) {
            self.cut_off(owner, end)?;
            cut.insert(owner);
        }
        Ok(())
    }

    /// As [`Array::fence`], for the number of a process.
    pub(super) fn fence_process(&self, host: u32, patience: Duration) -> Result<(), OpError> {
        let end = Instant::now() + patience;
        self.cut_off(host, end)?;
        self.detach(host, end)
    }

    fn cut_off(&self, host: u32, end: Instant) -> Result<(), OpError> {
        let life = Life { host: HostId(host), incarnation: u64::from(host) };
        self.perform_until(Work::Fence { life }, end)
    }

    /// The newest state that this host knows. It may not have heard of one since it attached.
    fn newest_state(&self) -> ArrayState {
        let heard = self.status().state;
        match self.attached() {
            Some(state) if state.epoch > heard.epoch => state.clone(),
            _ => heard,
        }
    }

    /// The node of a host that has the array for itself.
    fn node_of_exclusive(&self, host: u32) -> Option<NodeName> {
        let state = self.newest_state();
        let mut exclusive = state.nodes.of_usage(|usage| usage == Usage::Exclusive);
        exclusive.find(|(listed, _)| *listed == host).map(|(_, node)| node)
    }

    /// Cuts off all hosts of a node that attached before this one, except this one. Returns their numbers.
    ///
    /// # Errors
    /// As for [`Array::fence`].
    pub fn fence_node(&self, node: NodeName, patience: Duration) -> Result<Vec<u32>, OpError> {
        let end = Instant::now() + patience;
        let node = self.attached().and_then(|state| state.nodes.get(node));
        let hosts = node.iter().flat_map(|node| node.hosts());
        let hosts: Vec<u32> = hosts.filter(|host| *host != self.number()).collect();
        for host in &hosts {
            self.fence(*host, end.saturating_duration_since(Instant::now()))?;
        }
        Ok(hosts)
    }

    /// A host counts no more as one of its node.
    pub(super) fn detach(&self, host: u32, end: Instant) -> Result<(), OpError> {
        self.perform_until(Work::Change { change: Change::Detach { host } }, end)
    }

    /// Does a piece of work, or fails at this time; it may yet be done.
    pub(crate) fn perform_until(&self, work: Work, end: Instant) -> Result<(), OpError> {
        let (to, from) = sync_channel(1);
        self.submit(work, Box::new(move |result| drop(to.send(result))));
        let result = from.recv_timeout(end.saturating_duration_since(Instant::now()));
        result.unwrap_or_else(|_| Err(self.late())).map(drop)
    }

    /// Whom it has waited for.
    fn late(&self) -> OpError {
        let out = |whom: Whom| match whom {
            Whom::Device(device) => self.status().state.is_failed(device),
            Whom::Server(_) => false,
        };
        let connections = self.status().connections;
        let why = |c: &super::Connection| Some(format!("; {}: {}", c.whom, c.down.as_deref()?));
        let down: String = connections.iter().filter(|c| !out(c.whom)).filter_map(why).collect();
        OpError::State(format!("not all of the array's processes have answered in time{down}"))
    }
}
