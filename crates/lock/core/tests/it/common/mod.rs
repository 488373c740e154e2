//! Several nodes of one lockspace in one process: every connection keeps its order, nothing else
//! is ordered; time stands still unless told otherwise.

use std::collections::{BTreeMap, VecDeque};

use lockify_core::*;

pub mod place;

pub const MS: Time = 1_000_000;

pub struct Cluster {
    pub nodes: BTreeMap<NodeId, Lockspace>,
    /// Messages under way, by (from, to).
    pub wires: BTreeMap<(NodeId, NodeId), VecDeque<Message>>,
    /// Everything that clients were told, in order.
    pub told: Vec<(NodeId, Output)>,
    pub now: Time,
    pub seq: u64,
}

pub fn node(n: u32) -> NodeId {
    NodeId(n)
}

pub fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

impl Cluster {
    /// Nodes 1..=n, all in the first view and running.
    pub fn new(n: u32, policy: Policy) -> Cluster {
        Cluster::with(n, policy, |_| {})
    }

    pub fn with(n: u32, policy: Policy, adjust: impl Fn(&mut Config)) -> Cluster {
        let mut cluster = Cluster {
            nodes: BTreeMap::new(),
            wires: BTreeMap::new(),
            told: Vec::new(),
            now: 0,
            seq: 0,
        };
        for i in 1..=n {
            let mut config = Config::new(node(i), 1, policy);
            adjust(&mut config);
            cluster.nodes.insert(node(i), Lockspace::new(config));
        }
        cluster.view();
        cluster.run();
        cluster
    }

