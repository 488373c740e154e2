//! A file system in GFS2's manner: directories, objects, cached locks, and the guarantee that claims need.
//!
//! A node that creates an object holds its directory EX. It takes the new inode EX and the new iopen PR with NOTIFY.
//! Others learn an object's block only by holding the directory PR. A node that deletes an object holds the
//! directory, the inode and the iopen lock EX. It brings the latter two to NL (flagged FREED) before the block is
//! free. Blocks are reused at once, while other nodes still cache idle locks of the same names.
//!
//! A hostile node breaks the guarantee on purpose. It takes inodes by number without the directory's lock, and claims
//! names that others may be claiming.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lockify_core::{ClientId, Completion, Error, LockId, LostReason, Mode, Name, Time};
use lockify_sim::{MICROSECOND, MILLISECOND};
use rand::RngExt;

use super::disk::{Disk, directory_name, inode_name, iopen_name};
use super::glock::{Glock, Outcome};
use crate::port::{Client, Phase, Port};

/// How a node's file system behaves.
#[derive(Clone, Debug)]
pub struct Files {
    /// True if nodes also look names up, and claim them, without the directory's lock.
    pub hostile: bool,
    /// Blocks of all directories together.
    pub blocks: u32,
    /// Longest pause between two tasks, nanoseconds.
    pub pause: Time,
    /// Most objects created in one go.
    pub burst: u32,
    /// Idle locks that a node keeps cached.
    pub cache: usize,
}

/// The purpose of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Directory(usize),
    Inode(u32),
    Iopen(u32),
}

/// A lock that a task needs before it goes on.
#[derive(Clone, Copy, Debug)]
struct Need {
    key: Key,
    mode: Mode,
    claim: bool,
}

/// The present task of a node.
#[derive(Clone, Debug)]
enum Task {
    /// Make objects: directory EX, then each inode EX and iopen PR.
    Create { directory: usize, left: u32, block: Option<u32> },
    /// Read an object: directory PR, then inode PR and iopen PR; then use it without the directory.
    Open { directory: usize, block: Option<u32>, write: bool },
    /// Delete an object: directory, inode and iopen EX.
    Delete { directory: usize, block: Option<u32>, freeing: bool },
    /// Take an inode by number: nobody can know that this is not being created. Hostile.
    Peek,
    /// Claim an inode without the directory's lock. Hostile.
    Trespass,
}

/// A node's file system with one worker.
pub struct FileSystem {
    how: Files,
    disk: Rc<RefCell<Disk>>,
    id: ClientId,
    phase: Phase,
    locks: BTreeMap<Key, Glock>,
    by_id: BTreeMap<LockId, Key>,
    task: Option<Task>,
    needs: Vec<Need>,
    /// Creations of this node that others may see, and in which directory; for undoing them after a conflict.
    created: BTreeMap<u32, usize>,
    /// The records of this node's directory when the last intruder looked.
    records: BTreeSet<Name>,
    dead: bool,
    /// Numbers the uses, so that the end of an abandoned one is recognised.
    uses: u64,
}

/// Wake-up token; those above end the use of that number.
const NEXT: u64 = 0;
/// Blocks that the disk does not have, and that hostile tasks take.
const BEYOND: u32 = 8;

impl FileSystem {
    /// A file system that is not mounted yet.
    pub fn new(how: Files, disk: Rc<RefCell<Disk>>) -> FileSystem {
        FileSystem {
            how,
            disk,
            id: ClientId(0),
            phase: Phase::Run,
            locks: BTreeMap::new(),
            by_id: BTreeMap::new(),
            task: None,
            needs: Vec::new(),
            created: BTreeMap::new(),
            records: BTreeSet::new(),
            dead: false,
            uses: 0,
        }
    }

    fn glock(&mut self, key: Key) -> &mut Glock {
        self.locks.entry(key).or_insert_with(|| {
            Glock::new(match key {
                Key::Directory(directory) => directory_name(directory),
                Key::Inode(block) => inode_name(block),
                Key::Iopen(block) => iopen_name(block),
            })
        })
    }

