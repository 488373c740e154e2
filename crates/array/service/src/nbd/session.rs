//! A client's requests and their replies, after the handshake.
//!
//! One thread reads requests and hands them to the array, one writes replies as they come.

use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use bytes::{Bytes, BytesMut};
use lockify_array::OpError;

use super::channel::Channel;
use super::handshake::{Agreed, misbehaves, skip};
use super::wire::{self, request_flag};
use super::{BYTES, REQUESTS};
use crate::door::budget::{Amount, Budget, Permit};
use crate::door::transfer::{self, Finished, Outcome, Sink};
use crate::door::{Backend, Command, Errno, Export, MAX_REQUEST, Request};

/// The data that a session serves.
#[derive(Clone)]
pub(crate) struct Served {
    pub export: Arc<Export>,
    pub backend: Arc<dyn Backend>,
    /// Is told of every operation that fails.
    pub failed: Arc<dyn Fn(&OpError) + Send + Sync>,
    /// The server reads no more requests, and finishes those that it has.
    pub stopping: Arc<AtomicBool>,
}

/// Serves a client until it leaves. Its requests are then done, or have failed.
///
/// # Errors
/// The connection broke, or the client does not follow the protocol (then the kind is `InvalidData`).
pub(crate) fn serve(stream: &Channel<'_>, served: &Served, agreed: Agreed) -> io::Result<()> {
    let (to, from) = channel();
    std::thread::scope(|scope| {
        std::thread::Builder::new().name("nbd-replies".into()).spawn_scoped(scope, move || {
            Writer { stream, served, agreed, gone: false }.run(&from)
        })?;
        // Fails only if the writer has ended, with the connection.
        let to: Sink = Arc::new(move |finished| drop(to.send(finished)));
        Reader { stream: BufReader::new(stream), served, agreed, to }.run()
    })
}

struct Reader<'a> {
    stream: BufReader<&'a Channel<'a>>,
    served: &'a Served,
    agreed: Agreed,
    to: Sink,
}

impl Reader<'_> {
    fn run(mut self) -> io::Result<()> {
        let budget = Budget::new(Amount { requests: REQUESTS, bytes: BYTES });
        while let Some(request) = self.request()? {
            if request.command == Command::Disconnect {
                break;
            }
            if let Err((errno, why)) = check(&request, &self.served.export, self.agreed) {
                skip(&mut self.stream, request.payload())?;
                self.answer(request, Outcome::Refused(errno, why), &budget);
                continue;
            }
            // Every block has its space for good, so that a trim frees none.
            let at_once = match request.command {
                Command::BlockStatus => Some(Outcome::Allocated),
                Command::Trim => Some(Outcome::Done),
                _ => None,
            };
            if let Some(outcome) = at_once {
                self.answer(request, outcome, &budget);
                continue;
            }
            let Served { export, backend, stopping, .. } = self.served;
            let channel = *self.stream.get_ref();
            let gone = || !stopping.load(Relaxed) && channel.has_ended();
            let permit = budget.take(transfer::bytes(&request, export));
            let mut payload = BytesMut::zeroed(request.payload() as usize);
            self.stream.read_exact(&mut payload)?;
            let with = (&**export, &**backend);
            transfer::start(request, payload.freeze(), with, (permit, &budget), (&self.to, &gone));
        }
        Ok(())
    }

    /// Ends a request that needs nothing of the array.
    fn answer(&self, request: Request, outcome: Outcome, budget: &Arc<Budget>) {
        let (permit, to) = (budget.take(0), Arc::clone(&self.to));
        (self.to)(Finished { request, outcome, permit, to });
    }

    /// The next request; `None` at the end of the stream.
    fn request(&mut self) -> io::Result<Option<Request>> {
        let mut bytes = [0; Request::BYTES];
        if self.stream.fill_buf()?.is_empty() {
            return Ok(None);
        }
        self.stream.read_exact(&mut bytes)?;
        let request = Request::decode(&bytes);
        request.map(Some).ok_or_else(|| misbehaves("sends something that is no request"))
    }
}

