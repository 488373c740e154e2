//! Home mastery: the master is where the hash says (NODIR, docs/design/semantics.md 9.11). Nothing is looked
//! up and nothing is cached; a change of members moves resources.

use crate::ids::LockId;
use crate::name::Name;
use crate::remote::Accepts;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    pub(crate) fn go_home(&mut self, key: ResourceKey, id: LockId) {
        let home = self.directory_node(self.store[key].hash);
        if home == self.me() {
            self.become_master(key);
            self.request_here(id);
        } else {
            self.store[key].master = Master::At(home);
            self.request_at(id, home);
        }
    }

    pub(crate) fn accepts_at_home(&mut self, name: &Name, hash: u64) -> Accepts {
        if self.directory_node(hash) != self.me() {
            return Accepts::No;
        }
        let key = self.store.find_or_insert(name, hash);
        if self.store[key].master == Master::Unknown {
            self.become_master(key);
        }
        Accepts::Yes(key)
    }
}
