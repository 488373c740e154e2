//! The thread that runs the callbacks of one client, in order.
//!
//! Callbacks do not run on the thread that drives the transport: they may call anything, also
//! blocking calls of the same client. The thread starts with the first callback.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Callbacks(Mutex<Option<Sender<Job>>>);

impl Callbacks {
    /// Runs `job` after those before it. The queue is bounded by the number of locks: each has at
    /// most one blocking notice and one loss queued.
    pub(crate) fn run(&self, job: Job) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.get_or_insert_with(start);
        // Fails only if the thread could not be started: then there is nobody to call back.
        let _ = queue.send(job);
    }
}

fn start() -> Sender<Job> {
    let (queue, jobs) = channel::<Job>();
    let thread = std::thread::Builder::new().name("lockify-callbacks".into());
    let _ = thread.spawn(move || {
        for job in jobs {
            // A callback that panics has been reported by the panic hook; the others still count.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    });
    queue
}
