//! The session type of the module.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use lockify_client::Client;
use lockify_client::domain::{Choice, Domain};
use pyo3::prelude::*;

use crate::calls::blocking;
use crate::ending;
use crate::owned::{Home, Owned};
use crate::space::Lockspace;

/// A session with a daemon.
#[pyclass(frozen, module = "lockify._lockify")]
pub struct Session(Owned<Client>);

/// Connects to the daemon that listens on `socket`, to this user's own, or to the one that is found.
#[pyfunction]
pub fn connect(py: Python<'_>, socket: Option<PathBuf>, local: bool) -> PyResult<Session> {
    let home = Home::new()?;
    let choice = match (socket, local) {
        (Some(socket), _) => Choice::Socket(socket),
        (None, true) => Choice::Local,
        (None, false) => Choice::Found,
    };
    let connect = || Domain::find(&choice)?.connect_or_start();
    let client = blocking(py, None, connect)?;
    Ok(Session(Owned::new(client, &home)))
}

impl Session {
    fn space(
        &self,
        py: Python<'_>,
        open: impl FnOnce(&Client) -> Result<lockify_client::Lockspace, lockify_client::Error> + Send,
    ) -> PyResult<Lockspace> {
        let client = self.0.get()?;
        let space = blocking(py, None, || open(client))?;
        Ok(Lockspace::new(space, self.0.home()))
    }
}

#[pymethods]
impl Session {
    fn lockspace(&self, py: Python<'_>, name: &str) -> PyResult<Lockspace> {
        self.space(py, |client| client.lockspace(name))
    }

    fn create_lockspace(
        &self,
        py: Python<'_>,
        name: &str,
        exclusive: bool,
        mode: Option<u32>,
    ) -> PyResult<Lockspace> {
        self.space(py, |client| match mode {
            Some(mode) => client.create_lockspace_with_mode(name, exclusive, mode),
            // Older daemons know this one, too.
            None => client.create_lockspace(name, exclusive),
        })
    }

    fn release_lockspace(&self, py: Python<'_>, name: &str, force: bool) -> PyResult<()> {
        let client = self.0.get()?;
        blocking(py, None, || client.release_lockspace(name, force))
    }

    /// Ends the session. In a child of its process, nothing.
    fn close(&self, py: Python<'_>) {
        if let Ok(client) = self.0.get() {
            py.detach(|| client.close());
        }
    }

    /// In a child of its process: closes the inherited sockets.
    fn forked(&self) {
        if self.0.home().is_here() {
            return;
        }
        ending::forked();
        let Ok(null) = std::fs::File::open("/dev/null") else { return };
        for socket in self.0.anywhere().descriptors() {
            // The number stays taken: the client, which is never dropped here, believes it its own.
            // SAFETY: both are open, and nothing in this process reads or writes the socket.
            unsafe { libc::dup3(null.as_raw_fd(), socket.as_raw_fd(), libc::O_CLOEXEC) };
        }
    }
}