    /// A call's refusal: the node is going; anything else is a defect.
    fn check<T>(&mut self, port: &mut Port<'_>, key: Key, result: Result<T, Error>) {
        match result {
            Ok(_) => {
                if let Some(lock) = self.glock(key).lock() {
                    self.by_id.insert(lock, key);
                }
            }
            Err(Error::NotMember | Error::Leaving) => self.dead = true,
            // Between the loss of a lock and the notice of it.
            Err(Error::Lost) if self.how.hostile => self.glock(key).lost = true,
            Err(error) => port.broken(format!("{key:?}: refused: {error}")),
        }
    }

    fn begin(&mut self, port: &mut Port<'_>) {
        let directories = self.disk.borrow().directories.len();
        let directory = port.random.random_range(0..directories);
        let hostile = if self.how.hostile { 80 } else { 0 };
        let task = match port.random.random_range(0..100 + hostile) {
            0..45 => {
                let left = port.random.random_range(1..=self.how.burst);
                Task::Create { directory, left, block: None }
            }
            45..75 => Task::Open { directory, block: None, write: port.random.random_bool(0.3) },
            75..100 => Task::Delete { directory, block: None, freeing: false },
            100..155 => Task::Peek,
            _ => Task::Trespass,
        };
        let first = match task {
            Task::Create { .. } | Task::Delete { .. } => (Key::Directory(directory), Mode::EX),
            Task::Open { .. } => (Key::Directory(directory), Mode::PR),
            Task::Peek | Task::Trespass => {
                let block = self.intrude(port, matches!(task, Task::Peek));
                let modes = [Mode::NL, Mode::PR, Mode::EX];
                (Key::Inode(block), modes[port.random.random_range(0..3)])
            }
        };
        let claim = matches!(task, Task::Trespass);
        self.task = Some(task);
        self.need(port, &[(first.0, first.1, claim)]);
    }

    /// The inode that a hostile task takes. It may be any, also of blocks that the disk does not have; their names
    /// vanish with their intruder. Intruders that peek prefer the newest record at this node: a directory node's
    /// request confirms a claim whose reply is late.
    fn intrude(&mut self, port: &mut Port<'_>, peek: bool) -> u32 {
        let blocks = self.how.blocks + BEYOND;
        if peek {
            let records: BTreeSet<_> =
                port.space.directory().into_iter().map(|(name, _)| name).collect();
            let is_new = |block: &u32| {
                let name = inode_name(*block);
                let is_held = self.locks.get(&Key::Inode(*block)).is_some_and(Glock::exists);
                records.contains(&name) && !self.records.contains(&name) && !is_held
            };
            let new: Vec<_> = (0..blocks).filter(is_new).collect();
            self.records = records;
            if !new.is_empty() {
                return new[port.random.random_range(0..new.len())];
            }
        }
        port.random.random_range(0..blocks)
    }

    /// Waits until all of these are held, asking for all at once.
    fn need(&mut self, port: &mut Port<'_>, needs: &[(Key, Mode, bool)]) {
        for &(key, mode, claim) in needs {
            self.needs.push(Need { key, mode, claim });
            self.glock(key).in_use = true;
        }
        self.pursue(port);
    }

    /// Requests the locks that are needed and neither held nor requested.
    fn pursue(&mut self, port: &mut Port<'_>) {
        let client = self.id;
        for need in self.needs.clone() {
            let glock = self.glock(need.key);
            if glock.is_idle() && !glock.lost && !glock.holds(need.mode) {
                let result = glock.acquire(port, client, need.mode, need.claim);
                self.check(port, need.key, result);
            }
        }
        self.proceed(port);
    }

