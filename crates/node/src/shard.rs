//! Shards of one node: what they share, and the claim barrier across them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockify_core::Name;

/// What the shards of one node share: how many claims each has unsettled.
#[derive(Debug)]
pub struct ShardGroup {
    unsettled: Vec<AtomicUsize>,
}

impl ShardGroup {
    /// A group of `shards` shards (at least 1): give a clone to each of their engines.
    pub fn new(shards: u32) -> Arc<ShardGroup> {
        Arc::new(ShardGroup {
            unsettled: (0..shards.max(1)).map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    /// How many shards there are.
    pub fn len(&self) -> u32 {
        self.unsettled.len() as u32
    }

    /// Never: a group has at least one shard.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The shard that keeps a name.
    pub fn shard_of(&self, name: &Name) -> u32 {
        shard_of(name, self.len())
    }

    pub(crate) fn set_unsettled(&self, shard: u32, claims: usize) {
        self.unsettled[shard as usize].store(claims, Ordering::SeqCst);
    }
}

/// The shard that keeps a name: the same on every node.
pub fn shard_of(name: &Name, shards: u32) -> u32 {
    // The hash's low half places the name at its directory node; the shard must not follow it.
    ((name.hash64() >> 32) % u64::from(shards.max(1))) as u32
}
