//! The cost of waiting: wake-ups, and the time per grant, with few waiters and with many.

use std::time::{Duration, Instant};

use lockify_bench::locks::{self as bench, WaitEffort};
use lockify_core::{
    ClientId, Input, LockArgs, LockId, Lockspace, Mode, Name, Output, Status, UnlockArgs,
    UnlockFlags,
};
use lockify_daemon::{Config, Daemon};
use lockify_report::{Row, metric};

use super::core::one_node;
use super::locks::{quiet, temporary};
use super::{Effort, Measured};
use crate::exit::{Code, Failure, OrFail as _};

/// Waiters of one name, through a daemon and in the state machine.
const WAITERS: [usize; 3] = [1, 100, 10_000];
/// Further ones in the state machine: three times as many take three times as long.
const MORE: usize = 30_000;

/// How long waiters are watched in a round.
const WATCH: Duration = Duration::from_secs(3);

/// Measures both.
pub fn measure(effort: Effort) -> Measured {
    let rounds = effort.rounds.min(5);
    let mut rows = Vec::new();
    for waiters in WAITERS.into_iter().chain([MORE]) {
        rows.push(in_core(waiters, rounds)?);
    }
    let dir = temporary()?;
    let config = Config::alone(dir.path().join("lockify.sock"));
    let daemon = Daemon::start(&config, &quiet()).or_fail(Code::Failed)?;
    let effort = WaitEffort { rounds: rounds.min(3), watch: WATCH / effort.shorter.min(3) as u32 };
    for waiters in WAITERS {
        let measured = bench::waits(&config.socket, "default", waiters, effort);
        rows.extend(measured.or_fail(Code::Failed)?);
    }
    drop(daemon);
    Ok(rows)
}

/// The time from the holder's unlock until each waiter has been granted and has unlocked, by waiter.
fn in_core(waiters: usize, rounds: usize) -> Result<Row, Failure> {
    let mut space = one_node()?;
    let name = Name::new("wait").or_fail(Code::Failed)?;
    let mut grants = Vec::new();
    for _ in 0..rounds {
        let mut held = Some(ask(&mut space, name, 0)?);
        for client in 1..=waiters {
            ask(&mut space, name, client as u64)?;
        }
        while space.poll().is_some() {}
        let (begin, mut client) = (Instant::now(), ClientId(0));
        while let Some(lock) = held {
            let flags = UnlockFlags::empty();
            let args = UnlockArgs { client, lock, tag: 0, flags, lvb: None };
            space.handle(0, Input::Unlock(args)).or_fail(Code::Failed)?;
            held = None;
            while let Some(output) = space.poll() {
                if let Output::Complete(ended) = output
                    && ended.status == Status::Granted
                {
                    (held, client) = (Some(ended.lock), ended.client);
                }
            }
        }
        grants.push(begin.elapsed().as_secs_f64() * 1e6 / waiters as f64);
    }
    let row = Row::of("wait", &metric::LATENCY_US, &grants).with("of", "grant");
    Ok(row.with("where", "core").with("waiters", waiters))
}

fn ask(space: &mut Lockspace, name: Name, client: u64) -> Result<LockId, Failure> {
    let args = LockArgs { bast: true, ..LockArgs::new(name, Mode::EX) };
    let id =
        space.handle(0, Input::Lock { client: ClientId(client), args }).or_fail(Code::Failed)?;
    id.ok_or_else(|| Failure::new(Code::Failed, "a new lock has no id: report this defect"))
}
