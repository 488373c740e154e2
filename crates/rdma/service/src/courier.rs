//! A rendezvous as the exchange of a fabric: one thread reads it, so that its messages are handled while the fabric's
//! own thread does something else, for example waits for the command that runs under a lock.

use core::ops::ControlFlow;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lockify_fabric::verbs::{Exchange, Heard};
use lockify_onesided::Peer;
use rustix::event::{PollFd, PollFlags, poll};

use crate::rendezvous::{Event, HOME, Rendezvous, RendezvousError, RendezvousHost};

/// Why nothing can be heard.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start a thread that hears of other clients: {0}; raise the limits of processes and open files"
)]
pub struct CourierError(#[from] std::io::Error);

/// The peer with this rank: ranks count from 0, peers from 1.
pub(crate) fn peer_of(rank: u16) -> Peer {
    Peer(rank.saturating_add(1))
}

/// How often a host's thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// One end's way to the others.
pub(crate) struct Courier {
    /// `None` when it ends.
    outgoing: Option<Outgoing>,
    incoming: Receiver<Heard>,
    bell: PipeReader,
    rung: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Outgoing {
    Host(Arc<RendezvousHost>),
    /// To the thread, which a byte in the pipe wakes.
    Participant {
        told: Sender<(u16, Vec<u8>)>,
        ring: PipeWriter,
    },
}

/// The thread's side of the received messages.
struct Inbox {
    incoming: Sender<Heard>,
    ring: PipeWriter,
    /// There is a byte in the pipe, or about to be.
    rung: Arc<AtomicBool>,
}

impl Inbox {
    /// Handles a rendezvous's message; returns if there was one. Breaks when nothing follows, or nobody listens.
    fn take(&mut self, next: Result<Option<Event>, RendezvousError>) -> ControlFlow<(), bool> {
        match next {
            Ok(None) => ControlFlow::Continue(false),
            Ok(Some(event)) => match self.put(event) {
                true => ControlFlow::Continue(true),
                false => ControlFlow::Break(()),
            },
            Err(_) => {
                self.put(Event::Ended);
                ControlFlow::Break(())
            }
        }
    }

    /// False if nobody listens any more.
    fn put(&mut self, event: Event) -> bool {
        let heard = match event {
            Event::Told { from, bytes } => Heard::Told { from: peer_of(from), bytes },
            Event::Gone { rank } => Heard::Gone(peer_of(rank)),
            Event::Ended => Heard::Ended,
            Event::Joined { .. } => return true,
        };
        let sent = self.incoming.send(heard).is_ok();
        sent && (self.rung.swap(true, SeqCst) || self.ring.write_all(&[0]).is_ok())
    }
}

impl Courier {
    /// The home's.
    pub fn of_host(host: &Arc<RendezvousHost>) -> Result<Courier, CourierError> {
        let (mut inbox, incoming, bell) = inbox()?;
        let rung = Arc::clone(&inbox.rung);
        let stop = Arc::new(AtomicBool::new(false));
        let (its_host, its_stop) = (Arc::clone(host), Arc::clone(&stop));
        let hear = move || {
            while !its_stop.load(SeqCst) && inbox.take(its_host.next(LOOK)).is_continue() {}
        };
        let thread = Some(std::thread::Builder::new().name("courier".into()).spawn(hear)?);
        let outgoing = Some(Outgoing::Host(Arc::clone(host)));
        Ok(Courier { outgoing, incoming, bell, rung, stop, thread })
    }

    /// A participant's.
    pub fn of_participant(mut rendezvous: Rendezvous) -> Result<Courier, CourierError> {
        let (mut inbox, incoming, bell) = inbox()?;
        let rung = Arc::clone(&inbox.rung);
        let (told, to_tell) = channel::<(u16, Vec<u8>)>();
        let (mut woken, ring) = std::io::pipe()?;
        let carry = move || loop {
            loop {
                match inbox.take(rendezvous.next(Duration::ZERO)) {
                    ControlFlow::Continue(true) => {}
                    ControlFlow::Continue(false) => break,
                    ControlFlow::Break(()) => return,
                }
            }
            let ready = {
                let mut bells = [
                    PollFd::from_borrowed_fd(rendezvous.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
                ];
                // A signal ends it early, and all is looked at anyway.
                let _ = poll(&mut bells, None);
                !bells[1].revents().is_empty()
            };
            if ready {
                // The end of the pipe is the end of the courier.
                if !matches!(woken.read(&mut [0]), Ok(1)) {
                    rendezvous.leave();
                    return;
                }
                if let Ok((rank, bytes)) = to_tell.try_recv() {
                    // `next` reports gone participants, and the end.
                    let _ = rendezvous.send(rank, &bytes);
                }
            }
        };
        let thread = Some(std::thread::Builder::new().name("courier".into()).spawn(carry)?);
        let outgoing = Some(Outgoing::Participant { told, ring });
        let stop = Arc::default();
        Ok(Courier { outgoing, incoming, bell, rung, stop, thread })
    }
}

fn inbox() -> std::io::Result<(Inbox, Receiver<Heard>, PipeReader)> {
    let (incoming, heard) = channel();
    let (bell, ring) = std::io::pipe()?;
    Ok((Inbox { incoming, ring, rung: Arc::default() }, heard, bell))
}

impl Exchange for Courier {
    fn send(&mut self, to: Peer, bytes: &[u8]) -> std::io::Result<()> {
        let rank = to.0.saturating_sub(1);
        match &mut self.outgoing {
            None => Ok(()),
            Some(Outgoing::Host(host)) => host.send(rank, bytes).map_err(std::io::Error::other),
            Some(Outgoing::Participant { told, ring }) => {
                let gone = |_| std::io::Error::from(std::io::ErrorKind::BrokenPipe);
                told.send((rank, bytes.to_vec())).map_err(gone)?;
                ring.write_all(&[0])
            }
        }
    }

    fn next(&mut self) -> Option<Heard> {
        if let Ok(heard) = self.incoming.try_recv() {
            return Some(heard);
        }
        if self.rung.swap(false, SeqCst) {
            // The byte follows at once, or nobody is left who would write one.
            let _ = self.bell.read(&mut [0]);
        }
        // Events from that time may have rung no more.
        self.incoming.try_recv().ok()
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        // A participant's thread ends with its pipe.
        self.outgoing = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked, or ended.
            let _ = thread.join();
        }
    }
}

const _: () = assert!(HOME == 0, "the home is peer 1");

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::rendezvous::{Hosting, Identity};

    fn host() -> Arc<RendezvousHost> {
        let hosting = Hosting {
            address: "127.0.0.1:0".parse().unwrap(),
            identity: Identity::loopback("test", 0),
            places: 8,
            offer: b"offer".to_vec(),
            log: |_| {},
        };
        Arc::new(RendezvousHost::open(hosting).unwrap())
    }

    fn join(host: &RendezvousHost) -> (Courier, Peer) {
        let identity = Identity::loopback("test", 0);
        let (rendezvous, welcome) = Rendezvous::join(host.address(), &identity, 0).unwrap();
        assert_eq!(welcome.offer, b"offer");
        (Courier::of_participant(rendezvous).unwrap(), peer_of(welcome.rank))
    }

    /// Waits as a fabric does: for the bell.
    fn hear(courier: &mut Courier) -> Heard {
        let begin = Instant::now();
        loop {
            if let Some(heard) = courier.next() {
                return heard;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing comes");
            let mut bell = [PollFd::from_borrowed_fd(courier.bell(), PollFlags::IN)];
            let most = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            poll(&mut bell, Some(&most)).unwrap();
        }
    }

    fn told(from: Peer, text: &str) -> Heard {
        Heard::Told { from, bytes: text.into() }
    }

    #[test]
    fn ends_tell_each_other_in_order_and_hear_who_goes() {
        let host = host();
        let mut home = Courier::of_host(&host).unwrap();
        let ((mut a, name_a), (mut b, name_b)) = (join(&host), join(&host));
        assert_eq!((name_a, name_b), (Peer(2), Peer(3)));
        for n in 0..100 {
            b.send(Peer(1), format!("{n}").as_bytes()).unwrap();
            b.send(name_a, format!("{n}").as_bytes()).unwrap();
        }
        for n in 0..100 {
            assert_eq!(hear(&mut home), told(name_b, &format!("{n}")));
            assert_eq!(hear(&mut a), told(name_b, &format!("{n}")));
        }
        home.send(name_a, b"home").unwrap();
        a.send(name_b, b"back").unwrap();
        assert_eq!(hear(&mut a), told(Peer(1), "home"));
        assert_eq!(hear(&mut b), told(name_a, "back"));
        // With nothing left, the bell is silent.
        assert_eq!(b.next(), None);
        let mut bell = [PollFd::from_borrowed_fd(b.bell(), PollFlags::IN)];
        let short = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        assert_eq!(poll(&mut bell, Some(&short)), Ok(0));
        drop(b);
        assert_eq!(hear(&mut home), Heard::Gone(name_b));
        assert_eq!(hear(&mut a), Heard::Gone(name_b));
        drop(home);
        drop(host);
        assert_eq!(hear(&mut a), Heard::Ended);
    }
}
