//! Just enough HTTP for a reader of metrics: one request per connection, one connection at a time,
//! each with a time limit, so that no reader can keep the others, or this thread, for long.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest request, in bytes.
const LONGEST: usize = 8192;
/// How long a connection may take to make its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A reader's connection.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        let brief = Some(Duration::from_millis(500));
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_read_timeout(brief)?;
                stream.set_write_timeout(brief)?;
                Box::new(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_read_timeout(brief)?;
                stream.set_write_timeout(brief)?;
                Box::new(stream)
            }
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    /// Wakes whoever waits for a connection.
    pub(super) fn shut(&self) {
        // One that is shut already has nobody waiting.
        let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Both);
    }
}

/// Answers readers until it is told to stop.
pub(super) fn serve(listener: &Listener, stop: &AtomicBool, metrics: impl Fn() -> Option<String>) {
    while !stop.load(Ordering::Acquire) {
        match listener.accept() {
            // What a reader does wrong is its own affair.
            Ok(mut stream) => drop(answer(&mut *stream, &metrics)),
            Err(_) if stop.load(Ordering::Acquire) => return,
            // Out of descriptors, perhaps: it may get better.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(stream: &mut dyn Stream, metrics: impl Fn() -> Option<String>) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let (status, body) = match request(stream, end)? {
        Asked::Metrics => match metrics() {
            Some(text) => ("200 OK", text),
            None => ("500 Internal Server Error", "the metrics cannot be written\n".into()),
        },
        Asked::Else => ("404 Not Found", "there is only GET /metrics\n".into()),
        Asked::Nonsense => ("400 Bad Request", "this is no HTTP request\n".into()),
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let all = [head.as_bytes(), body.as_bytes()].concat();
    let mut rest = &all[..];
    while !rest.is_empty() && Instant::now() < end {
        match stream.write(rest) {
            Ok(0) => return Ok(()),
            Ok(n) => rest = &rest[n..],
            Err(e) if is_slow(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

enum Asked {
    Metrics,
    Else,
    Nonsense,
}

/// Reads one request's head.
fn request(stream: &mut dyn Stream, end: Instant) -> io::Result<Asked> {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    while bytes.len() < LONGEST && Instant::now() < end {
        match stream.read(&mut part) {
            Ok(0) => return Ok(Asked::Nonsense),
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(e) if is_slow(&e) => continue,
            Err(e) => return Err(e),
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.and_then(|p| p.split('?').next());
                return Ok(match (request.method, path) {
                    (Some("GET"), Some("/metrics")) => Asked::Metrics,
                    _ => Asked::Else,
                });
            }
            Err(_) => return Ok(Asked::Nonsense),
        }
    }
    Ok(Asked::Nonsense)
}

fn is_slow(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
