//! Which daemon the command line talks to.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use lockify_client::domain::{Choice, Domain, Kind};
use lockify_client::{Client, Error, Guard, Lockspace};
use serde::Serialize;

use crate::exit::{Code, Failure};
use crate::output;

/// Options of every subcommand that needs a daemon.
#[derive(clap::Args)]
pub struct Connection {
    /// The daemon's socket: a path, or @NAME in the abstract namespace [env: LOCKIFY_SOCKET; default:
    /// the cluster's on a machine that belongs to one, else a daemon of this user alone]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// The daemon of this user alone, on this machine alone, also where there is a cluster
    #[arg(long, conflicts_with = "socket")]
    local: bool,
    /// The lockspace
    #[arg(long, value_name = "NAME", env = "LOCKIFY_SPACE", default_value = "default")]
    pub space: String,
}

/// The action if this user's own daemon does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Start it.
    Start,
    /// Say so.
    Fail,
}

impl Connection {
    /// The domain that the options, or the machine, say.
    pub fn domain(&self) -> Result<Domain, Error> {
        Domain::find(&match (&self.socket, self.local) {
            (Some(socket), _) => Choice::Socket(socket.clone()),
            (None, true) => Choice::Local,
            (None, false) => Choice::Found,
        })
    }

    /// Connects to the daemon.
    pub fn client(&self, missing: Missing) -> Result<Client, Error> {
        let domain = self.domain()?;
        match missing {
            Missing::Start => domain.connect_or_start(),
            Missing::Fail => domain.connect(),
        }
    }

    /// Connects and opens the lockspace.
    pub fn lockspace(&self, missing: Missing) -> Result<Lockspace, Error> {
        self.client(missing)?.lockspace(&self.space)
    }

    /// Shows the next daemon that a command is under this lock, as long as the result is kept.
    pub fn mark_command(&self, space: &Lockspace, guard: &Guard) -> Result<Option<OwnedFd>, Error> {
        let marked = self.domain()?.mark_command();
        let mark = marked.map_err(|e| Error::NoDomain(format!("no name for the command: {e}")))?;
        if mark.is_some() {
            // A daemon that answers was there after the mark.
            space.who(guard.name().as_bytes())?;
        }
        Ok(mark)
    }

    /// A line that says which daemon answers, for the head of what people read.
    pub fn headline(&self) -> Result<String, Failure> {
        Ok(format!("daemon: {}\n", self.domain().map_err(failed)?))
    }

    /// Prints a daemon's answer as one line of JSON, with the name of that daemon.
    pub fn print_json(&self, said: &impl Serialize) -> Result<(), Failure> {
        output::print_json(&Said { said, daemon: self.daemon()? })
    }

    /// Which daemon answers, for JSON.
    pub fn daemon(&self) -> Result<Daemon, Failure> {
        Ok(Daemon::of(&self.domain().map_err(failed)?))
    }
}

#[derive(Serialize)]
struct Said<'a, T> {
    #[serde(flatten)]
    said: &'a T,
    daemon: Daemon,
}

/// A daemon, in JSON.
#[derive(Serialize)]
pub struct Daemon {
    socket: String,
    domain: &'static str,
    because: Option<String>,
}

impl Daemon {
    fn of(domain: &Domain) -> Daemon {
        let (name, because) = match domain.kind() {
            Kind::Named => ("named", None),
            Kind::Variable => ("variable", None),
            Kind::Cluster(sign) => ("cluster", Some(sign.path().display().to_string())),
            Kind::User => ("user", None),
        };
        Daemon { socket: domain.socket().display().to_string(), domain: name, because }
    }
}

/// A client's error, as a failure of a subcommand that only asks.
pub fn failed(e: Error) -> Failure {
    Failure::new(Code::Failed, e)
}
