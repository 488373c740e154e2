//! etcd: the lock service (v3lock), and for readers and writers the recipe of etcd's own client.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::grpc::{Connection, Field, Message, bytes, fields, number};
use crate::process::{Place, Process, free_port};
use crate::service::{Client, RECOVERY, Service};

/// A lease's life in seconds: longer than any turn, so that nobody has to renew it.
const LEASE: i64 = 600;

/// A cluster.
pub struct Etcd {
    addresses: Vec<String>,
    syncs: bool,
    _processes: Vec<Process>,
}

impl Etcd {
    /// Starts so many members in `folder`, as shipped or with `--unsafe-no-fsync`.
    ///
    /// # Errors
    /// They do not start, or do not elect a leader.
    pub fn start(program: &Path, folder: &Path, nodes: usize, syncs: bool) -> Result<Etcd, Error> {
        let url = || Ok(format!("http://127.0.0.1:{}", free_port()?));
        let urls = (0..nodes).map(|_| url()).collect::<Result<Vec<String>, Error>>()?;
        let peers = (0..nodes).map(|_| url()).collect::<Result<Vec<String>, Error>>()?;
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(i, peer)| format!("node{i}={peer}")).collect();
        let mut processes = Vec::new();
        for (i, (url, peer)) in urls.iter().zip(&peers).enumerate() {
            let name = format!("etcd-{nodes}-{i}-{}", if syncs { "sync" } else { "nosync" });
            let mut command = Command::new(program);
            command.arg("--name").arg(format!("node{i}"));
            command.arg("--data-dir").arg(folder.join(format!("{name}.data")));
            command.args(["--listen-client-urls", url, "--advertise-client-urls", url]);
            command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
            command.args(["--initial-cluster", &cluster.join(",")]);
            if !syncs {
                command.arg("--unsafe-no-fsync");
            }
            let log = folder.join(format!("{name}.log"));
            processes.push(Process::start(command, &log, Place::Anywhere)?);
        }
        let addresses: Vec<String> =
            urls.iter().map(|url| url.trim_start_matches("http://").to_owned()).collect();
        for (process, address) in processes.iter_mut().zip(&addresses) {
            process.await_ready(|| User::connect(address).is_ok())?;
        }
        Ok(Etcd { addresses, syncs, _processes: processes })
    }
}

impl Service for Etcd {
    fn name(&self) -> &str {
        if self.syncs { "etcd" } else { "etcd --unsafe-no-fsync" }
    }

    fn socket(&self) -> &'static str {
        "tcp"
    }

    fn durability(&self) -> &'static str {
        match (self.syncs, self.addresses.len()) {
            (true, 1) => "synced to disk before the answer",
            (true, _) => "synced to disk by a majority before the answer",
            (false, 1) => "written, not synced",
            (false, _) => "written by a majority, not synced",
        }
    }

    /// etcd 3.4 wakes a waiter whose watch is new only in its next sweep, every 100 ms.
    fn rest(&self) -> Duration {
        Duration::from_millis(150)
    }

    fn recovery(&self) -> Duration {
        RECOVERY
    }

    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error> {
        Ok(Box::new(User::connect(&self.addresses[number % self.addresses.len()])?))
    }
}

struct User {
    connection: Connection,
    lease: i64,
    held: Option<Held>,
}

enum Held {
    /// By the lock service, with its key.
    Lock(Vec<u8>),
    /// As a reader or a writer, with our key.
    Key(String),
}

// Methods, and numbers of fields, of etcd's `rpc.proto`, `kv.proto` and `v3lock.proto`.
const GRANT: &str = "etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "etcdserverpb.Lease/LeaseRevoke";
const LOCK: &str = "v3lockpb.Lock/Lock";
const UNLOCK: &str = "v3lockpb.Lock/Unlock";
const PUT: &str = "etcdserverpb.KV/Put";
const RANGE: &str = "etcdserverpb.KV/Range";
const DELETE: &str = "etcdserverpb.KV/DeleteRange";
const WATCH: &str = "etcdserverpb.Watch/Watch";

