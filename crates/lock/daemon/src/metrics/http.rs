//! Just enough HTTP for readers of metrics: one request for each connection. One thread serves all
//! of them, and waits for none: a silent or slow reader delays only itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

/// Longest request, in bytes.
const LONGEST: usize = 8192;
/// How long a connection may take to make its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that may be open. If there are more, the oldest makes room: who wants to read has
/// his answer within milliseconds.
const MOST: usize = 64;

const LISTENER: Token = Token(MOST);
const WAKER: Token = Token(MOST + 1);

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A reader's connection.
trait Stream: Read + Write + Source + Send {
    /// Nothing more will be written.
    fn finish(&self);
}

impl Stream for TcpStream {
    fn finish(&self) {
        // Fails if it is closed already.
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn finish(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept()?.0),
            Listener::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Listener::Tcp(listener) => listener,
            Listener::Unix(listener) => listener,
        }
    }
}

struct Conn {
    stream: Box<dyn Stream>,
    began: Instant,
    request: Vec<u8>,
    /// The answer, once it is known, and the number of its written bytes.
    answer: Option<(Arc<[u8]>, usize)>,
}

enum Asked {
    Metrics,
    Else,
    Nonsense,
}

/// Serves readers until it is told to stop.
pub(super) struct Service {
    poll: Poll,
    listener: Listener,
    conns: Slab<Conn>,
    waker: Arc<Waker>,
    /// When to accept again, after that has failed.
    accept_again: Option<Instant>,
}

impl Service {
    /// Serves those that connect to a socket that does not block.
    ///
    /// # Errors
    /// The system has no event queue left.
    pub(super) fn new(mut listener: Listener) -> io::Result<Service> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        poll.registry().register(listener.source(), LISTENER, Interest::READABLE)?;
        let conns = Slab::with_capacity(MOST);
        Ok(Service { poll, listener, conns, waker, accept_again: None })
    }

    /// Wakes its thread, for it to see that it is to stop.
    pub(super) fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    pub(super) fn run(mut self, stop: &AtomicBool, metrics: impl Fn() -> Option<String>) {
        let mut events = Events::with_capacity(MOST);
        while !stop.load(Ordering::Acquire) {
            let timeout = self.next_end().map(|end| end.saturating_duration_since(Instant::now()));
            // Interrupted, at worst: it looks again.
            let _ = self.poll.poll(&mut events, timeout);
            let again = self.accept_again.is_some_and(|at| at <= Instant::now());
            if again || events.iter().any(|event| event.token() == LISTENER) {
                self.accept();
            }
            // One reading of the shards for all who ask for it.
            let mut wanted = Vec::new();
            for event in events.iter().filter(|event| event.token().0 < MOST) {
                wanted.extend(self.ready(event.token().0));
            }
            if !wanted.is_empty() {
                self.answer(&wanted, metrics());
            }
            self.expire();
        }
    }

    fn next_end(&self) -> Option<Instant> {
        let ends = self.conns.iter().map(|(_, conn)| conn.began + PATIENCE);
        ends.chain(self.accept_again).min()
    }

    fn expire(&mut self) {
        self.conns.retain(|_, conn| conn.began.elapsed() < PATIENCE);
    }

    fn accept(&mut self) {
        self.accept_again = None;
        loop {
            match self.listener.accept() {
                Ok(stream) => self.welcome(stream),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if is_passing(&e) => {}
                // Out of descriptors, perhaps: it may get better.
                Err(_) => {
                    self.accept_again = Some(Instant::now() + Duration::from_millis(100));
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, mut stream: Box<dyn Stream>) {
        if self.conns.len() == MOST
            && let Some((oldest, _)) = self.conns.iter().min_by_key(|(_, conn)| conn.began)
        {
            self.conns.remove(oldest);
        }
        let entry = self.conns.vacant_entry();
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut *stream, Token(entry.key()), both).is_ok() {
            entry.insert(Conn { stream, began: Instant::now(), request: Vec::new(), answer: None });
        }
    }

    /// Goes on with a connection; says which it is, if it wants the metrics now.
    fn ready(&mut self, at: usize) -> Option<usize> {
        let conn = self.conns.get_mut(at)?;
        if conn.answer.is_some() {
            self.write(at);
            return None;
        }
        match conn.read() {
            Ok(None) => None,
            Ok(Some(Asked::Metrics)) => Some(at),
            Ok(Some(Asked::Else)) => {
                self.refuse(at, "404 Not Found", "there is only GET /metrics\n")
            }
            Ok(Some(Asked::Nonsense)) => {
                self.refuse(at, "400 Bad Request", "this is no HTTP request\n")
            }
            // A reader's errors are its own affair.
            Err(_) => {
                self.conns.remove(at);
                None
            }
        }
    }

    fn refuse(&mut self, at: usize, status: &str, body: &str) -> Option<usize> {
        self.give(at, &http(status, body));
        None
    }

    fn answer(&mut self, wanted: &[usize], metrics: Option<String>) {
        let answer = match metrics {
            Some(text) => http("200 OK", &text),
            None => http("500 Internal Server Error", "the metrics cannot be written\n"),
        };
        wanted.iter().for_each(|at| self.give(*at, &answer));
    }

    fn give(&mut self, at: usize, answer: &Arc<[u8]>) {
        if let Some(conn) = self.conns.get_mut(at) {
            conn.answer = Some((answer.clone(), 0));
            self.write(at);
        }
    }

    /// Writes as much as the socket takes. The output is read before the connection is gone: its
    /// other end closes it, or its time does.
    fn write(&mut self, at: usize) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        match conn.write() {
            Ok(true) if conn.discard() => drop(self.conns.remove(at)),
            Ok(_) => {}
            Err(_) => drop(self.conns.remove(at)),
        }
    }
}

impl Conn {
    /// Reads the present part of the request's head; returns the request, once it is known.
    fn read(&mut self) -> io::Result<Option<Asked>> {
        let mut part = [0; 1024];
        while self.request.len() < LONGEST {
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(Some(Asked::Nonsense)),
                Ok(n) => self.request.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if is_passing(&e) => continue,
                Err(e) => return Err(e),
            }
            if let Some(asked) = asked(&self.request) {
                return Ok(Some(asked));
            }
        }
        Ok(Some(Asked::Nonsense))
    }

    /// Writes; returns true if everything is written.
    fn write(&mut self) -> io::Result<bool> {
        let Some((answer, written)) = &mut self.answer else { return Ok(false) };
        while *written < answer.len() {
            match self.stream.write(&answer[*written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => *written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if is_passing(&e) => {}
                Err(e) => return Err(e),
            }
        }
        self.stream.finish();
        Ok(true)
    }

    /// Discards the reader's further input; returns true if it has closed. A side that closes with
    /// unread input may discard its own last output (RFC 1122, 4.2.2.13).
    fn discard(&mut self) -> bool {
        let mut room = [0; 4096];
        for _ in 0..LONGEST {
            match self.stream.read(&mut room) {
                Ok(1..) => {}
                Err(e) if is_passing(&e) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                _ => return true,
            }
        }
        // It never ends.
        true
    }
}

fn asked(request: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = parsed.path.and_then(|p| p.split('?').next());
            Some(match (parsed.method, path) {
                (Some("GET"), Some("/metrics")) => Asked::Metrics,
                _ => Asked::Else,
            })
        }
        Err(_) => Some(Asked::Nonsense),
    }
}

fn http(status: &str, body: &str) -> Arc<[u8]> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body.as_bytes()].concat().into()
}

fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}
