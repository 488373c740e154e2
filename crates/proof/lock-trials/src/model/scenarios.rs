//! The scenarios of the model check.

use lockify_core::{ClaimMode, Config, LockFlags, Mode, Name, NodeId, Policy, UnlockFlags};

use super::state::{Action, Bounds, ClientStep, State};
use ClientStep::{Await, Convert, Lock, Unlock};

/// Node 0 is the directory of all names, node 1 claims, node 2 is the third one.
#[derive(Clone)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The lockspaces' configuration.
    pub config: Config,
    /// The scripts of the nodes' clients.
    pub scripts: Vec<Vec<ClientStep>>,
    /// How far to go.
    pub bounds: Bounds,
}

impl Scenario {
    /// The first state.
    ///
    /// # Errors
    /// The violation before the first step.
    pub fn start(&self) -> Result<State, String> {
        State::new(self.config.clone(), self.scripts.clone(), self.bounds)
    }
}

const NONE: LockFlags = LockFlags::empty();
const CLAIM: LockFlags = LockFlags::NOTIFY;
const GONE: UnlockFlags = UnlockFlags::empty();

/// All scenarios, each with bounds that let the whole finish in about a minute.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        creation(),
        creation_lossy(),
        creation_crash(),
        creation_join(),
        intruder(),
        crossed(),
        crossed_unflagged(),
        reuse(),
        reuse_lossy(),
        brief_doubled(),
        brief_lost(),
        exit(),
        stale_cache(),
        excluded(),
    ]
}

/// The scenario of an isolated member that is taken for dead while its lease still runs.
pub fn proved_dead_too_early() -> Scenario {
    let mut scenario = excluded();
    scenario.name = "proved dead too early";
    scenario.bounds.early = true;
    scenario
}

fn config() -> Config {
    let mut config = Config::new(NodeId(0), 1, Policy::Claim(ClaimMode::Optimistic));
    config.lvb_len = 4;
    config.trace = true;
    config.batch_entries = 1;
    config.toss_after = 10_000_000;
    config.merge_patience = 20_000_000;
    config
}

fn lossy() -> Config {
    Config { claim_resend: Some(1_000_000), ..config() }
}

fn bounds() -> Bounds {
    Bounds { depth: 60, states: 400_000, ..Bounds::default() }
}

/// Names whose directory is node 0, as long as it is a member. The search looks at the nodes that node 1 asks for
/// them.
fn names() -> [Name; 3] {
    let fits = |name: &Name| {
        let asks = |nodes: usize| {
            let mut scripts = vec![vec![]; nodes];
            scripts[1] = vec![Lock(0, *name, Mode::NL, NONE)];
            State::new(config(), scripts, Bounds::default())
                .and_then(|mut state| state.apply(Action::Client(1)).map(|()| state.receivers(1)))
        };
        [2, 3].into_iter().all(|nodes| asks(nodes) == Ok(vec![0]))
    };
    let mut found = (0..).map(|i| Name::new(format!("n{i}")).expect("short enough")).filter(fits);
    std::array::from_fn(|_| found.next().expect("there are endless names"))
}

/// The guarantee is kept: the third node learns the name under the parent's lock.
fn creation_scripts() -> Vec<Vec<ClientStep>> {
    let [parent, child, _] = names();
    vec![
        vec![],
        vec![
            Lock(0, parent, Mode::EX, NONE),
            Await(0),
            Lock(1, child, Mode::EX, CLAIM),
            Await(1),
            Convert(0, Mode::NL, NONE),
            Convert(1, Mode::PR, NONE),
            Await(0),
            Unlock(0, GONE),
            Await(1),
            Unlock(1, GONE),
        ],
        vec![
            Lock(0, parent, Mode::PR, NONE),
            Await(0),
            Lock(1, child, Mode::EX, NONE),
            Await(1),
            Unlock(1, GONE),
            Unlock(0, GONE),
        ],
    ]
}

fn creation() -> Scenario {
    Scenario {
        name: "creation",
        config: config(),
        scripts: creation_scripts(),
        bounds: Bounds { ticks: 2, ..bounds() },
    }
}

fn creation_lossy() -> Scenario {
    Scenario {
        name: "creation, lossy",
        config: lossy(),
        scripts: creation_scripts(),
        bounds: Bounds { drops: 1, duplicates: 1, ticks: 1, depth: 34, ..bounds() },
    }
}

fn creation_crash() -> Scenario {
    Scenario {
        name: "creation, crash",
        config: config(),
        scripts: creation_scripts(),
        bounds: Bounds { crashes: 1, ..bounds() },
    }
}

fn creation_join() -> Scenario {
    Scenario {
        name: "creation, join",
        config: config(),
        scripts: creation_scripts(),
        bounds: Bounds { join: true, ..bounds() },
    }
}

/// The guarantee is broken: the third node takes the name while it may be being claimed.
fn intruder() -> Scenario {
    let [parent, child, _] = names();
    Scenario {
        name: "intruder",
        config: config(),
        scripts: vec![
            vec![],
            vec![
                Lock(0, parent, Mode::EX, NONE),
                Await(0),
                Lock(1, child, Mode::EX, CLAIM),
                Await(1),
                Unlock(0, GONE),
                Await(0),
                Unlock(1, GONE),
            ],
            vec![Lock(0, child, Mode::EX, NONE), Await(0), Unlock(0, GONE)],
        ],
        bounds: Bounds { ticks: 1, ..bounds() },
    }
}

