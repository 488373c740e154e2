//! A client as its host knows it: its user, its rights, and the number of its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockify_core::{ClientId, Ended};
use lockify_session::protocol::{Done, Event, Refusal, Space, VERSION};

use super::{HostedSpace, Rights, Who};

/// How many locks a client may have.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Locks, and requests for locks, of this client.
    pub locks: u32,
    /// Of all clients of its user together.
    pub of_user: u32,
    /// How many those have; shared by them.
    pub user: Arc<AtomicU32>,
}

impl Quota {
    /// No limit.
    pub fn unlimited() -> Quota {
        Quota { locks: u32::MAX, of_user: u32::MAX, user: Arc::default() }
    }
}

/// A client as its host knows it. Dropped, its locks no longer count as its user's: give it to
/// [`ClientHost::client_gone`](super::ClientHost::client_gone), which knows which of them are left.
#[derive(Debug)]
pub struct HostedClient {
    /// Unique on the node.
    pub id: ClientId,
    /// It may make and release lockspaces.
    pub privileged: bool,
    /// The version of the session protocol that it speaks.
    pub version: u16,
    pub(super) quota: Quota,
    /// Its user, and its rights in each configured lockspace, in the order in which the host has
    /// joined them. Without it, the client has all rights.
    pub(super) who: Option<(Arc<Who>, Arc<[Rights]>)>,
    /// Its locks and requests for locks in each lockspace.
    pub(super) locks: Vec<u32>,
}

impl HostedClient {
    /// A client that may have so many locks, and use every lockspace.
    pub fn new(id: ClientId, quota: Quota) -> HostedClient {
        let (privileged, version) = (false, VERSION);
        HostedClient { id, privileged, version, quota, who: None, locks: Vec::new() }
    }

    /// Restricts its rights to those of a user, with these rights in the configured lockspaces.
    pub fn of(mut self, who: Arc<Who>, rights: Arc<[Rights]>) -> HostedClient {
        self.privileged = who.trusted;
        self.who = Some((who, rights));
        self
    }

    /// Changes its rights in the configured lockspaces, for requests from now on.
    pub fn set_rights(&mut self, rights: Arc<[Rights]>) {
        if let Some((_, old)) = &mut self.who {
            *old = rights;
        }
    }

    /// Changes how many locks it, and all clients of its user, may have; present locks stay.
    pub fn set_limits(&mut self, locks: u32, of_user: u32) {
        (self.quota.locks, self.quota.of_user) = (locks, of_user);
    }

    /// How many locks, and requests for locks, it has.
    pub fn locks(&self) -> u32 {
        self.locks.iter().sum()
    }

    /// How many locks all clients of its user have.
    pub fn of_user(&self) -> Arc<AtomicU32> {
        self.quota.user.clone()
    }

    /// Notes the client's events, to count its locks.
    pub fn told(&mut self, event: &Event) {
        match event {
            Event::Completed(Done { space, ended: Ended { mode: None, .. }, .. }) => {
                if let Some(count) = self.locks.get_mut(space.0 as usize)
                    && *count > 0
                {
                    *count -= 1;
                    self.quota.user.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Event::Halted { space, .. } => {
                if let Some(count) = self.locks.get_mut(space.0 as usize) {
                    self.quota.user.fetch_sub(std::mem::take(count), Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }

    /// It gets one more, which there is [`room`](HostedClient::room) for.
    pub(super) fn add(&mut self, space: Space) {
        let index = space.0 as usize;
        if self.locks.len() <= index {
            self.locks.resize(index + 1, 0);
        }
        self.locks[index] += 1;
        self.quota.user.fetch_add(1, Ordering::Relaxed);
    }

    /// Corrects how many locks it has in the lockspace of this number, from how many were known.
    pub(super) fn recount(&mut self, space: usize, locks: impl FnOnce(u32) -> u32) {
        if let Some(count) = self.locks.get_mut(space) {
            let known = std::mem::replace(count, locks(*count));
            self.quota.user.fetch_add(*count, Ordering::Relaxed);
            self.quota.user.fetch_sub(known, Ordering::Relaxed);
        }
    }

    /// Its rights in the lockspace of this number.
    pub(super) fn rights(&self, number: usize, space: &HostedSpace) -> Rights {
        match (&self.who, &space.access) {
            (None, _) => Rights::ALL,
            (Some((who, _)), Some(access)) => who.rights_in(access),
            (Some((_, rights)), None) => rights.get(number).copied().unwrap_or(Rights::NONE),
        }
    }

    /// Refuses one more lock at the limit.
    pub(super) fn room(&self) -> Result<(), Refusal> {
        let Quota { locks, of_user, user } = &self.quota;
        if self.locks() >= *locks {
            return Err(Refusal::TooManyLocks(*locks));
        }
        if user.load(Ordering::Relaxed) >= *of_user {
            return Err(Refusal::TooManyLocksOfUser(*of_user));
        }
        Ok(())
    }
}

impl Drop for HostedClient {
    fn drop(&mut self) {
        self.quota.user.fetch_sub(self.locks(), Ordering::Relaxed);
    }
}
