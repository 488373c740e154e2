//! The errors of a device, and of the peers at its other end.

use std::io;

/// Why there is no end on a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library is not there.
    #[error(
        "{file} cannot be loaded ({why}): install libibverbs1 and ibverbs-providers (Debian), or libibverbs (others)"
    )]
    Library {
        /// Its name.
        file: &'static str,
        /// The reason.
        why: String,
    },
    /// No device at all.
    #[error(
        "this machine has no RDMA device: install ibverbs-providers and the driver of its network card, or make one in \
         software: rdma link add rxe0 type rxe netdev NETWORK-INTERFACE"
    )]
    NoDevice,
    /// Not the device that was asked for.
    #[error("there is no RDMA device {wanted}: this machine has {}", there.join(", "))]
    NoSuchDevice {
        /// Its name.
        wanted: String,
        /// Those that there are.
        there: Vec<String>,
    },
    /// The device cannot do what locks need.
    #[error("{device} {what}")]
    Unfit {
        /// The name of the device.
        device: String,
        /// The missing capability, and the remedy.
        what: String,
    },
    /// The system refused something.
    #[error("{device}: {what} failed: {why}{}", hint(*.errno))]
    System {
        /// On which device.
        device: String,
        /// The attempted step.
        what: &'static str,
        /// The system's words.
        why: String,
        /// Its number.
        errno: i32,
    },
}

impl VerbsError {
    pub(super) fn system(device: &str, what: &'static str, error: &io::Error) -> VerbsError {
        let errno = error.raw_os_error().unwrap_or(0);
        VerbsError::System { device: device.to_owned(), what, why: error.to_string(), errno }
    }
}

fn hint(errno: i32) -> &'static str {
    match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN => {
            "; raise the limit of locked memory (ulimit -l), or ask for less"
        }
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
            "; may this user open /dev/infiniband/uverbs*?"
        }
        _ => "",
    }
}
