//! A home's end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::Waker;

use super::error::RendezvousError;
use super::frame::MAX_BYTES;
use super::relay::{Hosting, Relay};
use super::shared::{Shared, State};
use super::{Event, HOME, LAST_RANK, PATIENCE, QUEUE, allow};

/// A rendezvous that is open until this is dropped. Its own thread relays what participants tell each other.
pub struct RendezvousHost {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl RendezvousHost {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot listen there; others can reach the address and there are no keys; or the numbers are impossible.
    pub fn open(hosting: Hosting) -> Result<RendezvousHost, RendezvousError> {
        let Hosting { address, places, .. } = hosting;
        if !(1..=LAST_RANK).contains(&places) {
            return Err(RendezvousError::Places(places.into()));
        }
        if hosting.offer.len() > MAX_BYTES {
            return Err(RendezvousError::TooLong(hosting.offer.len()));
        }
        allow(&hosting.identity, address)?;
        let failed = |error| RendezvousError::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let poll = mio::Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), Relay::WAKER).map_err(failed)?;
        let shared = Arc::new(Shared::new(waker));
        let relay = Relay::new(hosting, listener, poll, Arc::clone(&shared)).map_err(failed)?;
        let thread = std::thread::Builder::new().name("rendezvous".into());
        let thread = Some(thread.spawn(move || relay.run()).map_err(failed)?);
        Ok(RendezvousHost { shared, address, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The home's rank.
    pub fn rank(&self) -> u16 {
        HOME
    }

    /// Tells somebody something. Waits while there is too much for him already.
    ///
    /// # Errors
    /// There is nobody of this rank, by the events so far; it is too long; or the rendezvous is over.
    pub fn send(&self, rank: u16, bytes: &[u8]) -> Result<(), RendezvousError> {
        if bytes.len() > MAX_BYTES {
            return Err(RendezvousError::TooLong(bytes.len()));
        }
        if rank == HOME {
            return Err(RendezvousError::Nobody(rank));
        }
        let mut state = self.shared.state();
        let to = state.incoming.who(rank)?;
        // A participant that takes nothing for that long is excluded; so this is for impossible
        // cases.
        let end = Instant::now().checked_add(2 * PATIENCE);
        while state.unsent >= QUEUE && state.over.is_none() {
            state = self.shared.wait(state, end).ok_or(RendezvousError::Stuck)?;
        }
        check(&state)?;
        state.unsent += bytes.len();
        state.outgoing.push_back((to, bytes.to_vec()));
        drop(state);
        self.shared.wake();
        Ok(())
    }

    /// The next event; `None` if there is none in this time.
    ///
    /// # Errors
    /// The rendezvous is over.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>, RendezvousError> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.shared.state();
        loop {
            let was_full = state.incoming.is_full();
            if let Some(event) = state.incoming.take() {
                if was_full && !state.incoming.is_full() {
                    self.shared.wake();
                }
                return Ok(Some(event));
            }
            check(&state)?;
            match self.shared.wait(state, end) {
                Some(again) => state = again,
                None => return Ok(None),
            }
        }
    }
}

fn check(state: &State) -> Result<(), RendezvousError> {
    state.over.as_ref().map_or(Ok(()), |why| Err(RendezvousError::Over(why.clone())))
}

/// Participants are told.
impl Drop for RendezvousHost {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // It has panicked, or ended.
            let _ = thread.join();
        }
    }
}
