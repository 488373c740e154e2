//! Uncontended locks in the state machine, next to a hash map's insert and remove of the same
//! names.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use lockify_core::{
    ClientId, Config, Input, LockArgs, LockId, Lockspace, Member, Mode, Name, NodeId, Policy,
    UnlockArgs, UnlockFlags, View,
};
use lockify_report::{Row, metric};

use super::{Effort, Measured};
use crate::exit::{Code, Failure, OrFail as _};

const NAMES: usize = 1000;
const PAIRS: usize = 2_000_000;
const CLIENT: ClientId = ClientId(1);

/// Measures both in turns, so that a busy machine disturbs both alike.
pub fn measure(effort: Effort) -> Measured {
    let pairs = PAIRS / effort.shorter;
    let names = names(NAMES)?;
    let mut space = one_node()?;
    lock_pairs(&mut space, &names, 2 * NAMES)?;
    let (mut locks, mut maps) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let start = Instant::now();
        lock_pairs(&mut space, &names, pairs)?;
        let middle = Instant::now();
        map_pairs(&names, pairs);
        maps.push(pairs as f64 / middle.elapsed().as_secs_f64());
        locks.push(pairs as f64 / (middle - start).as_secs_f64());
    }
    let ratios: Vec<f64> = maps.iter().zip(&locks).map(|(map, lock)| map / lock).collect();
    Ok(vec![
        Row::of("core", &metric::LOCKS_PER_S, &locks).with("of", "lock and unlock"),
        Row::of("core", &metric::LOCKS_PER_S, &maps).with("of", "hash map insert and remove"),
        Row::of("core", &metric::RATIO_TO_BARE, &ratios).with("of", "lock and unlock"),
    ])
}

/// So many names of resources.
pub fn names(count: usize) -> Result<Vec<Name>, Failure> {
    (0..count).map(|i| Name::new(format!("inode:{i:016x}")).or_fail(Code::Failed)).collect()
}

/// A lockspace that runs on this node alone.
pub fn one_node() -> Result<Lockspace, Failure> {
    let mut space = Lockspace::new(Config::new(NodeId(1), 1, Policy::Directory));
    let members = vec![Member { node: NodeId(1), incarnation: 1, weight: 1 }];
    feed(&mut space, Input::View(View { seq: 1, members }))?;
    Ok(space)
}

/// Makes a lock that is granted at once.
pub fn lock(space: &mut Lockspace, name: Name, mode: Mode) -> Result<LockId, Failure> {
    let args = LockArgs { bast: true, ..LockArgs::new(name, mode) };
    let id = feed(space, Input::Lock { client: CLIENT, args })?;
    id.ok_or_else(|| Failure::new(Code::Failed, "a new lock has no id: report this defect"))
}

fn feed(space: &mut Lockspace, input: Input) -> Result<Option<LockId>, Failure> {
    let id = space.handle(0, input).or_fail(Code::Failed)?;
    while let Some(output) = space.poll() {
        black_box(output);
    }
    Ok(id)
}

fn lock_pairs(space: &mut Lockspace, names: &[Name], pairs: usize) -> Result<(), Failure> {
    for name in names.iter().cycle().take(pairs) {
        let lock = lock(space, *name, Mode::EX)?;
        let flags = UnlockFlags::empty();
        let args = UnlockArgs { client: CLIENT, lock, tag: 0, flags, lvb: None };
        feed(space, Input::Unlock(args))?;
    }
    Ok(())
}

/// A map that owns its keys, as a lock table must.
fn map_pairs(names: &[Name], pairs: usize) {
    let mut map: HashMap<Vec<u8>, usize> = HashMap::new();
    for (i, name) in names.iter().cycle().take(pairs).enumerate() {
        map.insert(black_box(name.as_bytes().to_vec()), i);
        black_box(map.remove(name.as_bytes()));
    }
}
