mod common;
use common::*;
use lockify_core::*;
use std::collections::BTreeMap;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545F4914F6CDD1D) >> 11
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn pick<'a, T>(&mut self, v: &'a [T]) -> &'a T {
        &v[self.below(v.len() as u64) as usize]
    }
}

#[derive(Debug, Clone)]
struct L {
    busy: bool,
    mode: Option<Mode>,
    client: u64,
    name: String,
    unlocking: bool,
}

fn run(seed: u64, policy: Policy, faults: bool, verbose: bool) {
    let mut r = Rng(seed.wrapping_mul(0x9E3779B97F4A7C15) | 1);
    for _ in 0..10 {
        r.next();
    }
    let n = 2 + r.below(4) as u32;
    let mut c = Cluster::with(n, policy, |cfg| {
        cfg.trace = verbose;
        cfg.toss_after = 3 * MS;
    });
    c.told.clear();
    let mut locks: BTreeMap<(NodeId, LockId), L> = BTreeMap::new();
    let names = ["a", "b", "c", "d"];
    let mut inc = 1u64;
    let steps = 400;
    let mut pending_view = 0;
    for step in 0..steps {
        let nodes: Vec<NodeId> = c.nodes.keys().copied().collect();
        match r.below(100) {
            0..=24 => {
                let nd = *r.pick(&nodes);
                let nm = *r.pick(&names);
                let mode = *r.pick(&Mode::ALL);
                let mut flags = LockFlags::empty();
                if r.below(5) == 0 {
                    flags |= LockFlags::NOQUEUE;
                }
                if r.below(5) == 0 {
                    flags |= LockFlags::VALBLK;
                }
                if r.below(8) == 0 {
                    flags |= LockFlags::HEADQUE;
                }
                if r.below(8) == 0 {
                    flags |= LockFlags::NOORDER;
                }
                if r.below(8) == 0 {
                    flags |= LockFlags::ALTPR;
                }
                if r.below(8) == 0 {
                    flags |= LockFlags::PERSISTENT;
                }
                let client = r.below(3);
                let args = LockArgs {
                    client: ClientId(client),
                    tag: step,
                    name: name(nm),
                    mode,
                    flags,
                    lvb: Some(vec![0; 32].into()),
                    bast: true,
                    timeout: (r.below(10) == 0).then_some(5 * MS),
                };
                if verbose {
                    println!("{step} n{nd} lock {nm} {mode} {flags:?}");
                }
                if let Ok(Some(id)) = c.input(nd, Input::Lock(args)) {
                    locks.insert(
                        (nd, id),
                        L { busy: true, mode: None, client, name: nm.into(), unlocking: false },
                    );
                }
            }
            25..=44 if !locks.is_empty() => {
                let keys: Vec<_> = locks.keys().copied().collect();
                let (nd, id) = *r.pick(&keys);
                let l = locks[&(nd, id)].clone();
                let k = r.below(10);
                if verbose {
                    println!("{step} n{nd} op {k} on {id:?} {l:?}");
                }
                if k < 5 && l.busy {
                    continue;
                }
                let res = if k < 5 {
                    let mode = *r.pick(&Mode::ALL);
                    let mut flags = LockFlags::empty();
                    if r.below(5) == 0 {
                        flags |= LockFlags::NOQUEUE;
                    } else if r.below(5) == 0 {
                        flags |= LockFlags::CONVDEADLK;
                    }
                    if r.below(5) == 0 {
                        flags |= LockFlags::VALBLK;
                    }
                    if r.below(9) == 0 {
                        flags |= LockFlags::NODLCKWT;
                    }
                    let res = c.input(
                        nd,
                        Input::Convert(ConvertArgs {
                            client: ClientId(l.client),
                            lock: id,
                            tag: step,
                            mode,
                            flags,
                            lvb: Some(vec![step as u8; 32].into()),
                            timeout: None,
                        }),
                    );
                    if res.is_ok() {
                        locks.get_mut(&(nd, id)).map(|l| l.busy = true);
                    }
                    res
                } else if k < 8 {
                    let mut flags = UnlockFlags::empty();
                    if r.below(3) == 0 {
                        flags |= UnlockFlags::FORCE;
                    }
                    let res = c.input(
                        nd,
                        Input::Unlock(UnlockArgs {
                            client: ClientId(l.client),
                            lock: id,
                            tag: step,
                            flags,
                            lvb: None,
                        }),
                    );
                    if res.is_ok() {
                        locks.get_mut(&(nd, id)).map(|l| {
                            l.busy = true;
                            l.unlocking = true
                        });
                    }
                    res
                } else {
                    c.input(nd, Input::Cancel { client: ClientId(l.client), lock: id })
                };
                if verbose {
                    println!("   -> {res:?}");
                }
            }
            45..=46 => {
                let nd = *r.pick(&nodes);
                let client = r.below(3);
                if verbose {
                    println!("{step} n{nd} client {client} gone");
                }
                c.input(nd, Input::ClientGone(ClientId(client))).unwrap();
                locks.retain(|(n2, _), l| !(*n2 == nd && l.client == client));
                if r.below(2) == 0 {
                    c.input(nd, Input::Purge { node: nd, client: None }).ok();
                }
            }
            47..=48 => {
                c.now += r.below(4) * MS;
                for nd in nodes {
                    c.input(nd, Input::Tick).unwrap();
                }
            }
            49 if faults && nodes.len() > 2 => {
                let v = *r.pick(&nodes);
                if verbose {
                    println!("{step} KILL {v}");
                }
                c.kill(v);
                locks.retain(|(n2, _), _| *n2 != v);
                c.view();
                pending_view = 1;
            }
            50 if faults && nodes.len() < 6 => {
                inc += 1;
                let id = (1..=6).map(NodeId).find(|x| !c.nodes.contains_key(x)).unwrap();
                if verbose {
                    println!("{step} JOIN {id}");
                }
                let mut cfg = Config::new(id, inc, policy);
                cfg.trace = verbose;
                cfg.toss_after = 3 * MS;
                c.nodes.insert(id, Lockspace::new(cfg));
                c.view();
            }
            51 if faults => {
                c.view();
            }
            _ => {
                let wires: Vec<_> =
                    c.wires.iter().filter(|(_, q)| !q.is_empty()).map(|(w, _)| *w).collect();
                if !wires.is_empty() {
                    let (f, t) = *r.pick(&wires);
                    if verbose {
                        println!("{step} {f}->{t} {:?}", c.wires[&(f, t)].front().unwrap());
                    }
                    c.deliver(f, t);
                }
            }
        }
        let _ = pending_view;
        absorb(&mut c, &mut locks, verbose);
        c.assert_sound();
    }
    // drain
    for round in 0..60 {
        c.run();
        absorb(&mut c, &mut locks, verbose);
        c.pass(4 * MS);
        absorb(&mut c, &mut locks, verbose);
        if round < 3 {
            continue;
        }
        // unlock everything idle
        let keys: Vec<_> =
            locks.iter().filter(|(_, l)| !l.busy).map(|(k, l)| (*k, l.client)).collect();
        for ((nd, id), client) in keys {
            let res = c.input(
                nd,
                Input::Unlock(UnlockArgs {
                    client: ClientId(client),
                    lock: id,
                    tag: 9999,
                    flags: UnlockFlags::empty(),
                    lvb: None,
                }),
            );
            if verbose {
                println!("drain n{nd} unlock {id:?} -> {res:?}");
            }
            assert!(res.is_ok(), "{res:?}");
            locks.get_mut(&(nd, id)).unwrap().busy = true;
        }
        if round > 20 {
            for ((nd, id), l) in locks.clone() {
                if l.busy {
                    c.input(nd, Input::Cancel { client: ClientId(l.client), lock: id }).ok();
                }
            }
        }
        for nd in c.nodes.keys().copied().collect::<Vec<_>>() {
            c.input(nd, Input::Purge { node: nd, client: None }).unwrap();
        }
    }
    c.run();
    absorb(&mut c, &mut locks, verbose);
    assert!(locks.is_empty(), "stuck: {locks:?}");
    for (nd, s) in &c.nodes {
        assert_eq!(s.resources(), [], "node {nd}");
        assert_eq!(s.directory(), [], "node {nd}");
        assert_eq!(s.lock_count(), 0);
    }
}

