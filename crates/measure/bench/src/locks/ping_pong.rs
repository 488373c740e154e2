//! The bare round trip between two threads: the baseline of a lock.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// Bytes of a message, about as many as a lock request has.
const MESSAGE: usize = 64;

/// Two threads that exchange messages over a socket, as plainly as it can be done.
pub struct PingPong {
    stream: Option<Box<dyn Stream>>,
    echo: Option<JoinHandle<()>>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl PingPong {
    /// Over a Unix stream socket.
    ///
    /// # Errors
    /// When the system refuses sockets or threads.
    pub fn unix() -> io::Result<PingPong> {
        let (ours, theirs) = UnixStream::pair()?;
        PingPong::start(ours, theirs)
    }

    /// Over TCP on the loopback interface, without delay.
    ///
    /// # Errors
    /// When the system refuses sockets or threads.
    pub fn tcp() -> io::Result<PingPong> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ours = TcpStream::connect(listener.local_addr()?)?;
        let (theirs, _) = listener.accept()?;
        ours.set_nodelay(true)?;
        theirs.set_nodelay(true)?;
        PingPong::start(ours, theirs)
    }

    fn start(
        ours: impl Stream + 'static,
        mut theirs: impl Stream + 'static,
    ) -> io::Result<PingPong> {
        let thread = std::thread::Builder::new().name("ping-pong".into());
        let echo = thread.spawn(move || {
            let mut message = [0; MESSAGE];
            // Ends with the other side.
            while theirs.read_exact(&mut message).is_ok() && theirs.write_all(&message).is_ok() {}
        })?;
        Ok(PingPong { stream: Some(Box::new(ours)), echo: Some(echo) })
    }

    /// One message there and back.
    ///
    /// # Errors
    /// When the other thread is gone.
    pub fn exchange(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut message = [7; MESSAGE];
        stream.write_all(&message)?;
        stream.read_exact(&mut message)
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        self.stream = None;
        if let Some(echo) = self.echo.take() {
            // It only echoes.
            let _ = echo.join();
        }
    }
}
