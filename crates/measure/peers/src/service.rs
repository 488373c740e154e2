//! The measured subject: a lock service that runs, and its clients.

use std::time::Duration;

use crate::error::Error;

/// Longest time of one call of any client.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Longest time of a server's start.
pub const START: Duration = Duration::from_secs(60);

/// How long an ensemble has to elect another leader.
#[cfg(feature = "clients")]
pub const RECOVERY: Duration = Duration::from_secs(5);

/// A lock service that runs. Dropped, it ends.
pub trait Service {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// The transport of its clients: `unix`, `tcp`, or `none` if it is in their process.
    fn socket(&self) -> &'static str;

    /// The events that a grant survives.
    fn durability(&self) -> &'static str;

    /// The delay that it adds itself to each message between its nodes.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }

    /// How long it takes at most until a request that waits is where it will be woken.
    fn rest(&self) -> Duration {
        Duration::from_millis(1)
    }

    /// How long it may need to find itself again after a turn that failed, as an ensemble that has
    /// lost its leader. Zero: it has no second chance.
    fn recovery(&self) -> Duration {
        Duration::ZERO
    }

    /// Client number `number`; with several nodes, of node `number % nodes`.
    ///
    /// # Errors
    /// It cannot be reached.
    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error>;
}

/// A client, which holds one lock at a time. Dropped, it gives up all that it has.
pub trait Client: Send {
    /// Locks `name` for itself alone; waits.
    ///
    /// # Errors
    /// The service fails, or it takes longer than [`PATIENCE`].
    fn lock(&mut self, name: &str) -> Result<(), Error>;

    /// Locks `name` as one that has readers and writers, `shared` with other readers or not.
    ///
    /// # Errors
    /// As [`Client::lock`].
    fn lock_as(&mut self, name: &str, shared: bool) -> Result<(), Error>;

    /// Releases the lock of the last `lock` or `lock_as`; waits until the service has confirmed it.
    ///
    /// # Errors
    /// As [`Client::lock`].
    fn unlock(&mut self) -> Result<(), Error>;

    /// Locks a name that is new, that of an object that is being created, and keeps it.
    ///
    /// # Errors
    /// As [`Client::lock`].
    fn create(&mut self, name: &str) -> Result<(), Error> {
        self.lock(name)
    }

    /// Waits until all that was created is known where others would ask for it.
    ///
    /// # Errors
    /// As [`Client::lock`].
    fn settle(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Has this client's node decide about `name`, where services have such a thing.
    ///
    /// # Errors
    /// As [`Client::lock`].
    fn decide_about(&mut self, _name: &str) -> Result<(), Error> {
        Ok(())
    }
}
