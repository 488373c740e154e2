//! The conflict graph. It says which transaction has to come before which. It follows from the order in which devices
//! read and wrote each block.
//!
//! A transaction is the last try of an operation that was answered well. The writes of other tries (abandoned, crashed,
//! failed) are transactions of their own for each block. They have no guarantees, not even atomicity. A dropped write
//! stands in the place of its timestamp. A write that was under way when its device went down may never have happened,
//! and orders nothing. A read after the operation's answer went to nobody, because its request had come twice.
//!
//! **Writes that did not reach a device.** The device was out, or had a newer version when they were repeated after a
//! restart. Earlier reads there still come before them. With timestamp ordering, timestamps show this: the serial order
//! is that of the timestamps wherever the graph leaves a choice. Otherwise time shows it: no operation accesses a block
//! between a write's first block and its last. Time says nothing of other writes, because an earlier one may arrive later
//! where nobody waits for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use hashbrown::{HashMap, HashSet};
use lockify_history::array::Stamp;
use petgraph::algo::kosaraju_scc;
use petgraph::graphmap::DiGraphMap;

use crate::array::run::{Access, Did, Run, What};

/// A node of the graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transaction {
    /// An operation, by index.
    Whole(usize),
    /// The write of a try, by index, to a block of a device.
    Part(usize, u16, u64),
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// The transaction.
    pub what: Transaction,
    /// Its timestamp.
    pub stamp: Option<Stamp>,
    /// The line of its first access.
    pub line: u64,
}

/// Why one comes before the other.
#[derive(Clone, Copy, Debug)]
pub struct Why {
    /// At this block of this device.
    pub at: (u16, u64),
    /// The lines of the two accesses.
    pub lines: [u64; 2],
}

/// The graph.
#[derive(Default, Debug)]
pub struct Graph {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its edges, with the first reason for each.
    pub edges: BTreeMap<(u32, u32), Why>,
    /// Writes that were dropped although nothing newer was there: device, block, line.
    pub wrong_drops: Vec<(u16, u64, u64)>,
    /// Tries whose writes at a device may or may not have happened, with the block.
    pub uncertain: Vec<(usize, u16, u64)>,
    /// The order of timestamps is to be a serial order.
    by_stamp: bool,
    ids: HashMap<Transaction, u32>,
}

struct Version {
    id: usize,
    node: u32,
    stamp: Option<Stamp>,
    line: u64,
    certain: bool,
}

/// A reader, and the number of the version that it read; 0 for the first content.
struct Reader {
    version: usize,
    node: u32,
    line: u64,
}

/// The accesses of one block of a device.
#[derive(Default)]
struct Block {
    /// Its versions, oldest first. Version 0, which is not in here, is the first content.
    chain: Vec<Version>,
    readers: Vec<Reader>,
}

impl Block {
    /// Puts a dropped write in the place of its timestamp. Returns false if nothing newer is there, so that the drop was wrong.
    fn insert_dropped(&mut self, version: Version) -> bool {
        let stamp = version.stamp;
        // A newer version that was lost with its device may come before an older one.
        let older = self.chain.iter().rposition(|v| v.stamp < stamp);
        let place = older.map_or(0, |older| older + 1);
        let right = self.chain[place..].iter().any(|v| v.stamp > stamp);
        if right {
            self.chain.insert(place, version);
        }
        right
    }
}

/// Returns true if a write has surely happened. A crash may have undone it. Then it counts if the operation was answered and it
/// did not come again.
fn is_certain(run: &Run, device: u16, access: &Access, later: &[Access]) -> bool {
    let again = |down| {
        let mut later = later.iter();
        later.any(|a| a.attempt == access.attempt && a.line > down && a.did != Did::Read)
    };
    let down = run.down_after(device, access.line);
    down.is_none_or(|down| run.whole(access.attempt).is_some() && !again(down))
}

impl Graph {
    /// The graph of a run.
    pub fn new(run: &Run) -> Graph {
        let by_stamp = run.scheme == "timestamp-ordering";
        let mut graph = Graph { by_stamp, ..Graph::default() };
        let missed = if by_stamp { BTreeMap::new() } else { missed(run) };
        for (&at, accesses) in &run.blocks {
            let missed = missed.get(&at).map_or(&[][..], |missed| missed);
            graph.add_block(run, at, accesses, missed);
        }
        graph
    }

