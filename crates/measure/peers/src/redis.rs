//! Redis: SET with NX and PX, and a script that deletes the client's own key.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use redis::{Commands as _, Connection, Script};

use crate::error::{During as _, Error};
use crate::process::{Place, Process, free_port};
use crate::service::{Client, PATIENCE, Service};

/// A lock's life, in milliseconds: longer than anything here.
const LIFE: u64 = 120_000;

/// Deletes the lock if it is the caller's, and wakes one that waits, if somebody does. A caller that
/// waited itself is counted out only here: the way to its lock has no call for that.
const UNLOCK: &str = "
if ARGV[2] == '1' then redis.call('decr', KEYS[2]) end
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
if tonumber(redis.call('get', KEYS[2]) or '0') > 0 then redis.call('rpush', KEYS[3], '1') end
return 1";

/// A server, reached by one kind of socket.
pub struct Redis {
    url: String,
    name: String,
    socket: &'static str,
    /// Shared by both kinds.
    _process: std::rc::Rc<Process>,
}

impl Redis {
    /// Starts a server without persistence in `folder`; by its Unix socket, and by TCP.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(program: &Path, folder: &Path) -> Result<[Redis; 2], Error> {
        let port = free_port()?;
        let socket: PathBuf = folder.join("redis.sock");
        let mut command = Command::new(program);
        command.current_dir(folder).args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.arg("--unixsocket").arg(&socket);
        command.args(["--save", "", "--appendonly", "no"]);
        let mut process = Process::start(command, &folder.join("redis.log"), Place::Other)?;
        let by_unix = format!("unix://{}", socket.display());
        process.await_ready(|| connect(&by_unix).is_ok())?;
        let process = std::rc::Rc::new(process);
        let redis =
            |url, socket| Redis { url, name: "redis".into(), socket, _process: process.clone() };
        Ok([redis(by_unix, "unix"), redis(format!("redis://127.0.0.1:{port}"), "tcp")])
    }
}

fn connect(url: &str) -> Result<Connection, Error> {
    use redis::{ConnectionInfo, IntoConnectionInfo as _, io::tcp::TcpSettings};
    let what = "redis: connect";
    let info: ConnectionInfo = url.into_connection_info().during(what)?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = redis::Client::open(info).during(what)?;
    let connection = client.get_connection_with_timeout(PATIENCE).during(what)?;
    connection.set_read_timeout(Some(PATIENCE)).during(what)?;
    connection.set_write_timeout(Some(PATIENCE)).during(what)?;
    Ok(connection)
}

impl Service for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    fn socket(&self) -> &'static str {
        self.socket
    }

    fn durability(&self) -> &'static str {
        "memory of one server; gone with it"
    }

    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error> {
        let connection = connect(&self.url)?;
        let token = format!("{}-{number}", std::process::id());
        Ok(Box::new(User {
            connection,
            token,
            unlock: Script::new(UNLOCK),
            held: None,
            waited: false,
        }))
    }
}

struct User {
    connection: Connection,
    /// Says whose a lock is.
    token: String,
    unlock: Script,
    held: Option<String>,
    /// For the lock that it holds.
    waited: bool,
}

impl User {
    fn try_lock(&mut self, name: &str) -> Result<bool, Error> {
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&self.token).arg("NX").arg("PX").arg(LIFE);
        let set: Option<String> = set.query(&mut self.connection).during("redis: SET")?;
        Ok(set.is_some())
    }

    /// Waits on a list that the holder's release pushes to, and tries again.
    fn wait_and_lock(&mut self, name: &str) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        let waiters = format!("{name}:waiters");
        let _: i64 = self.connection.incr(&waiters, 1).during("redis: INCR")?;
        while !self.try_lock(name)? {
            if Instant::now() > end {
                return Err(Error::new("redis: the lock was not to be had in time"));
            }
            let wake = format!("{name}:wake");
            let _: Option<(String, String)> =
                self.connection.blpop(wake, 1.0).during("redis: BLPOP")?;
        }
        self.waited = true;
        Ok(())
    }
}

impl Client for User {
    fn lock(&mut self, name: &str) -> Result<(), Error> {
        if !self.try_lock(name)? {
            self.wait_and_lock(name)?;
        }
        self.held = Some(name.to_owned());
        Ok(())
    }

    /// It has no shared locks.
    fn lock_as(&mut self, name: &str, _shared: bool) -> Result<(), Error> {
        self.lock(name)
    }

    fn unlock(&mut self) -> Result<(), Error> {
        let Some(name) = self.held.take() else { return Ok(()) };
        let mut script = self.unlock.prepare_invoke();
        script.key(&name).key(format!("{name}:waiters")).key(format!("{name}:wake"));
        let deleted: i64 = script
            .arg(&self.token)
            .arg(i32::from(std::mem::take(&mut self.waited)))
            .invoke(&mut self.connection)
            .during("redis: unlock")?;
        if deleted == 1 { Ok(()) } else { Err(Error::new("redis: the lock was not ours any more")) }
    }
}

impl Drop for User {
    /// The created entries are removed, so that the next turn has an empty server, too.
    fn drop(&mut self) {
        let _ = self.connection.set_read_timeout(Some(Duration::from_secs(5)));
        let _: Result<(), _> = redis::cmd("FLUSHDB").arg("ASYNC").query(&mut self.connection);
    }
}
