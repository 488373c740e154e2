//! All shards stand still at the same time.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockify_core::ClientId;
use rustix::process::{Signal, getpid, kill_process};

use super::Outlet;

/// How long a shard may take to come to rest, or to write.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client and the number of its query.
pub(crate) type Asker = (ClientId, u64);

/// An order to a shard that stands still.
pub(crate) enum Order {
    /// Go on.
    GoOn,
    /// Write the state, and send its descriptors there.
    Write(Outlet),
}

/// The state that a shard has written.
pub(crate) struct Written {
    pub(crate) image: Vec<u8>,
    pub(crate) sessions: usize,
    /// The locks of its clients, a line each.
    pub(crate) held: String,
}

/// The messages between shards and the thread that restarts the daemon.
pub(crate) struct Restart {
    /// A shard has to look.
    wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody restarts this daemon when signalled.
    possible: bool,
    /// Numbers attempts; a shard that came for an earlier one goes on.
    attempt: u64,
    standing: bool,
    outlet: Option<Outlet>,
    seats: Vec<Seat>,
}

/// The state of one shard.
#[derive(Default)]
struct Seat {
    arrived: Option<Result<(), String>>,
    written: Option<Result<Written, String>>,
    askers: Vec<Asker>,
    refused: Vec<(Asker, String)>,
}

impl Restart {
    /// For a daemon that SIGUSR2 restarts.
    pub(crate) fn possible(shards: u16) -> Restart {
        Restart::new(shards, true)
    }

    /// For a daemon inside another program.
    pub(crate) fn impossible(shards: u16) -> Restart {
        Restart::new(shards, false)
    }

