//! A shard whose settings change, and clients that ask for it.

use std::sync::Arc;

use lockify_host::Recipient;
use lockify_session::protocol::{Answer, Event, Refusal};
use lockify_trust::Mailbox;

use super::Shard;
use crate::reload::{ReloadLetter, Reloader, Settings};

/// How a shard is told to change, and has all of them told.
pub(crate) struct Reloading {
    letters: Mailbox<ReloadLetter>,
    reloader: Arc<Reloader>,
    /// Clients that wait to be told how it ended.
    pub(super) asked: usize,
}

impl Reloading {
    pub(crate) fn new(letters: Mailbox<ReloadLetter>, reloader: Arc<Reloader>) -> Reloading {
        Reloading { letters, reloader, asked: 0 }
    }
}

impl Shard {
    /// From now on, it can be told to change.
    pub(crate) fn set_reloading(&mut self, reloading: Reloading) {
        self.reloading = Some(reloading);
    }

    pub(super) fn open_letters(&mut self) {
        let Some(letters) = self.reloading.as_ref().map(|r| r.letters.take()) else { return };
        for letter in letters {
            match letter {
                ReloadLetter::Change(settings, done) => {
                    self.change(&settings);
                    // The waiting client may have lost patience.
                    let _ = done.try_send(());
                }
                ReloadLetter::Outcome { client, query: id, outcome } => {
                    if let Some(reloading) = &mut self.reloading {
                        reloading.asked -= 1;
                    }
                    let refused = |why| Answer::Refused(Refusal::NotReloaded(why));
                    let answer = outcome.map_or_else(refused, Answer::Reloaded);
                    self.out.push((
                        Recipient::Client(client),
                        Event::Answer { id, answer, more: false },
                    ));
                }
            }
        }
    }

    /// A client wants the configuration to be read again: another thread does so, as it may take
    /// a while.
    pub(super) fn asked_to_reload(&mut self, index: usize, query: u64) {
        let client = &self.sessions[index].client;
        let (to, privileged) = (client.id, client.privileged);
        let why = match &mut self.reloading {
            _ if !privileged => Refusal::MayNotReload,
            None => Refusal::Failed("the daemon is just starting: try again".into()),
            Some(Reloading { letters, reloader, asked }) => {
                let (letters, reloader) = (letters.clone(), reloader.clone());
                let thread = std::thread::Builder::new().name("lockify-reload-asked".into());
                let spawned = thread.spawn(move || {
                    let outcome = reloader.reload_in_time();
                    letters.post(ReloadLetter::Outcome { client: to, query, outcome });
                });
                match spawned {
                    Ok(_) => {
                        *asked += 1;
                        return;
                    }
                    Err(e) => Refusal::Failed(format!("cannot start a thread: {e}")),
                }
            }
        };
        let answer = Answer::Refused(why);
        self.out.push((Recipient::Client(to), Event::Answer { id: query, answer, more: false }));
    }

    fn change(&mut self, new: &Settings) {
        let setup = &mut self.setup;
        setup.limits = new.limits.clone();
        setup.access = new.access.clone();
        setup.shutdown_grace = new.shutdown_grace;
        setup.idle_exit = new.idle_exit.filter(|_| setup.index == 0);
        setup.quorum_lost = new.quorum_lost.clone();
        self.engine.set_busy_poll(new.busy_poll);
        self.engine.raise_newest_version(new.newest_version);
        self.engine.set_fencing_agent(&new.fencing.command, new.fencing.time_limit);
        for (space, after) in &new.deadlock_after {
            self.engine.search_deadlocks_after(space, *after);
        }
        for index in 0..self.sessions.capacity() {
            let Some(session) = self.sessions.get(index) else { continue };
            let quota = self.quota(&session.user);
            let rights = session.user.rights(&self.setup.access);
            let Some(session) = self.sessions.get_mut(index) else { continue };
            session.client.set_limits(quota.locks, quota.of_user);
            session.client.set_rights(rights);
            session.max_unread = new.limits.max_unread;
        }
    }
}
