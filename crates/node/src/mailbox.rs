//! Letters to an engine from threads of its process that may block.

use std::sync::{Arc, Mutex, PoisonError};

use lockify_core::NodeId;

use crate::membership::ClusterEvent;
use crate::notice::Notice;

/// What a thread tells the engine.
#[derive(Debug)]
pub(crate) enum News {
    /// The cluster manager says something.
    Cluster(ClusterEvent),
    /// A fencing agent has ended.
    Fenced { node: NodeId, success: bool },
    /// An operator should see this.
    Notice(Notice),
}

/// Where threads put what the engine reads in its next turn.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    letters: Arc<Mutex<Vec<News>>>,
    waker: Arc<mio::Waker>,
}

impl Mailbox {
    pub(crate) fn new(waker: Arc<mio::Waker>) -> Mailbox {
        Mailbox { letters: Arc::default(), waker }
    }

    pub(crate) fn post(&self, news: News) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        // Fails only if the engine's event queue is gone.
        let _ = self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<News> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
