//! Bare round trips over loopback TCP: the baseline of a lock manager's round trip.
//!
//! Both sides do a node's work for a message and nothing else: wait for readiness, read, hold the
//! message for the delay, write. The pinger polls before it sleeps, as a creator does; who answers
//! sleeps, as a directory node does that is asked now and then. The pinger asks whom a creator
//! would, and creates what a creator does: between creations a round trip takes longer than in a
//! loop, because the file system has had the caches, and the processors of those who answer have
//! been idle.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use lockify_node::Poller;
use lockify_report::crew::Failure;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock::now;
use crate::image::Image;

/// Bytes of a message: about those of a lookup.
const MESSAGE: usize = 64;

/// Answers messages on a thread of its own from now on; says where.
///
/// # Errors
/// Those of the system calls.
pub fn echo(delay: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("echo".into()).spawn(move || {
        // The pinger is told by its connection's end.
        let _ = answer(listener, delay);
    })?;
    Ok(address)
}

/// Serves one pinger until it closes.
fn answer(mut listener: TcpListener, delay: Duration) -> io::Result<()> {
    let mut poll = Poller::new(Duration::ZERO)?;
    poll.registry().register(&mut listener, Token(0), Interest::READABLE)?;
    let mut events = Events::with_capacity(8);
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(e) if e.kind() == ErrorKind::WouldBlock => poll.wait(&mut events, None)?,
            Err(e) => return Err(e),
        }
    };
    let mut peer = Bare::new(stream, poll, Token(1))?;
    let mut hold = Hold::new(delay)?;
    loop {
        peer.receive(&mut events)?;
        hold.wait()?;
        peer.send()?;
    }
}

/// Creates everything in a folder and measures round trips, in nanoseconds: before each creation
/// one for each of its two locks, whose directory nodes are the peers and the creator in turn.
/// Polls for up to `busy` before it sleeps.
///
/// # Errors
/// Those of the system calls, and a peer that went away.
pub fn measure(
    peers: &[SocketAddr],
    delay: Duration,
    busy: Duration,
    folder: &File,
    images: &[Image],
) -> Result<Vec<u64>, Failure> {
    let connect = |&address| -> io::Result<Bare> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nonblocking(true)?;
        Bare::new(TcpStream::from_std(stream), Poller::new(busy)?, Token(1))
    };
    let mut peers = peers.iter().map(connect).collect::<io::Result<Vec<_>>>()?;
    let mut events = Events::with_capacity(8);
    let mut hold = Hold::new(delay)?;
    let mut trip = |peer: &mut Bare| -> io::Result<u64> {
        let start = now();
        peer.send()?;
        peer.receive(&mut events)?;
        hold.wait()?;
        Ok(now() - start)
    };
    for peer in &mut peers {
        trip(peer)?;
    }
    // After the last peer, the creator itself.
    let mut nodes = (0..=peers.len()).cycle();
    let mut trips = Vec::with_capacity(2 * images.len());
    for image in images {
        for node in nodes.by_ref().take(2) {
            if let Some(peer) = peers.get_mut(node) {
                trips.push(trip(peer)?);
            }
        }
        image.create(folder)?;
    }
    Ok(trips)
}

/// One side of a connection.
struct Bare {
    stream: TcpStream,
    poll: Poller,
    message: [u8; MESSAGE],
}

impl Bare {
    fn new(mut stream: TcpStream, poll: Poller, token: Token) -> io::Result<Bare> {
        stream.set_nodelay(true)?;
        poll.registry().register(&mut stream, token, Interest::READABLE)?;
        Ok(Bare { stream, poll, message: [0; MESSAGE] })
    }

    fn receive(&mut self, events: &mut Events) -> io::Result<()> {
        let mut got = 0;
        while got < MESSAGE {
            match self.stream.read(&mut self.message[got..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => got += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.poll.wait(events, None)?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        // So small a message always fits into an empty socket buffer.
        self.stream.write_all(&self.message)
    }
}

fn wait(poll: &mut Poll, events: &mut Events) -> io::Result<()> {
    match poll.poll(events, None) {
        Err(e) if e.kind() != ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// Holds a message for a delay, with a timer as an event loop has it.
struct Hold(Option<(std::os::fd::OwnedFd, Poll, Events, Timespec)>);

impl Hold {
    fn new(delay: Duration) -> io::Result<Hold> {
        if delay.is_zero() {
            return Ok(Hold(None));
        }
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let poll = Poll::new()?;
        let source = timer.as_raw_fd();
        poll.registry().register(&mut SourceFd(&source), Token(0), Interest::READABLE)?;
        let delay = Timespec { tv_sec: delay.as_secs() as _, tv_nsec: delay.subsec_nanos() as _ };
        Ok(Hold(Some((timer, poll, Events::with_capacity(1), delay))))
    }

    fn wait(&mut self) -> io::Result<()> {
        let Some((timer, poll, events, delay)) = &mut self.0 else { return Ok(()) };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: zero, it_value: *delay };
        timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once)?;
        let mut fired = [0; 8];
        loop {
            match rustix::io::read(&*timer, &mut fired) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => wait(poll, events)?,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Contents;

    #[test]
    fn a_round_trip_takes_both_delays() {
        let delay = Duration::from_millis(2);
        let busy = Duration::from_micros(100);
        let peers = [echo(delay).unwrap(), echo(delay).unwrap()];
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["a", "b", "c"] {
            std::fs::write(from.path().join(name), name).unwrap();
        }
        let entries = crate::tree::read(from.path(), 3).unwrap();
        let images: Vec<Image> =
            entries.iter().map(|e| Image::load(e, &mut Contents::default()).unwrap()).collect();
        let folder = File::open(to.path()).unwrap();
        let trips = measure(&peers, delay, busy, &folder, &images).unwrap();
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 3);
        // Two locks each, of which every third is the creator's own.
        assert_eq!(trips.len(), 4);
        assert!(trips.iter().all(|&t| t >= 4_000_000), "{trips:?}");
    }
}
