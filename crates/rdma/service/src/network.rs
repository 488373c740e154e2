//! A memory server on a network: a table in the memory of an RDMA device, and a rendezvous for its clients.

use core::future::Future as _;
use core::pin::pin;
use core::task::Poll;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lockify_fabric::verbs::{Settings as Device, Verbs};
use lockify_onesided::{Fabric as _, Options, Table};

use crate::courier::{Courier, peer_of};
use crate::notice::Notice;
use crate::rendezvous::{HOME, Hosting, Identity, RendezvousHost};
use crate::server::ServeError;

/// The served table, and its address.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Where clients find the server; port 0 for any.
    pub address: SocketAddr,
    /// The identity of this process.
    pub identity: Identity,
    /// The device; its `peers` follow from `clients`.
    pub verbs: Device,
    /// Locks in the table.
    pub locks: u64,
    /// Clients at a time.
    pub clients: u16,
    /// The protocol, leases.
    pub options: Options,
    /// Is told of clients that are turned away, and why.
    pub log: fn(&str),
}

/// A table that is served until it is dropped.
pub struct NetworkServer {
    // Dropped in this order: clients are told, then their verbs end.
    host: Arc<RendezvousHost>,
    fabric: Verbs,
    table: Table,
    options: Options,
}

impl NetworkServer {
    /// Registers the table, and listens.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(settings: &Listening) -> Result<NetworkServer, ServeError> {
        let clients = u64::from(settings.clients);
        // Two for each client that may wait (docs/design/onesided.md 2.8).
        let slots = (2 * clients).next_power_of_two();
        let bytes = Table::bytes(settings.locks, slots);
        let bytes = bytes.ok_or(ServeError::TooMany(settings.locks))?;
        // The server is connected with itself, too.
        let verbs = Device { peers: settings.clients.saturating_add(1), ..settings.verbs.clone() };
        let fabric = Verbs::open(&verbs, peer_of(HOME))?;
        let region = fabric.register(bytes)?;
        let table = Table::new(region, settings.locks, slots)?;
        let notice = Notice::new(region, settings.locks, slots, &settings.options);
        let hosting = Hosting {
            address: settings.address,
            identity: settings.identity.clone(),
            places: settings.clients,
            offer: notice.encode(),
            log: settings.log,
        };
        let host = Arc::new(RendezvousHost::open(hosting)?);
        fabric.meet(Box::new(Courier::of_host(&host)?));
        Ok(NetworkServer { host, fabric, table, options: settings.options })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.fabric.device()
    }

    /// Answers clients until `stop` is set, which is looked at ten times a second and after every signal.
    ///
    /// # Errors
    /// [`ServeError::Serving`].
    pub fn run(&self, stop: &AtomicBool) -> Result<(), ServeError> {
        let serving = lockify_onesided::serve(self.fabric.clone(), self.table, self.options);
        let mut serving = pin!(serving);
        let until_stopped = core::future::poll_fn(|context| match stop.load(Relaxed) {
            true => Poll::Ready(Ok(())),
            false => serving.as_mut().poll(context),
        });
        Ok(self.fabric.block_on(until_stopped)?)
    }
}

/// Clients find their key revoked from now on.
impl Drop for NetworkServer {
    fn drop(&mut self) {
        self.fabric.revoke(self.table.region().key);
    }
}