    fn new(shards: u16, possible: bool) -> Restart {
        let seats = (0..shards).map(|_| Seat::default()).collect();
        let state = Mutex::new(State { possible, seats, ..State::default() });
        Restart { wanted: AtomicBool::new(false), state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- a shard ----

    /// A client wants the daemon to be restarted, and to be told of it.
    pub(crate) fn ask(&self, shard: u16, asker: Asker) -> Result<(), String> {
        let mut state = self.state();
        if !state.possible {
            return Err(
                "this daemon is part of another program, which would have to restart".into()
            );
        }
        state.seats[usize::from(shard)].askers.push(asker);
        drop(state);
        // To the process: this thread takes no signals.
        kill_process(getpid(), Signal::USR2).map_err(|e| format!("no signal can be sent: {e}"))
    }

    /// The clients that wait for the answer.
    pub(crate) fn askers(&self, shard: u16) -> Vec<Asker> {
        self.state().seats[usize::from(shard)].askers.clone()
    }

    /// Returns true if a shard has to look.
    pub(crate) fn concerns(&self, shard: u16) -> bool {
        self.wanted.load(Ordering::SeqCst) && {
            let state = self.state();
            state.standing || !state.seats[usize::from(shard)].refused.is_empty()
        }
    }

    /// Whom to tell that there will be no restart, and why.
    pub(crate) fn refused(&self, shard: u16) -> Vec<(Asker, String)> {
        let mut state = self.state();
        let refused = std::mem::take(&mut state.seats[usize::from(shard)].refused);
        if !state.standing && state.seats.iter().all(|seat| seat.refused.is_empty()) {
            self.wanted.store(false, Ordering::SeqCst);
        }
        refused
    }

    /// Returns true if the shard has to stand still.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state().standing
    }

    /// Stands still, if this shard can, until all do; says what to do then.
    pub(crate) fn arrive(&self, shard: u16, ready: Result<(), String>) -> Order {
        let mut state = self.state();
        let attempt = state.attempt;
        state.seats[usize::from(shard)].arrived = Some(ready);
        self.changed.notify_all();
        loop {
            if !state.standing || state.attempt != attempt {
                return Order::GoOn;
            }
            if let Some(outlet) = &state.outlet {
                return Order::Write(outlet.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands in the shard's written state, and stands still until it may continue.
    pub(crate) fn hand_in(&self, shard: u16, written: Result<Written, String>) {
        let mut state = self.state();
        let attempt = state.attempt;
        state.seats[usize::from(shard)].written = Some(written);
        self.changed.notify_all();
        while state.standing && state.attempt == attempt {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    // ---- the thread that restarts the daemon ----

    /// Has all shards stand still, write their state, and wait for the end of `act`.
    ///
    /// # Errors
    /// The reason why a shard cannot stand still now.
    pub(crate) fn stand_still<T>(
        &self,
        wake: &dyn Fn(),
        way: impl FnOnce() -> std::io::Result<(Outlet, OwnedFd)>,
        act: impl FnOnce(&Outlet, &OwnedFd, Vec<Written>) -> T,
    ) -> Result<T, String> {
        let mut state = self.state();
        state.attempt += 1;
        (state.standing, state.outlet) = (true, None);
        for seat in &mut state.seats {
            (seat.arrived, seat.written) = (None, None);
        }
        self.wanted.store(true, Ordering::SeqCst);
        drop(state);
        let _go_on = GoOn(self);
        wake();
        self.all(|seat| seat.arrived.take())?;
        let (outlet, inlet) = way().map_err(|e| format!("no sockets can be made: {e}"))?;
        self.state().outlet = Some(outlet.clone());
        self.changed.notify_all();
        let written = self.all(|seat| seat.written.take())?;
        Ok(act(&outlet, &inlet, written))
    }

    /// Waits until every seat has given something.
    fn all<T>(
        &self,
        mut take: impl FnMut(&mut Seat) -> Option<Result<T, String>>,
    ) -> Result<Vec<T>, String> {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state();
        let mut taken: Vec<Option<T>> = state.seats.iter().map(|_| None).collect();
        loop {
            for (seat, taken) in state.seats.iter_mut().zip(&mut taken) {
                if let Some(given) = take(seat) {
                    *taken = Some(given?);
                }
            }
            if taken.iter().all(Option::is_some) {
                return Ok(taken.into_iter().flatten().collect());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("a shard does not come to rest, or the daemon is stopping".into());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// There will be no restart: the asking clients get the reason.
    pub(crate) fn refuse(&self, why: &str, wake: &dyn Fn()) {
        let mut state = self.state();
        for seat in &mut state.seats {
            let askers = std::mem::take(&mut seat.askers);
            seat.refused.extend(askers.into_iter().map(|asker| (asker, why.to_owned())));
        }
        self.wanted.store(state.seats.iter().any(|s| !s.refused.is_empty()), Ordering::SeqCst);
        drop(state);
        wake();
    }
}

/// Lets all shards go on when dropped.
struct GoOn<'a>(&'a Restart);

impl Drop for GoOn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.standing, state.outlet) = (false, None);
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::parcel;
    use std::sync::Arc;

    fn shard(
        restart: &Arc<Restart>,
        index: u16,
        ready: Result<(), String>,
    ) -> std::thread::JoinHandle<bool> {
        let restart = restart.clone();
        std::thread::spawn(move || {
            while restart.state().attempt == 0 {
                std::thread::yield_now();
            }
            // The attempt may have failed already, as it does when another shard is busy: then `arrive` returns at once.
            let Order::Write(_) = restart.arrive(index, ready) else { return false };
            let written = Written { image: vec![index as u8], sessions: 1, held: String::new() };
            restart.hand_in(index, Ok(written));
            true
        })
    }

    #[test]
    fn all_write_when_all_stand_still() {
        let restart = Arc::new(Restart::possible(2));
        let shards = [shard(&restart, 0, Ok(())), shard(&restart, 1, Ok(()))];
        let images = restart.stand_still(&|| {}, parcel::way, |_, _, written| {
            written.into_iter().flat_map(|w| w.image).collect::<Vec<_>>()
        });
        assert_eq!(images, Ok(vec![0, 1]));
        assert!(shards.into_iter().all(|s| s.join().unwrap()));
    }

    #[test]
    fn nobody_writes_if_one_cannot() {
        let restart = Arc::new(Restart::possible(2));
        let shards = [shard(&restart, 0, Ok(())), shard(&restart, 1, Err("busy".into()))];
        let result = restart.stand_still(&|| {}, parcel::way, |_, _, _| ());
        assert_eq!(result, Err("busy".into()));
        assert!(shards.into_iter().all(|s| !s.join().unwrap()));
        let asker = (ClientId(1), 2);
        restart.state().seats[1].askers.push(asker);
        restart.refuse("why", &|| {});
        assert!(restart.concerns(1) && !restart.concerns(0));
        assert_eq!(restart.refused(1), [(asker, "why".into())]);
    }
}