impl User {
    fn connect(address: &str) -> Result<User, Error> {
        let mut connection = Connection::open(address)?;
        // LeaseGrantRequest: TTL; LeaseGrantResponse: ID.
        let granted = connection.call(GRANT, Message::default().number(1, LEASE))?;
        let lease = number(&granted, 2)?;
        Ok(User { connection, lease, held: None })
    }

    /// The last key below `prefix` that was made before `revision`, if there is one.
    fn predecessor(&mut self, prefix: &str, revision: i64) -> Result<Option<Vec<u8>>, Error> {
        // Of a range that ends behind all that begin with `prefix`, which ends in a slash.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        // RangeRequest: key, range_end, limit, sort_order (descending), sort_target (by creation),
        // keys_only, max_create_revision.
        let last = Message::default()
            .bytes(1, prefix.as_bytes())
            .bytes(2, end.as_bytes())
            .number(3, 1)
            .number(5, 2)
            .number(6, 2)
            .number(8, 1)
            .number(13, revision - 1);
        let found = self.connection.call(RANGE, last)?;
        // RangeResponse: kvs; KeyValue: key.
        Ok(match fields(&found, 2)?.first() {
            Some(Field::Bytes(pair)) => Some(bytes(pair, 1)?.to_vec()),
            _ => None,
        })
    }

    /// Waits until `key`, which was there after `revision`, is deleted.
    fn await_deletion(&mut self, key: &[u8], revision: i64) -> Result<(), Error> {
        // WatchRequest: create_request; WatchCreateRequest: key, start_revision.
        let create = Message::default().bytes(1, key).number(3, revision);
        let deleted = |answer: &bytes::Bytes| {
            // WatchResponse: events; Event: type (1 is DELETE).
            for event in fields(answer, 11)? {
                if let Field::Bytes(event) = event
                    && number(event, 1)? == 1
                {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.connection.call_until(WATCH, Message::default().message(1, &create), deleted)
    }
}

impl Client for User {
    fn lock(&mut self, name: &str) -> Result<(), Error> {
        // LockRequest: name, lease; LockResponse: key.
        let request = Message::default().bytes(1, name.as_bytes()).number(2, self.lease);
        let locked = self.connection.call(LOCK, request)?;
        self.held = Some(Held::Lock(bytes(&locked, 2)?.to_vec()));
        Ok(())
    }

    /// A reader waits for the last writer before it, a writer for the client before it: as
    /// `RWMutex` in the recipes of etcd's client for Go.
    fn lock_as(&mut self, name: &str, shared: bool) -> Result<(), Error> {
        let kind = if shared { "read" } else { "write" };
        let key = format!("rw/{name}/{kind}/{:x}", self.lease);
        // PutRequest: key, value, lease; PutResponse: header; ResponseHeader: revision.
        let put = Message::default().bytes(1, key.as_bytes()).bytes(2, b"").number(3, self.lease);
        let put = self.connection.call(PUT, put)?;
        let mine = number(bytes(&put, 1)?, 3)?;
        self.held = Some(Held::Key(key));
        let before = if shared { format!("rw/{name}/write/") } else { format!("rw/{name}/") };
        while let Some(key) = self.predecessor(&before, mine)? {
            self.await_deletion(&key, mine)?;
        }
        Ok(())
    }

    fn unlock(&mut self) -> Result<(), Error> {
        let (method, key) = match self.held.take() {
            Some(Held::Lock(key)) => (UNLOCK, key),
            Some(Held::Key(key)) => (DELETE, key.into_bytes()),
            None => return Ok(()),
        };
        // UnlockRequest, DeleteRangeRequest: key.
        self.connection.call(method, Message::default().bytes(1, &key)).map(drop)
    }
}

impl Drop for User {
    /// The lease's end is that of all keys.
    fn drop(&mut self) {
        // LeaseRevokeRequest: ID.
        let _ = self.connection.call(REVOKE, Message::default().number(1, self.lease));
    }
}
