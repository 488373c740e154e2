//! The things of a session, and the way to drop them.
//!
//! Python drops objects wherever its collector runs: any thread, at any time, with the interpreter
//! held, and after a fork also in a child. Dropping a guard sends to the daemon, which can wait,
//! and dropping a session joins threads. So a session has a thread on which its things are dropped.
//! In a child they are not dropped at all: it has the same sockets, and would give up locks of its
//! parent.

use std::mem::ManuallyDrop;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use lockify_client::Guard;
use pyo3::prelude::*;

use crate::errors::Forked;

/// A thing that can be dropped elsewhere.
pub trait Discard: Send + 'static {
    /// Returns true if dropping it does nothing that could wait.
    fn is_trivial(&self) -> bool {
        false
    }
}

impl Discard for lockify_client::Client {}
impl Discard for lockify_client::Lockspace {}

/// A guard until it is released.
pub type Held = Arc<Mutex<Option<Guard>>>;

impl Discard for Held {
    fn is_trivial(&self) -> bool {
        self.try_lock().is_ok_and(|guard| guard.is_none())
    }
}

/// The process that a session belongs to, and its thread that drops.
#[derive(Clone)]
pub struct Home {
    pid: u32,
    dropper: Sender<Box<dyn Send>>,
}

impl Home {
    pub fn new() -> std::io::Result<Home> {
        let (dropper, discarded) = channel::<Box<dyn Send>>();
        let thread = std::thread::Builder::new().name("lockify-drop".into());
        thread.spawn(move || discarded.into_iter().for_each(drop))?;
        Ok(Home { pid: std::process::id(), dropper })
    }

    pub fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }
}

/// A thing of a session.
pub struct Owned<T: Discard> {
    thing: ManuallyDrop<T>,
    home: ManuallyDrop<Home>,
}

impl<T: Discard> Owned<T> {
    pub fn new(thing: T, home: &Home) -> Owned<T> {
        Owned { thing: ManuallyDrop::new(thing), home: ManuallyDrop::new(home.clone()) }
    }

    /// The thing, in the process that it belongs to.
    pub fn get(&self) -> PyResult<&T> {
        match self.home.is_here() {
            true => Ok(&self.thing),
            false => Err(Forked::new_err(format!(
                "this session belongs to process {}, which forked: connect in the child, after the \
                 fork",
                self.home.pid
            ))),
        }
    }

    /// The thing, also in a child, where no mutex of it may be used: another thread may have had
    /// it locked.
    pub fn anywhere(&self) -> &T {
        &self.thing
    }

    pub fn home(&self) -> &Home {
        &self.home
    }
}

impl<T: Discard> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // SAFETY: neither is used again.
        let (thing, home) =
            unsafe { (ManuallyDrop::take(&mut self.thing), ManuallyDrop::take(&mut self.home)) };
        if !thing.is_trivial() {
            // The thread lives as long as there is somebody to send; it cannot be gone.
            let _ = home.dropper.send(Box::new(thing));
        }
    }
}