fn absorb(c: &mut Cluster, locks: &mut BTreeMap<(NodeId, LockId), L>, verbose: bool) {
    for (n, o) in std::mem::take(&mut c.told) {
        if verbose {
            println!("      n{n} {o:?}");
        }
        if let Output::Complete(done) = o {
            if let Some(l) = locks.get_mut(&(n, done.lock)) {
                assert!(l.busy || l.unlocking, "completion for idle lock {done:?}");
                l.busy = false;
                l.mode = done.mode;
                assert!(!matches!(done.status, Status::Refused(_)), "{done:?}");
                if done.mode.is_none() {
                    locks.remove(&(n, done.lock));
                }
            }
        } else if let Output::Withdraw(_) = o {
            panic!("withdraw");
        }
    }
    // incompatible grants among clients
    let v: Vec<_> =
        locks.iter().filter(|(_, l)| l.mode.is_some() && !l.busy && !l.unlocking).collect();
    for (i, (k1, a)) in v.iter().enumerate() {
        for (k2, b) in &v[i + 1..] {
            if a.name == b.name {
                assert!(
                    a.mode.unwrap().compatible(b.mode.unwrap()),
                    "INCOMPATIBLE {k1:?} {a:?} {k2:?} {b:?}"
                );
            }
        }
    }
}

#[test]
fn chaos() {
    let one: Option<u64> = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
    let n: u64 = std::env::var("N").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    let mut failed = 0;
    for policy in
        [Policy::Directory, Policy::Claim(ClaimMode::Optimistic), Policy::Broadcast, Policy::Home]
    {
        if std::env::var("P").is_ok_and(|p| p != policy.name()) {
            continue;
        }
        for faults in [false, true] {
            if std::env::var("F").is_ok_and(|p| p != faults.to_string()) {
                continue;
            }
            let range = one.map_or(0..n, |s| s..s + 1);
            for seed in range {
                let v = one.is_some();
                if std::env::var("V").is_ok() {
                    eprintln!("seed {seed}");
                }
                if let Err(_) = std::panic::catch_unwind(|| run(seed, policy, faults, v)) {
                    println!("FAIL P={} F={faults} SEED={seed}", policy.name());
                    failed += 1;
                    if failed > 12 {
                        panic!("many")
                    }
                    break;
                }
            }
        }
    }
    assert_eq!(failed, 0);
}