    fn proceed(&mut self, port: &mut Port<'_>) {
        let waiting = |need: &Need| !self.locks.get(&need.key).is_some_and(|g| g.holds(need.mode));
        if self.dead || self.task.is_none() || self.needs.iter().any(waiting) {
            return;
        }
        self.needs.clear();
        match self.task.take() {
            Some(Task::Create { directory, left, block }) => {
                self.create(port, directory, left, block);
            }
            Some(Task::Open { directory, block, write }) => {
                self.open(port, directory, block, write);
            }
            Some(Task::Delete { directory, block, freeing }) => {
                self.delete(port, directory, block, freeing);
            }
            Some(task @ (Task::Peek | Task::Trespass)) => {
                self.task = Some(task);
                self.use_for_a_while(port);
            }
            None => {}
        }
    }

    fn create(&mut self, port: &mut Port<'_>, directory: usize, mut left: u32, block: Option<u32>) {
        if let Some(block) = block {
            self.disk.borrow_mut().link(port.node, directory, block);
            self.created.insert(block, directory);
            self.release(Key::Inode(block));
            self.release(Key::Iopen(block));
            left -= 1;
        }
        let next =
            if left > 0 { self.disk.borrow_mut().allocate(port.node, directory) } else { None };
        let Some(block) = next else { return self.finish(port) };
        self.task = Some(Task::Create { directory, left, block: Some(block) });
        let needs = [(Key::Iopen(block), Mode::PR, true), (Key::Inode(block), Mode::EX, true)];
        self.need(port, &needs);
    }

    fn pick(&self, port: &mut Port<'_>, directory: usize) -> Option<u32> {
        let disk = self.disk.borrow();
        let objects = &disk.directories[directory].objects;
        if objects.is_empty() {
            return None;
        }
        Some(objects[port.random.random_range(0..objects.len())])
    }

    fn open(&mut self, port: &mut Port<'_>, directory: usize, block: Option<u32>, write: bool) {
        if block.is_some() {
            self.task = Some(Task::Open { directory, block, write });
            self.release(Key::Directory(directory));
            return self.use_for_a_while(port);
        }
        let Some(block) = self.pick(port, directory) else { return self.finish(port) };
        self.task = Some(Task::Open { directory, block: Some(block), write });
        let mode = if write { Mode::EX } else { Mode::PR };
        self.need(port, &[(Key::Inode(block), mode, false), (Key::Iopen(block), Mode::PR, false)]);
    }

    fn use_for_a_while(&mut self, port: &mut Port<'_>) {
        // Intruders hold on longer than some claims' patience.
        let most = if self.how.hostile { 8 * MILLISECOND } else { MILLISECOND };
        let after = port.random.random_range(0..=most);
        self.uses += 1;
        port.wake(after, self.uses);
        self.demote_all(port);
    }

    fn delete(&mut self, port: &mut Port<'_>, directory: usize, block: Option<u32>, freeing: bool) {
        let Some(block) = block else {
            let Some(block) = self.pick(port, directory) else { return self.finish(port) };
            self.task = Some(Task::Delete { directory, block: Some(block), freeing: false });
            let needs =
                [(Key::Inode(block), Mode::EX, false), (Key::Iopen(block), Mode::EX, false)];
            return self.need(port, &needs);
        };
        if !freeing {
            self.task = Some(Task::Delete { directory, block: Some(block), freeing: true });
            return self.free_locks(port, block);
        }
        self.disk.borrow_mut().free(directory, block);
        self.created.remove(&block);
        self.finish(port);
    }

    /// Nobody may hold the object's locks above NL when its block becomes free.
    fn free_locks(&mut self, port: &mut Port<'_>, block: u32) {
        let client = self.id;
        for key in [Key::Inode(block), Key::Iopen(block)] {
            let keep = port.random.random_bool(0.6);
            let glock = self.glock(key);
            let result = if keep {
                glock.demote(port, client, Mode::NL, true)
            } else {
                glock.unlock(port, client, true)
            };
            self.check(port, key, result);
        }
        self.freed(port);
    }