fn crossed_scripts(freed: UnlockFlags) -> Vec<Vec<ClientStep>> {
    let [parent, x, y] = names();
    let script = |mine: Name, claimed: Name| {
        vec![
            Lock(0, mine, Mode::EX, NONE),
            Await(0),
            Lock(1, claimed, Mode::EX, CLAIM),
            Unlock(0, freed),
            Await(1),
            Unlock(1, GONE),
        ]
    };
    let _ = parent;
    vec![vec![], script(x, y), script(y, x)]
}

/// Two nodes refuse each other's claims; the locks in the way belong to objects that are being freed.
fn crossed() -> Scenario {
    Scenario {
        name: "crossed refusals",
        config: config(),
        scripts: crossed_scripts(UnlockFlags::FREED),
        bounds: Bounds { no_conflict: true, ..bounds() },
    }
}

/// The same without the flag: patience has to end it.
fn crossed_unflagged() -> Scenario {
    Scenario {
        name: "crossed, unflagged",
        config: config(),
        scripts: crossed_scripts(GONE),
        bounds: bounds(),
    }
}

/// An object is freed, its name made again elsewhere while its locks are still cached here.
fn reuse_scripts() -> Vec<Vec<ClientStep>> {
    let [parent, child, _] = names();
    vec![
        vec![],
        vec![
            Lock(0, parent, Mode::EX, NONE),
            Await(0),
            Lock(1, child, Mode::EX, CLAIM),
            Await(1),
            Convert(1, Mode::NL, LockFlags::FREED),
            Await(1),
            Unlock(0, GONE),
            Await(0),
            Unlock(1, GONE),
        ],
        vec![
            Lock(0, parent, Mode::EX, NONE),
            Await(0),
            Lock(1, child, Mode::EX, CLAIM),
            Await(1),
            Unlock(0, GONE),
            Await(0),
            Unlock(1, GONE),
        ],
    ]
}

fn reuse() -> Scenario {
    Scenario {
        name: "reuse",
        config: config(),
        scripts: reuse_scripts(),
        bounds: Bounds { ticks: 2, ..bounds() },
    }
}

fn reuse_lossy() -> Scenario {
    Scenario {
        name: "reuse, lossy",
        config: lossy(),
        scripts: reuse_scripts(),
        bounds: Bounds { duplicates: 1, ticks: 2, depth: 30, ..bounds() },
    }
}

fn brief_scripts() -> Vec<Vec<ClientStep>> {
    let [_, child, _] = names();
    let claimer = vec![Lock(0, child, Mode::EX, CLAIM), Await(0), Unlock(0, UnlockFlags::FREED)];
    vec![vec![], claimer, vec![]]
}

/// The claimed lock is gone before its claim is settled; messages come late and twice. (A lost answer to a late
/// duplicate is not in the bounds: then the record stays until somebody follows it.)
fn brief_doubled() -> Scenario {
    Scenario {
        name: "brief, doubled",
        config: lossy(),
        scripts: brief_scripts(),
        bounds: Bounds { duplicates: 2, ticks: 3, ..bounds() },
    }
}

/// The same; messages get lost.
fn brief_lost() -> Scenario {
    Scenario {
        name: "brief, lost",
        config: lossy(),
        scripts: brief_scripts(),
        bounds: Bounds { drops: 2, ..bounds() },
    }
}

/// The creator's process ends while its claim is pending.
fn exit() -> Scenario {
    let [parent, child, _] = names();
    Scenario {
        name: "exit",
        config: config(),
        scripts: vec![
            // The directory node masters the parent, so that the claimer has to tell it of the unlock.
            vec![Lock(0, parent, Mode::NL, NONE), Await(0), Unlock(0, GONE)],
            vec![
                Lock(0, parent, Mode::EX, NONE),
                Await(0),
                Lock(1, child, Mode::EX, CLAIM),
                Await(1),
                ClientStep::Exit,
            ],
            vec![
                Lock(0, parent, Mode::PR, NONE),
                Await(0),
                Lock(1, child, Mode::PR, NONE),
                Await(1),
                Unlock(1, GONE),
                Unlock(0, GONE),
            ],
        ],
        bounds: Bounds { depth: 27, ..bounds() },
    }
}

/// The third node still regards the claimer as the master, from an earlier time. Meanwhile the directory node
/// masters the name itself.
fn stale_cache() -> Scenario {
    let [_, child, _] = names();
    Scenario {
        name: "stale cache",
        config: config(),
        scripts: vec![
            vec![Lock(0, child, Mode::NL, NONE), Await(0), Unlock(0, GONE)],
            vec![
                Lock(0, child, Mode::PR, NONE),
                Await(0),
                Unlock(0, GONE),
                Await(0),
                Lock(1, child, Mode::EX, CLAIM),
                Await(1),
                Unlock(1, GONE),
            ],
            vec![
                Lock(0, child, Mode::PR, NONE),
                Await(0),
                Unlock(0, GONE),
                Await(0),
                Lock(1, child, Mode::PR, NONE),
                Await(1),
                Unlock(1, GONE),
            ],
        ],
        bounds: Bounds { ticks: 2, depth: 30, ..bounds() },
    }
}

/// A member with a lock is isolated, and acts until its lease ends. The others want the lock.
fn excluded() -> Scenario {
    let [name, ..] = names();
    let script = || vec![Lock(0, name, Mode::EX, NONE), Await(0), Unlock(0, GONE)];
    Scenario {
        name: "excluded",
        config: config(),
        scripts: vec![vec![], script(), script()],
        bounds: Bounds { exclusions: 1, ..bounds() },
    }
}