    fn add_block(
        &mut self,
        run: &Run,
        at: (u16, u64),
        accesses: &[Access],
        missed: &[(usize, u64)],
    ) {
        let block = self.versions(run, at, accesses);
        self.order_writes(at, &block);
        self.order_missed(run, at, accesses, missed, &block);
        self.order_reads(at, &block);
    }

    /// The versions of a block, and who read which.
    fn versions(&mut self, run: &Run, at: (u16, u64), accesses: &[Access]) -> Block {
        let (device, number) = at;
        let mut block = Block::default();
        let (mut next, mut current) = (1, 0);
        for (i, access) in accesses.iter().enumerate() {
            let Access { attempt, line, did } = *access;
            let whole = run.whole(attempt);
            let stamp = match (did, whole) {
                (Did::Read, None) => continue, // nobody got to see it
                (Did::Read, Some(op)) if run.was_answered(op, line) => continue, // nor this
                (Did::Read, Some(op)) => {
                    let node = self.node(run, Transaction::Whole(op), attempt, line);
                    block.readers.push(Reader { version: current, node, line });
                    continue;
                }
                (Did::Write(stamp) | Did::Drop(stamp), _) => stamp,
            };
            let part = Transaction::Part(attempt, device, number);
            let node = self.node(run, whole.map_or(part, Transaction::Whole), attempt, line);
            let certain = is_certain(run, device, access, &accesses[i + 1..]);
            if !certain {
                self.uncertain.push((attempt, device, number));
            }
            let version = Version { id: next, node, stamp, line, certain };
            next += 1;
            if matches!(did, Did::Write(_)) {
                current = version.id;
                block.chain.push(version);
            } else if !block.insert_dropped(version) {
                self.wrong_drops.push((device, number, line));
            }
        }
        block
    }

    /// Orders each write before the next one. Uncertain versions may never have been there, so they order nothing.
    fn order_writes(&mut self, at: (u16, u64), block: &Block) {
        for pair in block.chain.iter().filter(|v| v.certain).collect::<Vec<_>>().windows(2) {
            self.edge(pair[0].node, pair[1].node, at, [pair[0].line, pair[1].line]);
        }
    }

    /// Orders the readers of the last version before a missing write before that write.
    fn order_missed(
        &mut self,
        run: &Run,
        at: (u16, u64),
        accesses: &[Access],
        missed: &[(usize, u64)],
        block: &Block,
    ) {
        for &(attempt, line) in missed {
            let Some(op) = run.whole(attempt) else { continue };
            let node = self.node(run, Transaction::Whole(op), attempt, line);
            let written =
                |access: &&Access| matches!(access.did, Did::Write(_)) && access.line < line;
            let last = accesses.iter().rfind(written).map(|access| access.line);
            let version = block.chain.iter().find(|v| Some(v.line) == last).map_or(0, |v| v.id);
            for reader in block.readers.iter().filter(|reader| reader.version == version) {
                self.edge(reader.node, node, at, [reader.line, line]);
            }
        }
    }

    /// Orders a reader after the certain version that it saw, and before the next certain one.
    fn order_reads(&mut self, at: (u16, u64), block: &Block) {
        let chain = &block.chain;
        for &Reader { version, node, line } in &block.readers {
            let place = chain.iter().position(|v| v.id == version).map_or(0, |i| i + 1);
            if let Some(read) = chain[..place].iter().rev().find(|v| v.certain) {
                self.edge(read.node, node, at, [read.line, line]);
            }
            if let Some(newer) = chain[place..].iter().find(|v| v.certain) {
                self.edge(node, newer.node, at, [line, newer.line]);
            }
        }
    }

    fn node(&mut self, run: &Run, what: Transaction, attempt: usize, line: u64) -> u32 {
        let next = self.nodes.len() as u32;
        let id = *self.ids.entry(what).or_insert(next);
        if id == next {
            self.nodes.push(Node { what, stamp: run.tries[attempt].stamp, line });
        }
        self.nodes[id as usize].line = self.nodes[id as usize].line.min(line);
        id
    }

    fn edge(&mut self, from: u32, to: u32, at: (u16, u64), lines: [u64; 2]) {
        if from != to {
            self.edges.entry((from, to)).or_insert(Why { at, lines });
        }
    }

