//! N-CoSED's latencies and cascades (docs/design/onesided.md 2.3).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lockify_onesided::port::{Port, SharedMemory};
use lockify_onesided::{
    Capabilities, Client, Fabric as _, LockError, LockId, Mode, Options, Peer, Protocol, Table,
    serve,
};
use lockify_report::{Row, metric};
use lockify_sim::{MICROSECOND, Nanos, NodeId, SECOND};

use super::{Part, row};
use crate::host::{Notes, Setting, Task, fabric};
use crate::measure::MeasureError;
use crate::profile::{IPC, IPC_BEGIN, NOTIFICATION, POLLING, Table1};

const PROTOCOLS: [Protocol; 3] = [Protocol::Srsl, Protocol::Dqnl, Protocol::NCosed];

const LOCK: LockId = LockId(0);

/// Waiters of the largest cascade.
pub(super) const MOST_WAITERS: usize = 16;

pub(super) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for table in [POLLING, NOTIFICATION] {
        for protocol in PROTOCOLS {
            parts.push(Part::new(
                format!("latency, {} {}", table.name, protocol.name()),
                move || {
                    let nanos = cascade(&table, protocol, Mode::Exclusive, 0)? + 2 * IPC;
                    let published =
                        if protocol == Protocol::Srsl { table.srsl_us } else { table.one_sided_us };
                    let lock = row(&metric::LATENCY_US, nanos as f64 / 1e3).published(published);
                    let unlock = row(&metric::LATENCY_US, IPC_BEGIN as f64 / 1e3).published(1.1);
                    let case = |row: Row, what: &str| {
                        row.with("experiment", "latency")
                            .with("completions", table.name)
                            .with("operation", what)
                    };
                    let by = |row: Row| row.with("protocol", protocol.name());
                    Ok(vec![by(case(lock, "lock")), by(case(unlock, "unlock"))])
                },
            ));
        }
    }
    for protocol in PROTOCOLS {
        for (mode, name) in [(Mode::Shared, "shared"), (Mode::Exclusive, "exclusive")] {
            parts.push(Part::new(format!("cascade, {} {name}", protocol.name()), move || {
                let at = |waiters: usize| {
                    let nanos = cascade(&POLLING, protocol, mode, waiters)?;
                    let row =
                        row(&metric::LATENCY_US, nanos as f64 / 1e3).with("experiment", "cascade");
                    Ok(row
                        .with("protocol", protocol.name())
                        .with("mode", name)
                        .with("waiters", waiters))
                };
                (1..=MOST_WAITERS).map(at).collect()
            }));
        }
    }
    parts
}

/// When things happened.
#[derive(Default)]
struct Times {
    released: Cell<Nanos>,
    last: Cell<Nanos>,
    failed: RefCell<Option<LockError>>,
}

/// One exclusive holder and a number of waiters behind it, all of one mode. Each releases at once after its grant. The
/// result is the time from the holder's release to the last grant. Without waiters, it is the time of the holder's own
/// lock.
fn cascade(
    costs: &Table1,
    protocol: Protocol,
    mode: Mode,
    waiters: usize,
) -> Result<Nanos, MeasureError> {
    let memory = SharedMemory::default();
    let bytes = Table::bytes(1, 64).unwrap_or(0);
    let region = memory.borrow_mut().register(Peer(1), bytes)?;
    let table = Table::new(region, 1, 64)?;
    let options = Options::new(protocol);
    let times: Rc<Times> = Rc::default();
    let setting = Setting {
        profile: Rc::new(costs.profile()),
        memory,
        stalls: None,
        capabilities: Capabilities::default(),
        notes_adds: false,
    };
    let shared = times.clone();
    let make = move |node: NodeId, port: Port, _: Notes| -> Task {
        let times = shared.clone();
        if node == NodeId(0) {
            return Box::pin(async move {
                // The home's own verbs are local, and cannot fail.
                let _ = serve(port, table, options).await;
            });
        }
        let holder = node == NodeId(1);
        let begins = u64::from(node.0) * 200 * MICROSECOND;
        Box::pin(async move {
            let work = async {
                let mut client = Client::new(port.clone(), table, options)?;
                // Connections are made before anything is timed.
                port.read(region.word(0)).await?;
                port.sleep_until(begins).await;
                let guard = client.lock(LOCK, if holder { Mode::Exclusive } else { mode }).await?;
                let now = port.now();
                if holder && waiters > 0 {
                    port.sleep_until(SECOND / 10).await;
                    times.released.set(port.now());
                } else if holder {
                    times.released.set(begins);
                    times.last.set(now);
                } else {
                    times.last.set(times.last.get().max(now));
                }
                client.unlock(guard).await
            };
            if let Err(error) = work.await {
                times.failed.borrow_mut().get_or_insert(error);
            }
        })
    };
    let mut sim = fabric(1, setting, waiters + 1, 0, Box::new(make));
    while sim.next_report(SECOND).is_ok() {}
    match times.failed.borrow_mut().take() {
        Some(error) => Err(error.into()),
        None => Ok(times.last.get().saturating_sub(times.released.get())),
    }
}
