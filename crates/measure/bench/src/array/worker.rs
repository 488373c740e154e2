//! A process of the benchmark: it becomes what its parent's `Job` says, and ends with it. A host begins when it is told
//! `go`: at first to warm up, then to be measured.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockify_array::{DeviceId, OpError, ServerId, Usage, Work};
use lockify_report::crew::{self, Failure};
use lockify_trust::Identity;
use lockify_volume::host::{Array, Joining, this_node};
use lockify_volume::store::Access;
use lockify_volume::{ArrayFile, device, door, lock_server, nbd};
use serde::{Deserialize, Serialize};

use super::work::{Doer, Done, Load, put};

/// A worker's task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The array's file.
    pub array: PathBuf,
    pub role: Role,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// A device with a new file.
    Device { id: u16, path: PathBuf, direct: bool },
    /// A lock server with a new log.
    LockServer { log: PathBuf },
    /// A host that puts a load on the array.
    Host { load: Load },
    /// A host that exports the array, when it has filled it.
    Export { id: u32, socket: PathBuf },
}

/// A worker's message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// It serves, or is ready to begin.
    Ready,
    /// A host has done its load.
    Done(Done),
}

/// How long connecting to all devices may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes the role in the first line of standard input.
///
/// # Errors
/// Standard output cannot be written; all else is told to the parent.
pub fn run() -> std::io::Result<()> {
    crew::work(|job| become_it(&job))
}

fn log(what: &str) {
    eprintln!("lockify bench: {what}");
}

/// The last that it tells, if there is something.
fn become_it(job: &Job) -> Result<Option<Reply>, Failure> {
    let file = ArrayFile::read(&job.array)?;
    match &job.role {
        Role::Device { id, path, direct } => be_device(&file, *id, path, *direct)?,
        Role::LockServer { log } => be_lock_server(&file, log)?,
        Role::Host { load } => return Ok(Some(Reply::Done(be_host(&file, load)?))),
        Role::Export { id, socket } => be_export(&file, *id, socket)?,
    }
    Ok(None)
}

/// Says that it is ready; the flag is set when the parent has ended.
fn serves() -> std::io::Result<Arc<AtomicBool>> {
    let stop = crew::until_the_parent_ends()?;
    crew::reply(&Reply::Ready)?;
    Ok(stop)
}

fn be_device(
    file: &ArrayFile,
    id: u16,
    path: &std::path::Path,
    direct: bool,
) -> Result<(), Failure> {
    let serving = device::Serving {
        device: DeviceId(id),
        path: path.to_owned(),
        create: true,
        // As the files that it is compared with.
        sparse: true,
        access: if direct { Access::Direct } else { Access::Buffered },
        listen: None,
        identity: Identity::loopback("bench", 0),
        log,
    };
    let server = device::Server::start(file, &serving)?;
    Ok(server.run(&*serves()?)?)
}

fn be_lock_server(file: &ArrayFile, log_file: &std::path::Path) -> Result<(), Failure> {
    let serving = lock_server::Serving {
        id: ServerId(0),
        log_file: log_file.to_owned(),
        create: true,
        accept_loss: false,
        listen: None,
        identity: Identity::loopback("bench", 0),
        log,
    };
    let server = lock_server::Server::start(file, &serving)?;
    Ok(server.run(&*serves()?)?)
}

fn open(file: &ArrayFile) -> Result<Array, Failure> {
    let joining = Joining {
        memory: None,
        node: this_node(),
        usage: Usage::Shared,
        identity: Identity::loopback("bench", 0),
        patience: PATIENCE,
        log,
    };
    Ok(Array::open(file, &joining)?)
}

impl Doer for Array {
    fn begin(&self, work: Work, done: Box<dyn FnOnce(Result<(), OpError>) + Send>) {
        self.submit(work, Box::new(move |result| done(result.map(drop))));
    }
}

fn be_host(file: &ArrayFile, load: &Load) -> Result<Done, Failure> {
    let array = open(file)?;
    crew::reply(&Reply::Ready)?;
    crew::line()?;
    put(&load.warm_up(), &file.layout, file.scheme, &array)?;
    crew::reply(&Reply::Ready)?;
    crew::line()?;
    let processors = || crew::processor_time(std::process::id()).as_nanos() as u64;
    let (before, used) = (array.counts(), processors());
    let mut done = put(load, &file.layout, file.scheme, &array)?;
    let after = array.counts();
    done.messages = after.requests + after.replies - before.requests - before.replies;
    done.processor_ns = processors().saturating_sub(used);
    done.delayed = after.delayed - before.delayed;
    // This process ends: whose locks it kept would wait for them in the middle of their own measurement.
    array.leave(PATIENCE);
    Ok(done)
}

fn be_export(file: &ArrayFile, id: u32, socket: &std::path::Path) -> Result<(), Failure> {
    let array = open(file)?;
    let export = door::Export::of(file, "bench".into(), format!("host {id}"), false);
    // Blocks that were never written are not read from the disk.
    let stripe = vec![0x5a; export.stripe as usize];
    let stripe = bytes::Bytes::from(stripe);
    let count = u64::from(file.layout.unit) * u64::from(file.layout.data);
    for number in 0..file.layout.stripes {
        let span = lockify_array::Span { start: number * count, count };
        array.write(span, stripe.clone())?;
    }
    let listen = nbd::Listen::Unix { path: socket.to_owned(), mode: 0o600, group: None };
    let server = nbd::Server::listen(&listen, export, None, log)?;
    let stopper = server.stopper()?;
    let stop = serves()?;
    let wait = move || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stopper.stop();
    };
    std::thread::Builder::new().name("stop".into()).spawn(wait)?;
    server.run(Arc::new(array))?;
    Ok(())
}