    /// A shortest circle out of each knot of transactions of which none can be the first.
    pub fn circles(&self) -> Vec<Vec<u32>> {
        let graph: DiGraphMap<u32, ()> = self.edges.keys().copied().collect();
        let knots = kosaraju_scc(&graph).into_iter().filter(|knot| knot.len() > 1);
        let mut circles: Vec<_> = knots.map(|knot| circle(&graph, &knot)).collect();
        circles.sort();
        circles
    }

    /// All transactions in an order that the graph allows. Where there is a choice, smaller timestamps come first, or else
    /// earlier lines. `None` if there is no such order.
    pub fn serial_order(&self) -> Option<Vec<u32>> {
        let mut before = vec![0_usize; self.nodes.len()];
        let mut after = vec![Vec::new(); self.nodes.len()];
        for &(from, to) in self.edges.keys() {
            before[to as usize] += 1;
            after[from as usize].push(to);
        }
        let place = |id: u32| {
            let node = &self.nodes[id as usize];
            Reverse((node.stamp.filter(|_| self.by_stamp), node.line, id))
        };
        let mut free: BinaryHeap<_> = (0..self.nodes.len() as u32)
            .filter(|id| before[*id as usize] == 0)
            .map(place)
            .collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse((.., id))) = free.pop() {
            order.push(id);
            for &to in &after[id as usize] {
                before[to as usize] -= 1;
                if before[to as usize] == 0 {
                    free.push(place(to));
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// A node's name, for people.
    pub fn name(&self, run: &Run, id: u32) -> String {
        match self.nodes[id as usize].what {
            Transaction::Whole(op) => run.ops[op].to_string(),
            Transaction::Part(attempt, ..) => {
                let attempt = &run.tries[attempt];
                match attempt.op {
                    Some(op) => format!("unfinished {}", run.ops[op]),
                    None => format!("try {} of {}", attempt.seq, attempt.by),
                }
            }
        }
    }
}

/// The missing writes of each block: tries of operations that were answered well and have written only elsewhere. Each has the
/// line of its first write.
fn missed(run: &Run) -> BTreeMap<(u16, u64), Vec<(usize, u64)>> {
    let mut first: HashMap<usize, u64> = HashMap::new();
    let mut written: HashSet<(usize, (u16, u64))> = HashSet::new();
    let mut places: HashMap<u64, (u16, u64)> = HashMap::new();
    for (&at, accesses) in &run.blocks {
        places.extend(run.layout.logical(at.0, at.1).map(|block| (block, at)));
        for access in accesses.iter().filter(|access| access.did != Did::Read) {
            let line = first.entry(access.attempt).or_insert(access.line);
            *line = access.line.min(*line);
            written.insert((access.attempt, at));
        }
    }
    let mut missed: BTreeMap<(u16, u64), Vec<(usize, u64)>> = BTreeMap::new();
    for op in run.ops.iter().filter(|op| op.is_done() && matches!(op.what, What::Write(_))) {
        let Some((&attempt, &line)) = op.tries.last().and_then(|t| first.get_key_value(t)) else {
            continue;
        };
        let last = run.layout.block_of(op.start + op.count - 1);
        let blocks = run.layout.block_of(op.start)..=last;
        for at in blocks.filter_map(|block| places.get(&block)) {
            if !written.contains(&(attempt, *at)) {
                missed.entry(*at).or_default().push((attempt, line));
            }
        }
    }
    missed
}

/// A shortest circle through the lowest node of a knot.
fn circle(graph: &DiGraphMap<u32, ()>, knot: &[u32]) -> Vec<u32> {
    let Some(&first) = knot.iter().min() else { return Vec::new() };
    let mut came_from: HashMap<u32, u32> = HashMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(id) = queue.pop_front() {
        for to in graph.neighbors(id).filter(|to| knot.contains(to)) {
            if to == first {
                let mut circle = vec![id];
                while let Some(&before) =
                    circle.last().filter(|id| **id != first).and_then(|id| came_from.get(id))
                {
                    circle.push(before);
                }
                circle.reverse();
                return circle;
            }
            if !came_from.contains_key(&to) {
                came_from.insert(to, id);
                queue.push_back(to);
            }
        }
    }
    vec![first]
}
