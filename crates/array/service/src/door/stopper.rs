//! Stops a door.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

/// Stops a server, from any thread.
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl Stopper {
    /// It, and the socket that has bytes to read when it was used.
    pub(crate) fn pair() -> io::Result<(Stopper, UnixStream)> {
        let (wakes, stops) = UnixStream::pair()?;
        stops.set_nonblocking(true)?;
        Ok((Stopper(stops), wakes))
    }

    /// Has the server end.
    pub fn stop(&self) {
        // Unread requests have the same effect.
        let _ = (&self.0).write(&[0]);
    }

    /// The same for another thread.
    ///
    /// # Errors
    /// The system refuses.
    pub fn try_clone(&self) -> io::Result<Stopper> {
        self.0.try_clone().map(Stopper)
    }

    /// A byte that is written into it stops the server: for signal handlers.
    pub fn into_socket(self) -> UnixStream {
        self.0
    }
}
