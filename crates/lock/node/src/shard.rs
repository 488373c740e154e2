//! Shards of one node: their shared state, and their messages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lockify_core::Name;
use serde::{Deserialize, Serialize};

use crate::fence::{FenceConfig, Fencer};

/// The shared state of one node's shards: the number of each one's unsettled claims, and a letter
/// box each.
#[derive(Debug)]
pub struct ShardGroup {
    shards: Vec<Shard>,
    fencer: OnceLock<Arc<Fencer>>,
}

#[derive(Debug, Default)]
struct Shard {
    unsettled: AtomicUsize,
    letters: Mutex<Vec<ShardLetter>>,
    waker: OnceLock<Arc<mio::Waker>>,
}

/// A message from one shard to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ShardLetter {
    /// Tell me when the claims that you have made in this lockspace are settled.
    AwaitClaims { from: u32, space: String, number: u64 },
    /// They are.
    ClaimsSettled { number: u64 },
}

impl ShardGroup {
    /// A group of `shards` shards (at least 1): give a clone to each of their engines.
    pub fn new(shards: u32) -> Arc<ShardGroup> {
        let shards = (0..shards.max(1)).map(|_| Shard::default()).collect();
        Arc::new(ShardGroup { shards, fencer: OnceLock::new() })
    }

    /// How many shards there are.
    #[allow(clippy::len_without_is_empty)] // A group has at least one shard.
    pub fn len(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The shard that keeps a name.
    pub fn shard_of(&self, name: &Name) -> u32 {
        shard_of(name, self.len())
    }

    /// Runs agents for all of them.
    pub(crate) fn fencer(&self, config: &FenceConfig) -> Arc<Fencer> {
        self.fencer.get_or_init(|| Fencer::new(config.clone())).clone()
    }

    pub(crate) fn attach(&self, shard: u32, waker: Arc<mio::Waker>) {
        // A second engine of the same shard cannot bind its address, so this is the first.
        let _ = self.shards[shard as usize].waker.set(waker);
    }

    pub(crate) fn set_unsettled(&self, shard: u32, claims: usize) {
        self.shards[shard as usize].unsettled.store(claims, Ordering::SeqCst);
    }

    /// Asks every other shard with unsettled claims; returns how many will answer.
    pub(crate) fn ask(&self, from: u32, space: &str, number: u64) -> usize {
        let mut asked = 0;
        for (to, shard) in self.shards.iter().enumerate() {
            if to as u32 != from && shard.unsettled.load(Ordering::SeqCst) > 0 {
                asked += 1;
                self.send(
                    to as u32,
                    ShardLetter::AwaitClaims { from, space: space.to_owned(), number },
                );
            }
        }
        asked
    }

    pub(crate) fn send(&self, to: u32, letter: ShardLetter) {
        let shard = &self.shards[to as usize];
        shard.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        if let Some(waker) = shard.waker.get() {
            // Fails only if the shard's event queue is gone.
            let _ = waker.wake();
        }
    }

    /// The letters that a shard has not read yet.
    pub(crate) fn unread(&self, shard: u32) -> Vec<ShardLetter> {
        let letters = &self.shards[shard as usize].letters;
        letters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn take(&self, shard: u32) -> Vec<ShardLetter> {
        let mut letters =
            self.shards[shard as usize].letters.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *letters)
    }
}

/// The shard that keeps a name: the same on every node.
pub fn shard_of(name: &Name, shards: u32) -> u32 {
    // The hash's low half places the name at its directory node; the shard must not follow it.
    ((name.hash64() >> 32) % u64::from(shards.max(1))) as u32
}
