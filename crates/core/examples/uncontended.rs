//! What an uncontended lock costs: pairs of lock and unlock per second on one node, beside a
//! hash map's insert and remove of the same names in the same run.
//!
//! ```text
//! cargo run --release -p lockify-core --example uncontended [PAIRS] [ROUNDS]
//! ```
//!
//! The two are timed in turns and the median of the rounds is printed with its spread, so that a
//! busy machine disturbs both alike.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use lockify_core::{
    ClientId, Config, ConvertArgs, Input, LockArgs, LockFlags, LockId, Lockspace, Member, Mode,
    Name, NodeId, Output, Policy, UnlockArgs, UnlockFlags, View,
};

const NAMES: usize = 1_000;
const CLIENT: ClientId = ClientId(1);

fn main() {
    let mut args = std::env::args().skip(1);
    let pairs = number(args.next(), 2_000_000);
    let rounds = number(args.next(), 7).max(1);
    let names: Vec<String> = (0..NAMES).map(|i| format!("inode:{i:016x}")).collect();

    let mut space = one_node();
    let (mut locks, mut converts, mut maps) = (Vec::new(), Vec::new(), Vec::new());
    lock_pairs(&mut space, &names, NAMES * 2);
    for _ in 0..rounds {
        locks.push(rate(pairs, || lock_pairs(&mut space, &names, pairs)));
        converts.push(rate(pairs, || conversions(&mut space, &names[0], pairs)));
        maps.push(rate(pairs, || map_pairs(&names, pairs)));
    }
    let (lock, map) = (median(&mut locks), median(&mut maps));
    println!("lock + unlock           {lock:>12.0} pairs/s   {}", spread(&locks));
    println!(
        "convert down + up       {:>12.0} pairs/s   {}",
        median(&mut converts),
        spread(&converts)
    );
    println!("hash map insert+remove  {map:>12.0} pairs/s   {}", spread(&maps));
    println!("lock + unlock costs {:.2} times the hash map's pair", map / lock);
    let bytes = lockify_core::footprint();
    println!("bytes per lock {}, per resource {}", bytes.lock, bytes.resource);
}

fn number(arg: Option<String>, default: usize) -> usize {
    arg.map_or(default, |text| {
        text.parse().unwrap_or_else(|_| {
            eprintln!("not a number: {text:?}; usage: uncontended [PAIRS] [ROUNDS]");
            std::process::exit(2)
        })
    })
}

fn one_node() -> Lockspace {
    let mut space = Lockspace::new(Config::new(NodeId(1), 1, Policy::Directory));
    let members = vec![Member { node: NodeId(1), incarnation: 1, weight: 1 }];
    handle(&mut space, Input::View(View { seq: 1, members }));
    space
}

fn handle(space: &mut Lockspace, input: Input) -> Option<LockId> {
    let answer = space.handle(0, input).expect("a valid call");
    while let Some(output) = space.poll() {
        black_box::<&Output>(&output);
    }
    answer
}

fn request(space: &mut Lockspace, name: &str) -> LockId {
    let args = LockArgs {
        client: CLIENT,
        tag: 0,
        name: Name::new(name).expect("a valid name"),
        mode: Mode::EX,
        flags: LockFlags::empty(),
        lvb: None,
        bast: true,
        timeout: None,
    };
    handle(space, Input::Lock(args)).expect("a new lock has an id")
}

fn unlock(space: &mut Lockspace, lock: LockId) {
    let flags = UnlockFlags::empty();
    handle(space, Input::Unlock(UnlockArgs { client: CLIENT, lock, tag: 0, flags, lvb: None }));
}

fn lock_pairs(space: &mut Lockspace, names: &[String], pairs: usize) {
    for i in 0..pairs {
        let lock = request(space, &names[i % names.len()]);
        unlock(space, lock);
    }
}

fn conversions(space: &mut Lockspace, name: &str, pairs: usize) {
    let lock = request(space, name);
    for _ in 0..pairs {
        for mode in [Mode::PR, Mode::EX] {
            let flags = LockFlags::empty();
            let args =
                ConvertArgs { client: CLIENT, lock, tag: 0, mode, flags, lvb: None, timeout: None };
            handle(space, Input::Convert(args));
        }
    }
    unlock(space, lock);
}

/// The reference: a map that owns its keys, as a lock table must.
fn map_pairs(names: &[String], pairs: usize) {
    let mut map: HashMap<Vec<u8>, u64> = HashMap::new();
    for i in 0..pairs {
        let name = names[i % names.len()].as_bytes();
        map.insert(black_box(name.to_vec()), i as u64);
        black_box(map.remove(name));
    }
}

fn rate(pairs: usize, work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    pairs as f64 / begin.elapsed().as_secs_f64()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Smallest and largest of sorted rates.
fn spread(rates: &[f64]) -> String {
    format!("({:.0} .. {:.0})", rates[0], rates[rates.len() - 1])
}