/// Why a request is not even tried.
type Refusal = (Errno, &'static str);

fn check(request: &Request, export: &Export, agreed: Agreed) -> Result<(), Refusal> {
    let invalid = |why| Err((Errno::Invalid, why));
    // FUA is allowed on everything, and means something for writes.
    let flags = request_flag::FUA
        | match request.command {
            Command::Read if agreed.structured => request_flag::DF,
            Command::WriteZeroes => request_flag::NO_HOLE | request_flag::FAST_ZERO,
            Command::BlockStatus => request_flag::REQ_ONE,
            _ => 0,
        };
    if request.flags & !flags != 0 {
        return invalid("the request has flags that this export does not offer");
    }
    let writes = request.command.writes();
    match request.command {
        Command::Flush | Command::Disconnect => return Ok(()),
        Command::BlockStatus if agreed.allocation => {}
        Command::BlockStatus => return invalid("the handshake has chosen no meta context"),
        Command::Other(_) => return invalid("this export does not offer such requests"),
        _ if (writes || request.command == Command::Trim) && export.read_only => {
            return Err((Errno::NotPermitted, "the export is read-only"));
        }
        Command::Read | Command::Write if request.length > MAX_REQUEST => {
            return invalid("a request has at most 32 MiB");
        }
        // Zeroes are written like any other data.
        Command::WriteZeroes if request.flags & request_flag::FAST_ZERO != 0 => {
            return Err((Errno::NotSupported, "zeroes are not faster than data"));
        }
        Command::Read | Command::Write | Command::Trim | Command::Cache | Command::WriteZeroes => {}
    }
    if request.length == 0 {
        return invalid("the request has no length");
    }
    let end = request.offset.checked_add(request.length.into());
    if end.is_none_or(|end| end > export.size) {
        let errno = if writes { Errno::NoSpace } else { Errno::Invalid };
        return Err((errno, "the request reaches beyond the end of the export"));
    }
    Ok(())
}

/// Replies that are written at once, at most.
const BATCH: usize = 32;

/// A reply, and what its request holds until it is written.
struct Reply {
    head: Vec<u8>,
    data: Vec<Bytes>,
    _permit: Permit,
}

struct Writer<'a> {
    stream: &'a Channel<'a>,
    served: &'a Served,
    agreed: Agreed,
    /// The client reads no more. Its replies are dropped.
    gone: bool,
}

impl Writer<'_> {
    fn run(mut self, from: &Receiver<Finished>) {
        // Until the reader and all that it had begun are done.
        while let Ok(first) = from.recv() {
            let more = std::iter::from_fn(|| from.try_recv().ok()).take(BATCH - 1);
            let replies: Vec<Reply> =
                std::iter::once(first).chain(more).filter_map(|f| self.reply(f)).collect();
            if !self.gone && self.write(&replies).is_err() {
                self.gone = true;
                // The reader may wait for a request.
                self.stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// `None` if the request still has to be made durable.
    fn reply(&self, finished: Finished) -> Option<Reply> {
        let finished = finished.made_durable(&self.served.export, &*self.served.backend)?;
        let Finished { request, outcome, permit, .. } = finished;
        let structured = self.agreed.structured;
        let (head, data) = match outcome {
            Outcome::Data(data) => (wire::data_head(&request, structured), data),
            Outcome::Done => (wire::done(request.cookie), Vec::new()),
            Outcome::Allocated => (wire::allocated(&request), Vec::new()),
            Outcome::Refused(errno, why) => {
                (wire::failed(request.cookie, errno, why, structured), Vec::new())
            }
            Outcome::Failed(error) => {
                (self.served.failed)(&error);
                let (errno, why) = (errno_of(&error), error.to_string());
                (wire::failed(request.cookie, errno, &why, structured), Vec::new())
            }
        };
        Some(Reply { head, data, _permit: permit })
    }

    fn write(&self, replies: &[Reply]) -> io::Result<()> {
        let mut slices: Vec<IoSlice> = Vec::with_capacity(2 * replies.len());
        for reply in replies {
            slices.push(IoSlice::new(&reply.head));
            slices.extend(reply.data.iter().map(|data| IoSlice::new(data)));
        }
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match (&*self.stream).write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn errno_of(error: &OpError) -> Errno {
    match error {
        OpError::Range => Errno::Invalid,
        OpError::Fenced => Errno::ShuttingDown,
        _ => Errno::Io,
    }
}
