//! Which daemon a program speaks to: the *domain* in which its locks exclude others.
//!
//! `lockify`, the libraries for Rust, C and Python, and libdlm's interface all find it here, in this
//! order:
//!
//! 1. the daemon that the caller or LOCKIFY_SOCKET names;
//! 2. the cluster's, on a machine that belongs to one ([`Sign`]);
//! 3. this user's own on this machine, which is started if it does not run.
//!
//! Nothing falls through: a machine of a cluster locks there or not at all. No other part of the
//! environment counts, nor does a directory, so that all processes of a user find the same daemon.
//! `docs/domain.md` describes the limits of a domain.

mod name;
mod sign;
mod start;
mod state;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lockify_session::{Named, is_abstract};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::client::Client;
use crate::error::Error;
use crate::raw::Session;
use crate::socket;

pub use name::{expected_user, user_name};
pub use sign::{CONFIGURATION, SOCKET, Sign};
pub use start::{IDLE, PATIENCE};
pub use state::{StateError, state_dir};

/// The variable that names a daemon's socket.
pub const VARIABLE: &str = "LOCKIFY_SOCKET";

/// How often a daemon is looked for that ends just then.
const TRIES: usize = 5;

/// Which daemon the caller wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The one that LOCKIFY_SOCKET names, or else that of the cluster or of the user.
    #[default]
    Found,
    /// The one that listens there: a path, or `@NAME` in the abstract namespace of unix(7).
    Socket(PathBuf),
    /// This user's own on this machine, also where the machine belongs to a cluster.
    Local,
}

/// Where a program locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Domain {
    kind: Kind,
    socket: PathBuf,
}

/// Why it is that one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The caller has named it.
    Named,
    /// LOCKIFY_SOCKET names it.
    Variable,
    /// This machine belongs to a cluster, as this shows.
    Cluster(Sign),
    /// It is this user's own, on this machine.
    User,
}

impl Domain {
    /// The domain of this process.
    ///
    /// # Errors
    /// [`Error::NoDomain`]: LOCKIFY_SOCKET is empty, or the system does not say which user this is.
    pub fn find(choice: &Choice) -> Result<Domain, Error> {
        match choice {
            Choice::Socket(socket) => Ok(Domain { kind: Kind::Named, socket: socket.clone() }),
            Choice::Local => Domain::of_user(),
            Choice::Found => match variable()? {
                Some(socket) => Ok(Domain { kind: Kind::Variable, socket }),
                None => match Sign::look() {
                    Some(sign) => Ok(Domain { kind: Kind::Cluster(sign), socket: SOCKET.into() }),
                    None => Domain::of_user(),
                },
            },
        }
    }

    fn of_user() -> Result<Domain, Error> {
        Ok(Domain { kind: Kind::User, socket: user_name()? })
    }

