//! The owners of locks: a client's locks are found without a look at all others.

use hashbrown::HashMap;
use slab::Slab;

use crate::ids::ClientId;
use crate::queue::NIL;

/// Each client's first lock; the others follow it by their links.
#[derive(Clone, Default)]
pub(crate) struct Owned {
    heads: Slab<(ClientId, u32)>,
    by_client: HashMap<ClientId, usize>,
    /// The last client that was asked for is likely to be asked for again.
    recent: Option<(ClientId, usize)>,
}

impl Owned {
    /// The client's first lock.
    pub fn first(&self, client: ClientId) -> u32 {
        self.by_client.get(&client).map_or(NIL, |&place| self.heads[place].1)
    }

    /// The same, to be changed.
    pub fn head(&mut self, client: ClientId) -> &mut u32 {
        let place = match self.recent {
            Some((recent, place)) if recent == client => place,
            _ => {
                let heads = &mut self.heads;
                let new = || heads.insert((client, NIL));
                *self.by_client.entry(client).or_insert_with(new)
            }
        };
        self.recent = Some((client, place));
        &mut self.heads[place].1
    }

    /// The client is gone. Called while it has locks, it is not.
    pub fn forget(&mut self, client: ClientId) {
        if self.first(client) != NIL {
            return;
        }
        self.recent = None;
        if let Some(place) = self.by_client.remove(&client) {
            self.heads.remove(place);
        }
    }
}
