//! A host of an array, as a library.
//!
//! [`Array::open`] connects to the array's devices and gives a handle that many threads may use at once. One thread runs the
//! state machine of a host and does all their work. [`Array::submit`] does not wait for it; the other calls do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockify_array::{
    ArrayHost, ArrayState, Change, DeviceId, HostAnswer, HostConfig, HostCounts, Layout, Life,
    NodeName, OpError, Outlook, Span, Time, Usage, Work,
};
use lockify_trust::{Address, Identity};

mod attach;
mod calls;
mod engine;
mod fencing;

use crate::history::HostHistory;
use crate::wire::{Me, Net, Role, Target, Whom};
use crate::{ArrayFile, Durability, HistoryError};
pub(crate) use attach::VISITORS;
pub use attach::{MemoryError, Reservation};
use calls::Calls;
pub use calls::Done;
use engine::HostEngine;
pub use fencing::this_node;

/// Pieces of work that are under way at most. A caller that submits more waits.
pub const IN_FLIGHT: usize = 256;

/// How many leases a device may owe an answer. Then operations that wait for it fail.
const PATIENCE_LEASES: u64 = 8;
/// It may take as long, whatever the lease, nanoseconds: a medium may be slow.
const LEAST_PATIENCE: u64 = 5_000_000_000;

/// The identity and options of a program that opens an array.
#[derive(Clone, Debug)]
pub struct Joining {
    /// A file that names the last process of this host, and that is locked. If that process has not ended in order, it is
    /// fenced before this one serves.
    pub memory: Option<PathBuf>,
    /// The node that it runs on, as cluster managers call it. Whoever fences the node, fences this host.
    pub node: NodeName,
    /// What it is for. One that excludes others is refused while they are there.
    pub usage: Usage,
    /// How it proves who it is.
    pub identity: Identity,
    /// How long devices may take to become ready.
    pub patience: Duration,
    /// Is told what an operator should know, on the array's thread.
    pub log: fn(&str),
}

/// Why an array is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An address that others can reach, without keys.
    #[error(
        "{0} is not loopback, and nothing says how hosts and devices prove who they are: give --ca and --identity, or \
         --cluster-key (`lockify cluster` makes them), or --plain-text {words:?}", words = lockify_trust::PLAIN_TEXT
    )]
    Exposed(Address),
    /// Too few devices can be reached, or they refuse.
    #[error("cannot open the array: {0}")]
    Unreachable(String),
    /// The host's own memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Its history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The system refuses threads or sockets.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
}

/// How a connection stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// With whom.
    pub(crate) whom: Whom,
    /// Why there is none; `None` if there is one.
    pub down: Option<String>,
    /// One of both does not want the other: waiting will not help.
    pub refused: bool,
}

/// A host's knowledge of the array.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The newest state that it has heard of.
    pub state: ArrayState,
    /// Its connections.
    pub connections: Vec<Connection>,
}

/// The findings of a scrub in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks at which parity did not fit.
    pub mismatches: u32,
    /// Blocks whose content is lost.
    pub lost: u32,
    /// Columns of which nobody knows which block is right. They are as they were.
    pub undecided: u32,
}

impl Scrubbed {
    /// Returns true if some of the stripe's blocks did not fit.
    pub(crate) fn is_unfit(&self) -> bool {
        self.mismatches > 0 || self.undecided > 0
    }
}

/// A rebuild's findings in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rebuilt {
    /// Blocks whose content is lost.
    pub lost: u32,
    /// Those of them that this rebuild has marked.
    pub marked: u32,
}

impl Scrubbed {
    /// The findings of a scrub; none if it was something else.
    pub(crate) fn of(answer: &HostAnswer) -> Option<Scrubbed> {
        match *answer {
            HostAnswer::Scrubbed { mismatches, lost } => {
                Some(Scrubbed { mismatches, lost, undecided: 0 })
            }
            HostAnswer::Undecided { mismatches, lost, undecided } => {
                Some(Scrubbed { mismatches, lost, undecided })
            }
            _ => None,
        }
    }
}