    /// Why it is this one.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Where its daemon listens: a path, or `@NAME`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects to its daemon, if it runs.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] with what to do in this domain; those of [`Client::connect`].
    pub fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.socket).map_err(|e| self.advise(e))
    }

    /// Connects to its daemon; starts it if it is the user's own and does not run.
    ///
    /// # Errors
    /// As [`Domain::connect`]; [`Error::NotStarted`].
    pub fn connect_or_start(&self) -> Result<Client, Error> {
        self.started(|| Client::connect(&self.socket))
    }

    /// As [`Session::connect`], for one shard; starts the daemon as [`Domain::connect_or_start`] does.
    ///
    /// # Errors
    /// As [`Domain::connect_or_start`].
    pub fn session(&self, shard: u16) -> Result<(Session, u16), Error> {
        self.started(|| Session::connect(&self.socket, shard))
    }

    /// Returns true if a process listens there that may be its daemon.
    ///
    /// # Errors
    /// [`Error::NotOurs`]: another user's process listens.
    pub fn is_served(&self) -> Result<bool, Error> {
        match socket::dial(&self.socket) {
            Ok(_) => Ok(true),
            Err(Error::NoDaemon { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Shows the next daemon, if this one is killed, that a command is under a lock, as long as the
    /// result is kept: it waits for the command's end. To be followed by a call that this daemon
    /// answers; if it does, it was there, and the next one sees it. Nodes of a cluster have leases for
    /// that: `None` with a daemon that has a path.
    ///
    /// # Errors
    /// The system's.
    pub fn mark_command(&self) -> std::io::Result<Option<OwnedFd>> {
        if !is_abstract(&self.socket) {
            return Ok(None);
        }
        let (family, kind, flags) = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let mark = socket_with(family, kind, flags, None)?;
        socket::name(&mark, &self.socket, Named::Command)?;
        Ok(Some(mark))
    }

    fn started<T>(&self, connect: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let mut result = connect();
        for _ in 1..TRIES {
            match &result {
                Err(Error::NoDaemon { .. }) if self.kind == Kind::User => start::start()?,
                _ => break,
            }
            result = connect();
        }
        result.map_err(|e| self.advise(e))
    }

    /// An error of connecting, with what to do about it in this domain.
    fn advise(&self, e: Error) -> Error {
        match e {
            Error::NoDaemon { socket, why, .. } => {
                Error::NoDaemon { socket, why, then: self.then() }
            }
            e => e,
        }
    }

    fn then(&self) -> String {
        match &self.kind {
            Kind::Named => crate::error::START.into(),
            Kind::Variable => format!(
                "{VARIABLE} names this one, and nothing is locked by another: start it (`lockify \
                 serve`), or change the variable"
            ),
            Kind::Cluster(sign) => format!(
                "this machine belongs to a cluster ({sign}), so nothing is locked by another daemon: \
                 start the cluster's (`systemctl start lockifyd`), name its socket by {VARIABLE} if \
                 it is elsewhere, or ask for this user's own locks on this machine with --local"
            ),
            Kind::User => {
                "this user's own lock daemon does not run on this machine, so none of its \
                           processes has a lock here: `lockify run` starts it"
                    .into()
            }
        }
    }
}

/// Says which daemon it is, and why.
impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.socket.display();
        match &self.kind {
            Kind::Named => write!(f, "{socket}, as asked for"),
            Kind::Variable => write!(f, "{socket}, as {VARIABLE} says"),
            Kind::Cluster(sign) => write!(f, "{socket}, the cluster's ({sign})"),
            Kind::User => write!(f, "{socket}, this user's own on this machine"),
        }
    }
}

/// The value of LOCKIFY_SOCKET.
fn variable() -> Result<Option<PathBuf>, Error> {
    match std::env::var_os(VARIABLE) {
        // A script that meant to name a daemon must not lock elsewhere.
        Some(empty) if empty.is_empty() => Err(Error::NoDomain(format!(
            "{VARIABLE} is empty: have it name the lock daemon's socket (as {SOCKET}), or unset it"
        ))),
        named => Ok(named.map(PathBuf::from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_daemon_is_taken_as_it_is() {
        let choice = Choice::Socket("/somewhere".into());
        let domain = Domain::find(&choice).unwrap();
        assert_eq!((domain.kind(), domain.socket()), (&Kind::Named, Path::new("/somewhere")));
        let Err(Error::NoDaemon { socket, then, .. }) = domain.connect_or_start() else {
            panic!("nobody listens there")
        };
        assert_eq!(socket, Path::new("/somewhere"));
        assert!(then.contains("lockify serve"), "{then}");
    }

    #[test]
    fn the_users_own_has_a_name_and_no_path() {
        let domain = Domain::find(&Choice::Local).unwrap();
        assert_eq!(*domain.kind(), Kind::User);
        let name = domain.socket().to_str().unwrap();
        assert!(name.starts_with("@lockify-user-"), "{name}");
        assert!(domain.to_string().contains("this user's own"), "{domain}");
    }

    #[test]
    fn a_cluster_without_its_daemon_is_told_of() {
        let sign = Sign::Configuration(CONFIGURATION.into());
        let domain = Domain { kind: Kind::Cluster(sign), socket: "/nowhere/lockify.sock".into() };
        let said = domain.connect_or_start().err().unwrap().to_string();
        for word in ["belongs to a cluster", CONFIGURATION, "systemctl start", "--local"] {
            assert!(said.contains(word), "{said}");
        }
    }
}
