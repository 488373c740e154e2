//! An array as a block device of this machine's kernel, which a process serves over io_uring
//! (<https://docs.kernel.org/block/ublk.html>). The crate `libublk` speaks with the kernel.
//!
//! - **A request is one host operation**, as of the other doors ([`door`](crate::door)). The kernel sends whole blocks of 4096
//!   bytes, at most [`MAX_BYTES`] at once.
//! - **A device may outlive its export.** If the array is reserved, the kernel keeps requests while nobody serves the device. The
//!   next process with the same [`Reservation`] takes it over, and the kernel repeats what was under way.
//! - **Nobody takes over what others may have replaced.** The device has the reservation's number. A process with another one
//!   is refused. A reservation that was ended is not given again (docs/design/array.md 6.1).
//! - **Without a reservation the device ends with its export**, and so does that of a fenced host. What waits for it is an error.
//! - **Bounded**: at most [`DEPTH`] requests are under way, each with a buffer of its own.

mod bell;
mod control;
mod error;
mod queue;
mod request;
mod requests;

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::door::{Backend, Export, Stopper};
use crate::host::Reservation;
use crate::{ArrayFile, ArrayId};

use control::{Control, Existing, Order};
pub use error::Error;

/// Requests that are under way, at most.
pub const DEPTH: u16 = 64;
/// Bytes of a read or write, at most.
pub const MAX_BYTES: u32 = 512 * 1024;
/// Bytes of zeroes that one request writes, at most.
const MAX_ZEROES: u32 = 16 * 1024 * 1024;

/// How long a device may take to begin or to end. The kernel waits for requests that are under way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a device is served no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was stopped, and the device is gone.
    Stopped,
    /// It was stopped while somebody had the device open: that waits for the next export.
    Left,
    /// The same, and after ten seconds some of its operations were still under way. The kernel repeats them.
    Abandoned,
    /// This host was fenced, and the device is gone.
    Fenced,
    /// Somebody else has removed the device.
    Removed,
}

/// Serves an array as the device `/dev/ublkbN`.
pub struct Server {
    id: u32,
    array: ArrayId,
    export: Export,
    discard: bool,
    wakes: UnixStream,
    stopper: Stopper,
    log: fn(&str),
}

impl Server {
    /// Looks whether the kernel can have the device `id`. `discard` allows to remove what another export has left there. `log` is
    /// told what an operator should know.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(
        id: u32,
        array: &ArrayFile,
        export: Export,
        discard: bool,
        log: fn(&str),
    ) -> Result<Server, Error> {
        let (stopper, wakes) = Stopper::pair()?;
        let server = Server { id, array: array.id, export, discard, wakes, stopper, log };
        control::look(id, array.id, discard)?;
        Ok(server)
    }

    /// The handle that stops it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn stopper(&self) -> std::io::Result<Stopper> {
        self.stopper.try_clone()
    }

    /// Makes the device, or takes it over. The former process with the reservation has been fenced by then.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(
        self,
        backend: Arc<dyn Backend>,
        reservation: Option<Reservation>,
    ) -> Result<Running, Error> {
        let Server { id, array, export, discard, wakes, stopper, log } = self;
        let existing = control::look(id, array, discard)?;
        let export = Arc::new(export);
        let export = export.now(&*backend);
        let plan = control::Plan { id, array, export, reservation, discard, log };
        let taken_over = matches!(existing, Existing::Kept(tag) if tag == plan.tag());
        let control = Control::start(plan, existing, backend, stopper)?;
        Ok(Running { id, keep: reservation.is_some(), taken_over, control, wakes })
    }
}

/// A device that is served.
pub struct Running {
    id: u32,
    keep: bool,
    taken_over: bool,
    control: Control,
    wakes: UnixStream,
}

impl Running {
    /// Its path.
    pub fn path(&self) -> String {
        control::block_device(self.id)
    }

    /// Returns true if it had a former process.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Returns true if it outlives this process while somebody uses it.
    pub fn is_kept(&self) -> bool {
        self.keep
    }

    /// Waits until the server is stopped, or the device is gone.
    ///
    /// # Errors
    /// The kernel serves no more requests, or does not remove the device.
    pub fn wait(self, is_fenced: impl Fn() -> bool) -> Result<Ended, Error> {
        let mut byte = [0];
        while let Err(error) = (&self.wakes).read(&mut byte) {
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error.into());
            }
        }
        let fenced = is_fenced();
        if !fenced && self.control.has_ended() {
            // It is gone, or this is an error of the queue: then the next process may serve it.
            self.control.finish(if self.keep { Order::Leave } else { Order::Remove })?;
            return Ok(Ended::Removed);
        }
        if self.keep && !fenced && control::is_in_use(self.id) {
            let settled = self.control.finish(Order::Leave)?;
            return Ok(if settled { Ended::Left } else { Ended::Abandoned });
        }
        self.control.finish(Order::Remove)?;
        Ok(if fenced { Ended::Fenced } else { Ended::Stopped })
    }
}