    /// Goes on with a deletion when the object's locks are down.
    fn freed(&mut self, port: &mut Port<'_>) {
        let Some(Task::Delete { directory, block: Some(block), freeing: true }) = self.task else {
            return;
        };
        let down = |key: &Key| {
            self.locks.get(key).is_none_or(|g| g.is_idle() && !g.holds(Mode::CR) && !g.lost)
        };
        if [Key::Inode(block), Key::Iopen(block)].iter().all(down) && !self.dead {
            self.task = None;
            self.delete(port, directory, Some(block), true);
        }
    }

    fn release(&mut self, key: Key) {
        self.glock(key).in_use = false;
    }

    fn finish(&mut self, port: &mut Port<'_>) {
        self.task = None;
        self.uses += 1;
        self.needs.clear();
        for glock in self.locks.values_mut() {
            glock.in_use = false;
        }
        self.demote_all(port);
        match self.phase {
            Phase::Run => {
                let after = port.random.random_range(10 * MICROSECOND..=self.how.pause);
                port.wake(after, NEXT);
            }
            Phase::Settle => {}
            Phase::Drain => self.drain(port),
        }
    }

    /// Gives way where others wait, and lets go of some idle locks.
    fn demote_all(&mut self, port: &mut Port<'_>) {
        let keys: Vec<_> = self.locks.keys().copied().collect();
        for key in keys {
            self.demote(port, key);
        }
        self.shrink(port);
    }

    /// Hostile tasks often drop their locks at once: the name goes before a late claim of it arrives.
    fn leave_no_trace(&mut self, port: &mut Port<'_>) {
        if !matches!(self.task, Some(Task::Peek | Task::Trespass)) || port.random.random_bool(0.3) {
            return;
        }
        let idle = |(key, glock): (&Key, &Glock)| {
            (glock.in_use && glock.exists() && glock.is_idle() && !glock.lost).then_some(*key)
        };
        let keys: Vec<_> = self.locks.iter().filter_map(idle).collect();
        let client = self.id;
        for key in keys {
            if !self.dead {
                let result = self.glock(key).unlock(port, client, false);
                self.check(port, key, result);
            }
        }
    }

    fn demote(&mut self, port: &mut Port<'_>, key: Key) {
        let client = self.id;
        let glock = self.glock(key);
        if glock.lost || self.dead {
            return;
        }
        let Some(mode) = self.glock(key).must_demote_to() else { return };
        let drop = mode == Mode::NL && port.random.random_bool(0.3);
        let glock = self.glock(key);
        let result = if drop {
            glock.unlock(port, client, false)
        } else {
            glock.demote(port, client, mode, false)
        };
        self.check(port, key, result);
    }

    fn shrink(&mut self, port: &mut Port<'_>) {
        let spare: Vec<_> =
            self.locks.iter().filter(|(_, g)| g.is_spare()).map(|(key, _)| *key).collect();
        if spare.len() <= self.how.cache || self.dead {
            return;
        }
        let key = spare[port.random.random_range(0..spare.len())];
        let client = self.id;
        let result = self.glock(key).unlock(port, client, false);
        self.check(port, key, result);
    }

    fn drain(&mut self, port: &mut Port<'_>) {
        if self.task.is_some() {
            return;
        }
        let client = self.id;
        let keys: Vec<_> = self.locks.keys().copied().collect();
        for key in keys {
            let glock = self.glock(key);
            if glock.exists() && glock.is_idle() && !self.dead {
                let result = self.glock(key).unlock(port, client, false);
                self.check(port, key, result);
            }
        }
    }

    /// A claim met locks that did not go: the creation is undone and the lock given up.
    fn undo(&mut self, port: &mut Port<'_>, key: Key) {
        if let Key::Inode(block) | Key::Iopen(block) = key {
            self.undo_creation(port, block);
        }
        let client = self.id;
        if self.glock(key).is_idle() {
            let result = self.glock(key).unlock(port, client, false);
            self.check(port, key, result);
        }
        self.abandon_task(port, key);
    }

