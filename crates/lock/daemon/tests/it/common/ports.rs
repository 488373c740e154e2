//! Ports for the processes that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// An address of the loopback interface at which nobody listens. This process gets each one once.
///
/// The system gives connections ports from 32768 on. With one of these, a connection of another test could have it before the
/// server starts, or while it is down.
pub fn free_address() -> SocketAddr {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Other programs' tests may run at the same time.
    let begin = std::process::id() % 100 * (COUNT / 100);
    let port = || FIRST + (begin + GIVEN.fetch_add(1, Relaxed)) % COUNT;
    let mut all = (0..COUNT).map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, port() as u16)));
    all.find(|address| TcpListener::bind(address).is_ok()).expect("a free port")
}