    /// Announces a view of all nodes that there are.
    pub fn view(&mut self) {
        self.seq += 1;
        let members = self
            .nodes
            .values()
            .map(|s| Member {
                node: s.config().node,
                incarnation: s.config().incarnation,
                weight: 1,
            })
            .collect();
        let view = View { seq: self.seq, members };
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.input(n, Input::View(view.clone())).unwrap();
        }
    }

    pub fn kill(&mut self, n: NodeId) {
        self.nodes.remove(&n);
        self.wires.retain(|(from, to), _| *from != n && *to != n);
    }

    pub fn input(&mut self, n: NodeId, input: Input) -> Result<Option<LockId>, Error> {
        let space = self.nodes.get_mut(&n).unwrap();
        let result = space.handle(self.now, input);
        while let Some(output) = space.poll() {
            match output {
                Output::Send { to, message } => {
                    self.wires.entry((n, to)).or_default().push_back(*message);
                }
                other => self.told.push((n, other)),
            }
        }
        result
    }

    /// Delivers the next message from one node to another.
    pub fn deliver(&mut self, from: NodeId, to: NodeId) -> bool {
        let Some(message) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        if self.nodes.contains_key(&to) {
            self.input(to, Input::Receive { from, message }).unwrap();
        }
        true
    }

    /// Delivers everything that is under way and what follows from it.
    pub fn run(&mut self) {
        while self.wires.values().any(|queue| !queue.is_empty()) {
            // One message of each connection in turn: nobody is starved.
            for (from, to) in self.wires.keys().copied().collect::<Vec<_>>() {
                self.deliver(from, to);
            }
        }
        self.assert_sound();
    }

    /// Lets time pass, in all nodes, and runs.
    pub fn pass(&mut self, time: Time) {
        self.now += time;
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tick(n);
        }
        self.run();
    }

    /// Calls a node until nothing is due: a call does so much only.
    pub fn tick(&mut self, n: NodeId) {
        loop {
            self.input(n, Input::Tick).unwrap();
            if self.nodes[&n].next_timer().is_none_or(|due| due > self.now) {
                return;
            }
        }
    }

    pub fn assert_sound(&self) {
        for (n, space) in &self.nodes {
            let defects = space.defects();
            let at = defects.first().map(|d| space.resource(&d.name));
            assert_eq!(defects, [], "node {n}: {at:#?}");
        }
    }

    pub fn request(&mut self, n: NodeId, what: &str, mode: Mode) -> LockId {
        self.request_with(n, what, mode, LockFlags::empty())
    }

    pub fn request_with(&mut self, n: NodeId, what: &str, mode: Mode, flags: LockFlags) -> LockId {
        let args = LockArgs {
            flags,
            lvb: flags.contains(LockFlags::VALBLK).then(|| vec![0; 32].into()),
            bast: true,
            ..LockArgs::new(name(what), mode)
        };
        self.input(n, Input::Lock { client: ClientId(1), args }).unwrap().unwrap()
    }

    pub fn convert(&mut self, n: NodeId, lock: LockId, mode: Mode) -> Result<(), Error> {
        self.convert_with(n, lock, mode, LockFlags::empty(), None)
    }

    pub fn convert_with(
        &mut self,
        n: NodeId,
        lock: LockId,
        mode: Mode,
        flags: LockFlags,
        lvb: Option<&[u8]>,
    ) -> Result<(), Error> {
        let lvb = lvb.map(Into::into);
        let args =
            ConvertArgs { client: ClientId(1), lock, tag: 0, mode, flags, lvb, timeout: None };
        self.input(n, Input::Convert(args)).map(|_| ())
    }

    pub fn unlock(&mut self, n: NodeId, lock: LockId) -> Result<(), Error> {
        self.unlock_with(n, lock, UnlockFlags::empty(), None)
    }

    pub fn unlock_with(
        &mut self,
        n: NodeId,
        lock: LockId,
        flags: UnlockFlags,
        lvb: Option<&[u8]>,
    ) -> Result<(), Error> {
        let lvb = lvb.map(Into::into);
        let args = UnlockArgs { client: ClientId(1), lock, tag: 0, flags, lvb };
        self.input(n, Input::Unlock(args)).map(|_| ())
    }

    /// Completions of a lock since the last call, as (status, mode).
    pub fn completions(&mut self, n: NodeId, lock: LockId) -> Vec<Completion> {
        self.take(|at, output| match output {
            Output::Complete(c) if *at == n && c.lock == lock => Some(c.clone()),
            _ => None,
        })
    }

    pub fn basts(&mut self, n: NodeId, lock: LockId) -> Vec<Mode> {
        self.take(|at, output| match output {
            Output::Bast { lock: l, mode, .. } if *at == n && *l == lock => Some(*mode),
            _ => None,
        })
    }

    /// How the number of orphans that a client has left changed since the last call, step by step.
    pub fn orphans(&mut self, n: NodeId, client: ClientId) -> Vec<i64> {
        self.take(|at, output| match output {
            Output::Departed { client: c, orphans } if *at == n && *c == client => {
                Some(i64::from(*orphans))
            }
            Output::OrphanGone { client: c } if *at == n && *c == client => Some(-1),
            _ => None,
        })
    }

    fn take<T>(&mut self, wanted: impl Fn(&NodeId, &Output) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        self.told.retain(|(n, output)| match wanted(n, output) {
            Some(hit) => {
                found.push(hit);
                false
            }
            None => true,
        });
        found
    }

    /// The one completion of a lock since the last call: it was granted this mode.
    #[track_caller]
    pub fn granted(&mut self, n: NodeId, lock: LockId) -> Mode {
        let all = self.completions(n, lock);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].status, Status::Granted);
        all[0].mode.unwrap()
    }

    #[track_caller]
    pub fn status(&mut self, n: NodeId, lock: LockId) -> Status {
        let all = self.completions(n, lock);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].status
    }

    /// A name whose directory node is `n`.
    pub fn name_at(&self, n: NodeId) -> String {
        let members: Vec<NodeId> = self.nodes.keys().copied().collect();
        (0..)
            .map(|i| format!("r{i}"))
            .find(|s| members[(name(s).hash64() >> 16) as usize % members.len()] == n)
            .unwrap()
    }
}