    fn undo_creation(&mut self, port: &mut Port<'_>, block: u32) {
        let in_progress = match self.task {
            Some(Task::Create { directory, block: Some(b), .. }) if b == block => Some(directory),
            _ => None,
        };
        let complete = self.created.remove(&block);
        let Some(directory) = in_progress.or(complete) else { return };
        let mut disk = self.disk.borrow_mut();
        disk.unlink(port.node, directory, block);
        disk.give_back(port.node, directory, block);
    }

    fn abandon_task(&mut self, port: &mut Port<'_>, key: Key) {
        let block = match key {
            Key::Inode(block) | Key::Iopen(block) => block,
            Key::Directory(_) => return,
        };
        let concerns = match self.task {
            Some(Task::Create { block: Some(b), .. }) => b == block,
            Some(Task::Open { block: Some(b), .. }) => b == block,
            Some(Task::Delete { block: Some(b), .. }) => b == block,
            Some(Task::Peek | Task::Trespass) => self.needs.iter().any(|need| need.key == key),
            _ => false,
        };
        if concerns {
            self.finish(port);
        }
    }
}

impl Client for FileSystem {
    fn start(&mut self, port: &mut Port<'_>) {
        self.id = port.new_client();
        port.wake(10 * MICROSECOND, NEXT);
    }

    fn wake(&mut self, port: &mut Port<'_>, token: u64) {
        if token != NEXT {
            if token == self.uses && self.needs.is_empty() && self.task.is_some() {
                self.leave_no_trace(port);
                self.finish(port);
            }
        } else if self.phase == Phase::Run && self.task.is_none() && !self.dead {
            self.begin(port);
        }
    }

    fn complete(&mut self, port: &mut Port<'_>, done: &Completion) {
        let Some(key) = self.by_id.get(&done.lock).copied() else {
            return port.broken(format!("a completion for a lock that is gone: {done:?}"));
        };
        let outcome = self.glock(key).complete(port, done);
        if done.mode.is_none() {
            self.by_id.remove(&done.lock);
        }
        if let (Key::Inode(block), true) = (key, done.mode < Some(Mode::EX)) {
            self.created.remove(&block);
        }
        if self.glock(key).lost && self.glock(key).is_idle() {
            return self.undo(port, key);
        }
        if outcome == Outcome::Deadlock && !self.dead {
            let client = self.id;
            let result = self.glock(key).demote(port, client, Mode::NL, false);
            return self.check(port, key, result);
        }
        self.freed(port);
        if !self.needs.is_empty() && !self.dead {
            self.pursue(port);
        }
        self.demote(port, key);
        if self.phase == Phase::Drain {
            self.drain(port);
        }
    }

    fn bast(&mut self, port: &mut Port<'_>, lock: LockId, mode: Mode) {
        if let Some(key) = self.by_id.get(&lock).copied() {
            self.glock(key).bast(mode);
            self.demote(port, key);
        }
    }

    fn lost(&mut self, port: &mut Port<'_>, lock: LockId, reason: LostReason) {
        if reason == LostReason::Halted {
            self.dead = true;
            return;
        }
        let Some(key) = self.by_id.get(&lock).copied() else { return };
        if !self.how.hostile {
            port.broken(format!("{key:?}: conflict though the guarantee was kept"));
        }
        self.glock(key).lost = true;
        self.undo(port, key);
    }

    fn is(&self, client: ClientId) -> bool {
        self.id == client
    }

    fn enter(&mut self, port: &mut Port<'_>, phase: Phase) {
        self.phase = phase;
        if phase == Phase::Drain {
            self.drain(port);
        }
    }

    fn is_idle(&self) -> bool {
        match self.phase {
            Phase::Run => false,
            Phase::Settle => self.task.is_none() && self.locks.values().all(Glock::is_idle),
            Phase::Drain => self.task.is_none() && !self.locks.values().any(Glock::exists),
        }
    }
}
