//! How ends that are not connected yet reach each other: a service beside RDMA, for example over TCP.

use std::io;
use std::os::fd::BorrowedFd;

use lockify_onesided::Peer;

/// The largest message, in bytes.
pub const MOST_TOLD: usize = 128;

/// A message from the exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Another end has told this.
    Told {
        /// The sender, as the exchange knows it.
        from: Peer,
        /// The content.
        bytes: Vec<u8>,
    },
    /// Another end has gone for good.
    Gone(Peer),
    /// The exchange has ended: present connections stay, and no new ones can be made.
    Ended,
}

/// One end's side of the service. One end's messages to another arrive in order.
pub trait Exchange {
    /// Tells another end at most [`MOST_TOLD`] bytes. Their arrival is not confirmed.
    ///
    /// # Errors
    /// The service is gone.
    fn send(&mut self, to: Peer, bytes: &[u8]) -> io::Result<()>;

    /// The next message; does not wait.
    fn next(&mut self) -> Option<Heard>;

    /// Readable while there is something, so that it can be waited for.
    fn bell(&self) -> BorrowedFd<'_>;
}