/// What a scrub may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Repair {
    /// It only looks.
    #[default]
    None,
    /// What headers tell.
    Known,
    /// That, and parity that fits the data where nobody knows which block is right.
    AcceptLoss,
}

/// A host of an array. Clones are the same host; it ends with the last of them, or with [`Array::close`].
#[derive(Clone)]
pub struct Array {
    /// As in the array's file.
    layout: Layout,
    /// How many lock servers there are.
    servers: usize,
    life: Life,
    calls: Arc<Calls>,
    /// Held until the last handle is gone.
    memory: Option<Arc<attach::Memory>>,
    /// Nothing for visitors.
    attached: Option<Arc<attach::Attached>>,
    _end: Arc<End>,
}

/// How long the end of a host that could not begin may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// The uses that an array is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To read and write.
    Use,
    /// To repair, or to change the array's state. The array can continue without a device while the lock server is away.
    Repair,
}

/// Ends the host with the last handle.
struct End(Arc<Calls>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Array {
    /// Connects to the array's devices, as a host that no process was before. Comes back when it can read and write.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(file: &ArrayFile, joining: &Joining) -> Result<Array, OpenError> {
        Array::open_with(file, joining, None, false)
    }

    /// As [`Array::open`], and records its requests and answers in a new file, for `lockify check`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_recorded(
        file: &ArrayFile,
        joining: &Joining,
        history: &Path,
    ) -> Result<Array, OpenError> {
        Array::open_with(file, joining, Some(history), false)
    }

    /// As [`Array::open`], and has the array for itself beyond the end of this process: until [`Array::leave`], or until somebody
    /// fences the [`Reservation`]. The next process with the same memory continues it. Without a memory it ends with this host.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_reserved(
        file: &ArrayFile,
        joining: &Joining,
        history: Option<&Path>,
    ) -> Result<Array, OpenError> {
        let joining = Joining { usage: Usage::Exclusive, ..joining.clone() };
        Array::open_with(file, &joining, history, true)
    }

    /// As a visitor, for the array's own processes.
    pub(crate) fn open_to_repair(file: &ArrayFile, joining: &Joining) -> Result<Array, OpenError> {
        Array::open_as(file, joining, attach::visitor()?, None, Purpose::Repair)
    }

    fn open_with(
        file: &ArrayFile,
        joining: &Joining,
        history: Option<&Path>,
        reserve: bool,
    ) -> Result<Array, OpenError> {
        let (life, memory, attached) = attach::attach(file, joining, reserve)?;
        let opened = Array::open_as(file, joining, life, history, Purpose::Use);
        // It has asked for nothing yet. A reservation stays: something of the former process may rely on it.
        let array = opened.inspect_err(|_| {
            attached.detach(&[life.host.0], FAREWELL);
        })?;
        let (memory, attached) = (memory.map(Arc::new), Some(Arc::new(attached)));
        Ok(Array { memory, attached, ..array })
    }

    fn open_as(
        file: &ArrayFile,
        joining: &Joining,
        life: Life,
        history: Option<&Path>,
        purpose: Purpose,
    ) -> Result<Array, OpenError> {
        let targets = Target::all(file);
        if let Some(target) = targets.iter().find(|t| !joining.identity.allows_at(&t.address)) {
            return Err(OpenError::Exposed(target.address.clone()));
        }
        let me = Me::new(file, joining.identity.clone(), Role::Host(life));
        let net = Net::new(me, &targets, joining.log)?;
        let calls = Arc::new(Calls::new(net.waker()));
        let state = ArrayState::new(file.layout.devices());
        let mut config = HostConfig::new(life, file.scheme, file.layout, state);
        config.durable = file.durability == Durability::Write;
        config.witnesses = file.witnesses.len() as u16;
        config.lease = file.timing.lease_ms * 1_000_000;
        config.patience_with_devices = (PATIENCE_LEASES * config.lease).max(LEAST_PATIENCE);
        let peers: Vec<Whom> = targets.iter().map(|target| target.whom).collect();
        let host = ArrayHost::new(config);
        let log = joining.log;
        let history = history.map(|path| HostHistory::create(path, file, life, log)).transpose()?;
        let engine = HostEngine::new(host, file, net, calls.clone(), history, log, &peers);
        std::thread::Builder::new().name("array".into()).spawn(move || engine.run())?;
        let _end = Arc::new(End(calls.clone()));
        let (memory, attached) = (None, None);
        let servers = file.lock_servers().count();
        let array = Array { layout: file.layout, servers, life, calls, memory, attached, _end };
        array.wait(joining.patience, purpose)?;
        Ok(array)
    }

    /// Until enough is connected.
    fn wait(&self, patience: Duration, purpose: Purpose) -> Result<(), OpenError> {
        let end = Instant::now() + patience;
        let mut status = self.status();
        loop {
            let down = |c: &&Connection| {
                let is_server = matches!(c.whom, Whom::Server(_));
                c.down.is_some() && (purpose == Purpose::Use || !is_server)
            };
            let missing: Vec<&Connection> = status.connections.iter().filter(down).collect();
            if self.is_enough(&missing) {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            // A process that has refused will refuse again.
            let refused = missing.iter().copied().filter(|c| c.refused).collect::<Vec<_>>();
            if left.is_zero() || !self.is_enough(&refused) {
                let why = |c: &&Connection| Some(format!("{}: {}", c.whom, c.down.as_deref()?));
                let all: Vec<String> = missing.iter().filter_map(why).collect();
                return Err(OpenError::Unreachable(all.join("; ")));
            }
            status = self.calls.next_status(&status, left);
        }
    }

    /// Returns true if the array can be used without these.
    fn is_enough(&self, missing: &[&Connection]) -> bool {
        let layout = self.layout();
        let (mut groups, mut servers) = (std::collections::BTreeMap::<u16, u16>::new(), 0);
        let devices = missing.iter().all(|connection| match connection.whom {
            Whom::Server(_) => {
                servers += 1;
                true
            }
            // As many of each group may be gone as redundancy replaces. A group without stripes is not missed.
            Whom::Device(device) => match layout.group(device) {
                Some(group) if layout.blocks_on(device) > 0 => {
                    let gone = groups.entry(group).or_default();
                    *gone += 1;
                    *gone <= layout.parities()
                }
                _ => true,
            },
        });
        // Any lock server may serve.
        devices && (servers == 0 || servers < self.servers)
    }

    /// This host's number.
    pub fn number(&self) -> u32 {
        self.life.host.0
    }

    /// How the array is laid out by the newest state that this host knows.
    pub fn layout(&self) -> Layout {
        self.layout.grown(&self.status().state)
    }

    /// Bytes per block.
    pub fn block_size(&self) -> u32 {
        self.layout.block_size
    }

    /// The array's length in blocks.
    pub fn blocks(&self) -> u64 {
        self.layout().blocks()
    }

    /// Starts a piece of work. The array's thread calls `done` with the result; `done` must not wait for anything. The call
    /// waits only while [`IN_FLIGHT`] others are under way.
    pub fn submit(&self, work: Work, done: Done) {
        self.calls.submit(work, done);
    }

    /// Does a piece of work.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn perform(&self, work: Work) -> Result<HostAnswer, OpError> {
        let (to, from) = std::sync::mpsc::sync_channel(1);
        // The receiver waits until it was called.
        self.submit(work, Box::new(move |result| drop(to.send(result))));
        from.recv().unwrap_or_else(|_| Err(closed()))
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn read(&self, span: Span) -> Result<Bytes, OpError> {
        match self.perform(Work::Read { span })? {
            HostAnswer::Read { data } => Ok(data),
            other => Err(OpError::State(format!("a read was answered by {other:?}"))),
        }
    }

    /// Writes blocks: all of `span`. They are as durable as the array's devices make them before this returns.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn write(&self, span: Span, data: Bytes) -> Result<(), OpError> {
        self.perform(Work::Write { span, data }).map(drop)
    }

    /// Makes earlier writes durable, of any host.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn flush(&self) -> Result<(), OpError> {
        self.perform(Work::Flush).map(drop)
    }

    /// Checks a stripe, and repairs it as far as `repair` says.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn scrub(&self, stripe: u64, repair: Repair) -> Result<Scrubbed, OpError> {
        let answer = self.perform(match repair {
            Repair::None => Work::Scrub { stripe, repair: false },
            Repair::Known => Work::Scrub { stripe, repair: true },
            Repair::AcceptLoss => Work::AcceptLoss { stripe },
        })?;
        let odd = || OpError::State(format!("a scrub was answered by {answer:?}"));
        Scrubbed::of(&answer).ok_or_else(odd)
    }

    /// Writes a stripe's unit on a device that is being rebuilt. If content of it is lost, the stripe is to be scrubbed when the
    /// device is in use again.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn rebuild(&self, device: DeviceId, stripe: u64) -> Result<Rebuilt, OpError> {
        match self.perform(Work::Rebuild { device, stripe })? {
            HostAnswer::Rebuilt { lost, marked } => Ok(Rebuilt { lost, marked }),
            other => Err(OpError::State(format!("a rebuild was answered by {other:?}"))),
        }
    }

    /// Looks what would be left of a stripe if `device`, which is out, came back with its medium, and `without` were lost. The
    /// medium has every write up to the timestamp `whole_to`.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn survey(
        &self,
        device: DeviceId,
        whole_to: Time,
        without: DeviceId,
        stripe: u64,
    ) -> Result<Outlook, OpError> {
        match self.perform(Work::Survey { device, whole_to, without, stripe })? {
            HostAnswer::Surveyed(outlook) => Ok(outlook),
            other => Err(OpError::State(format!("a survey was answered by {other:?}"))),
        }
    }

    /// Changes the array's state.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn change(&self, change: Change) -> Result<(), OpError> {
        self.perform(Work::Change { change }).map(drop)
    }

    /// The present knowledge of the array.
    pub fn status(&self) -> Status {
        self.calls.status()
    }

    /// This host's counters at its last answer.
    pub fn counts(&self) -> HostCounts {
        self.calls.counts()
    }

    /// Ends this host, after the operations under way. Other clones find it closed.
    pub fn close(&self) {
        self.calls.close();
    }

    /// As [`Array::close`], and waits for the end, at most for this time. A process should call it before it ends. Reads and
    /// writes are answered before their locks are returned, and others wait a lease for locks that nobody returns. It must not
    /// be called on the array's thread.
    ///
    /// A host that was waiting for the answer to a write when it ended stays listed as one of its node's. So does one whose array
    /// cannot be reached within that time.
    pub fn leave(&self, patience: Duration) {
        self.end(patience, false);
    }

    /// As [`Array::leave`], and keeps the reservation for the next process with the same memory.
    pub fn leave_reserved(&self, patience: Duration) {
        self.end(patience, true);
    }

    /// The host's hold of the array, if it was opened with one.
    pub fn reservation(&self) -> Option<Reservation> {
        self.attached.as_deref().and_then(|attached| attached.reservation)
    }

    fn end(&self, patience: Duration, keep: bool) {
        let begin = Instant::now();
        let reservation = self.reservation().map(|reservation| reservation.number);
        let remember = |reservation| {
            // The next process would fence this one, which does no harm.
            self.memory.iter().for_each(|memory| drop(memory.ended(reservation)));
        };
        self.calls.close();
        let ended = self.calls.wait_for_end(patience);
        if ended {
            remember(reservation);
        }
        let mut gone = Vec::new();
        gone.extend(self.calls.has_left().then_some(self.number()));
        gone.extend(reservation.filter(|_| !keep));
        if let Some(attached) = self.attached.as_ref().filter(|_| !gone.is_empty())
            && attached.detach(&gone, patience.saturating_sub(begin.elapsed()))
            && ended
            && !keep
        {
            remember(None);
        }
    }
}

fn closed() -> OpError {
    OpError::State("the array was closed".into())
}
