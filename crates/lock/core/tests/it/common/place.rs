//! Where the master is: the same calls must lead to the same results everywhere.

use lockify_core::*;

use super::{Cluster, node};

/// The places of locks, and the master of their resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// One node.
    Alone,
    /// The locks are on node 1, the master is node 2.
    Remote,
    /// The locks are on nodes 1 and 3 in turn, the master is node 2.
    Between,
    /// The locks are on nodes 2 and 1 in turn, the master is node 2.
    Mixed,
}

impl Place {
    pub const ALL: [Place; 4] = [Place::Alone, Place::Remote, Place::Between, Place::Mixed];
}

/// A lock of a [`Stage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    pub node: NodeId,
    pub lock: LockId,
}

/// One resource in a cluster, and calls on it that run to quiescence.
pub struct Stage {
    pub cluster: Cluster,
    pub place: Place,
    pub resource: String,
    /// How many locks were made, which decides where the next one is.
    made: u32,
}

impl Stage {
    pub fn new(place: Place) -> Stage {
        let (nodes, master) = match place {
            Place::Alone => (1, 1),
            Place::Remote | Place::Mixed => (2, 2),
            Place::Between => (3, 2),
        };
        let mut cluster = Cluster::new(nodes, Policy::Home);
        cluster.told.clear();
        let resource = cluster.name_at(node(master));
        Stage { cluster, place, resource, made: 0 }
    }

    pub fn master(&self) -> NodeId {
        node(if self.place == Place::Alone { 1 } else { 2 })
    }

    /// The node of the next lock.
    pub fn next_node(&mut self) -> NodeId {
        self.made += 1;
        let odd = self.made % 2 == 1;
        node(match self.place {
            Place::Alone | Place::Remote => 1,
            Place::Between => [3, 1][usize::from(odd)],
            Place::Mixed => [1, 2][usize::from(odd)],
        })
    }

    /// Calls for a new lock without letting messages pass.
    pub fn call(
        &mut self,
        mode: Mode,
        flags: LockFlags,
        adjust: impl Fn(&mut LockArgs),
    ) -> Result<At, Error> {
        self.call_of(ClientId(1), mode, flags, adjust)
    }

    /// As `call`, of any client.
    pub fn call_of(
        &mut self,
        client: ClientId,
        mode: Mode,
        flags: LockFlags,
        adjust: impl Fn(&mut LockArgs),
    ) -> Result<At, Error> {
        let mut args = LockArgs {
            flags,
            lvb: flags.contains(LockFlags::VALBLK).then(|| vec![0; 32].into()),
            bast: true,
            ..LockArgs::new(super::name(&self.resource), mode)
        };
        adjust(&mut args);
        let node = self.next_node();
        let lock = self.cluster.input(node, Input::Lock { client, args })?.expect("an id");
        Ok(At { node, lock })
    }

    /// A new lock.
    pub fn request(&mut self, mode: Mode, flags: LockFlags) -> At {
        let at = self.call(mode, flags, |_| ()).unwrap();
        self.cluster.run();
        at
    }

    /// A new lock that must be granted; its completion is taken.
    #[track_caller]
    pub fn hold(&mut self, mode: Mode) -> At {
        let at = self.request(mode, LockFlags::empty());
        assert_eq!(self.granted(at), mode);
        at
    }

    pub fn convert(&mut self, at: At, mode: Mode, flags: LockFlags) -> Result<(), Error> {
        let lvb = flags.contains(LockFlags::VALBLK).then_some(&[0; 32][..]);
        self.convert_value(at, mode, flags, lvb)
    }

    pub fn convert_value(
        &mut self,
        at: At,
        mode: Mode,
        flags: LockFlags,
        lvb: Option<&[u8]>,
    ) -> Result<(), Error> {
        let result = self.cluster.convert_with(at.node, at.lock, mode, flags, lvb);
        self.cluster.run();
        result
    }

    pub fn unlock(&mut self, at: At, flags: UnlockFlags) -> Result<(), Error> {
        let lvb = flags.contains(UnlockFlags::VALBLK).then_some(&[0; 32][..]);
        let result = self.cluster.unlock_with(at.node, at.lock, flags, lvb);
        self.cluster.run();
        result
    }

    pub fn cancel(&mut self, at: At) -> Result<(), Error> {
        let input = Input::Cancel { client: ClientId(1), lock: at.lock };
        let result = self.cluster.input(at.node, input).map(|_| ());
        self.cluster.run();
        result
    }

    /// Completions of a lock since the last call.
    pub fn completions(&mut self, at: At) -> Vec<Completion> {
        self.cluster.completions(at.node, at.lock)
    }

    /// The one completion of a lock since the last call.
    #[track_caller]
    pub fn completion(&mut self, at: At) -> Completion {
        let mut all = self.completions(at);
        assert_eq!(all.len(), 1, "{:?}: {all:?}", self.place);
        all.remove(0)
    }

    #[track_caller]
    pub fn granted(&mut self, at: At) -> Mode {
        let done = self.completion(at);
        assert_eq!(done.status, Status::Granted, "{:?}", self.place);
        done.mode.expect("a granted lock has a mode")
    }

    #[track_caller]
    pub fn status(&mut self, at: At) -> Status {
        self.completion(at).status
    }

    /// The lock has had no completion since the last call.
    #[track_caller]
    pub fn waits(&mut self, at: At) {
        assert_eq!(self.completions(at), [], "{:?}", self.place);
    }

    /// Blocking notices of a lock since the last call.
    pub fn notices(&mut self, at: At) -> Vec<Mode> {
        self.cluster.basts(at.node, at.lock)
    }

    /// The master's knowledge.
    pub fn info(&self) -> ResourceInfo {
        let master = self.master();
        self.cluster.nodes[&master].resource(&super::name(&self.resource)).expect("a resource")
    }

    /// The locks of one of the master's queues, in order.
    pub fn queue(&self, queue: Queue) -> Vec<At> {
        let locks = self.info().locks;
        let here = locks.iter().filter(|l| l.queue == queue);
        here.map(|l| At { node: l.node, lock: l.lock }).collect()
    }
}
