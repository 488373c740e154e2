//! Which daemon the command line talks to.

use std::path::{Path, PathBuf};

use lockify_client::{Client, Error, Lockspace};

use crate::exit::{Code, Failure};
use crate::user_daemon;

/// Where a daemon of the whole machine listens by default.
const SYSTEM_SOCKET: &str = "/run/lockify/lockify.sock";

/// Options of every subcommand that needs a daemon.
#[derive(clap::Args)]
pub struct Connection {
    /// The daemon's socket [default: /run/lockify/lockify.sock if it exists, else a daemon of this
    /// user alone, which `run` starts]
    #[arg(long, value_name = "PATH", env = "LOCKIFY_SOCKET")]
    socket: Option<PathBuf>,
    /// The lockspace
    #[arg(long, value_name = "NAME", env = "LOCKIFY_SPACE", default_value = "default")]
    pub space: String,
}

/// What to do if this user's own daemon does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Start it.
    Start,
    /// Say so.
    Fail,
}

impl Connection {
    /// Connects to the daemon.
    pub fn client(&self, missing: Missing) -> Result<Client, Error> {
        if let Some(socket) = self.configured() {
            return Client::connect(socket);
        }
        match missing {
            Missing::Start => user_daemon::connect_or_start(),
            Missing::Fail => user_daemon::connect(),
        }
    }

    /// Connects and opens the lockspace.
    pub fn lockspace(&self, missing: Missing) -> Result<Lockspace, Error> {
        self.client(missing)?.lockspace(&self.space)
    }

    /// The socket of a daemon that somebody has set up.
    fn configured(&self) -> Option<&Path> {
        let system = Path::new(SYSTEM_SOCKET);
        self.socket.as_deref().or_else(|| system.exists().then_some(system))
    }
}

/// A client's error, as a failure of a subcommand that only asks.
pub fn failed(e: Error) -> Failure {
    Failure::new(Code::Failed, e)
}
