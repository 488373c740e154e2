//! A network between processes on loopback, that a test can cut and heal: each process finds each other one at an address where
//! a relay listens.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A process of an array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    Device(usize),
    Server,
    /// The lock server that stands by at first.
    Standby,
    Host(u32),
}

/// How a link between two processes is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Up,
    /// Nothing passes, and connections stay; bytes from that time arrive when the link is up again.
    Silent,
    /// Connections are reset, and new ones as well.
    Broken,
}

/// Relays from each process that connects to each that listens.
#[derive(Default)]
pub struct Network(BTreeMap<(Place, Place), Relay>);

impl Network {
    /// Where one process finds another, which really listens at `address`.
    pub fn way(&mut self, from: Place, to: Place, address: SocketAddr) -> SocketAddr {
        self.0.entry((from, to)).or_insert_with(|| Relay::start(address)).address
    }

    /// Changes the links between these and those.
    pub fn set(&self, these: &[Place], those: &[Place], link: Link) {
        let between = |(from, to): &(Place, Place)| {
            these.contains(from) && those.contains(to) || those.contains(from) && these.contains(to)
        };
        let links: Vec<&Relay> =
            self.0.iter().filter(|(way, _)| between(way)).map(|x| x.1).collect();
        assert!(!links.is_empty(), "{these:?} and {those:?} have never met");
        links.into_iter().for_each(|relay| relay.set(link));
    }

    /// All links are up.
    pub fn heal(&self) {
        self.0.values().for_each(|relay| relay.set(Link::Up));
    }
}

/// Passes connections on to an address.
struct Relay {
    address: SocketAddr,
    wire: Arc<Wire>,
}

struct Wire {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    link: Link,
    /// Both ends of each connection, until it is over.
    connections: Vec<[TcpStream; 2]>,
}

impl Relay {
    fn start(target: SocketAddr) -> Relay {
        // Not where processes listen: what one of them is about to listen at is not taken.
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Mutex::new(State { link: Link::Up, connections: Vec::new() });
        let wire = Arc::new(Wire { state, changed: Condvar::new() });
        let relayed = Arc::clone(&wire);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                relayed.pass(stream, target);
            }
        });
        Relay { address, wire }
    }

    fn set(&self, link: Link) {
        let mut state = self.wire.state();
        state.link = link;
        if link == Link::Broken {
            for stream in state.connections.drain(..).flatten() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        drop(state);
        self.wire.changed.notify_all();
    }
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits while nothing passes; whether the connection is still good.
    fn passes(&self) -> bool {
        let silent = |state: &mut State| state.link == Link::Silent;
        self.changed.wait_while(self.state(), silent).unwrap().link == Link::Up
    }

    fn pass(self: &Arc<Wire>, near: TcpStream, target: SocketAddr) {
        let wire = Arc::clone(self);
        std::thread::spawn(move || {
            if !wire.passes() {
                return;
            }
            let Ok(far) = TcpStream::connect(target) else { return };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let mut state = wire.state();
            if state.link == Link::Broken {
                return;
            }
            // Those that are over are not kept.
            state.connections.retain(|[near, _]| near.peer_addr().is_ok());
            let twice = |stream: &TcpStream| stream.try_clone().unwrap();
            state.connections.push([twice(&near), twice(&far)]);
            drop(state);
            let (back, from, to) = (Arc::clone(&wire), twice(&far), twice(&near));
            std::thread::spawn(move || back.pump(from, to));
            wire.pump(near, far);
        });
    }

    /// Passes bytes on in one direction, to the end.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count) = from.read(&mut bytes) {
            // An end is not seen through a silent link, either.
            if !self.passes() || count == 0 || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
