//! Why there is no device.

use std::io;

use libublk::UblkError;

/// Why a device is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel cannot do it.
    #[error(
        "{path} is missing: this kernel has no ublk; load its module (modprobe ublk_drv), or use a kernel with \
         CONFIG_BLK_DEV_UBLK (Linux 6.1 or later)"
    )]
    Missing {
        /// The device that programs ask.
        path: &'static str,
    },
    /// The system does not let this process have devices.
    #[error(
        "{what}: {error}; ublk needs root (CAP_SYS_ADMIN), and io_uring (sysctl kernel.io_uring_disabled = 0)"
    )]
    Forbidden {
        /// The refused step.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// Somebody serves it.
    #[error("{device} is served by process {pid}: end that, or give another number (--ublk)")]
    InUse {
        /// The block device.
        device: String,
        /// Who serves it.
        pid: i32,
    },
    /// It was served by somebody else.
    #[error(
        "{device} was left by {whom}: give another number (--ublk); or have it removed with --ublk-discard, and what waits for it \
         gets errors"
    )]
    Foreign {
        /// The block device.
        device: String,
        /// By whom.
        whom: &'static str,
    },
    /// It does not fit the export.
    #[error(
        "{device} cannot be taken over: {why}; unmount what is on it, or have it removed with --ublk-discard, and what waits for it \
         gets errors"
    )]
    Unfit {
        /// The block device.
        device: String,
        /// The difference.
        why: String,
    },
    /// It was removed while somebody had it open.
    #[error(
        "{device} is removed, but somebody still has it open, as a mounted file system: unmount that, or give another number (--ublk)"
    )]
    Held {
        /// The block device.
        device: String,
    },
    /// Others may replace what this process writes there.
    #[error(
        "{path} can be changed by other users, who could have this process overwrite files: chmod go-w {path}"
    )]
    Open {
        /// The folder.
        path: String,
    },
    /// The kernel refuses a step.
    #[error("{device}: the kernel refuses to {step}: {error}")]
    Refused {
        /// The block device.
        device: String,
        /// The step.
        step: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// The kernel does not answer.
    #[error("{device}: the kernel did not {step} in {seconds} s; look at its log (dmesg)")]
    Late {
        /// The block device.
        device: String,
        /// The step.
        step: &'static str,
        /// How long it had.
        seconds: u64,
    },
    /// The system refuses threads or sockets.
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// The system's error in one of the library's.
pub(super) fn io_error(error: UblkError) -> io::Error {
    match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) if code != 0 => {
            io::Error::from_raw_os_error(code.abs())
        }
        UblkError::IOError(error) => error,
        other => io::Error::other(other),
    }
}

/// The library has some refusals as results.
pub(super) fn checked(result: Result<i32, UblkError>) -> io::Result<()> {
    match result.map_err(io_error)? {
        code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_systems_error() {
        let code = |result| checked(result).unwrap_err().raw_os_error();
        assert_eq!(code(Err(UblkError::UringIOError(-17))), Some(17));
        assert_eq!(code(Err(UblkError::OtherError(-2))), Some(2));
        assert_eq!(code(Err(UblkError::IOError(io::Error::from_raw_os_error(1)))), Some(1));
        assert_eq!(code(Ok(-16)), Some(16));
        assert!(checked(Ok(0)).is_ok());
        assert!(checked(Err(UblkError::QueueIsDown)).is_err());
    }
}
