//! Writes what happens to locks, in the format of `lockify-check`, one file per lockspace.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use lockify_core::{
    ClientId, Completion, Input, LockFlags, LockId, Mode, Name, Output, Status, Trace, View,
};
use lockify_history::{
    Event, Flags, Kind, Lvb, Member, Mode as WrittenMode, SbFlags, WriteError, Writer,
};
use serde::{Deserialize, Serialize};

use crate::clock::monotonic;

/// The kinds of events that this writer always records.
const WRITES: [&str; 7] = ["request", "grant", "claim", "master", "barrier", "token", "lvb"];

/// A lockspace's history. Times are read from `CLOCK_MONOTONIC` when something is written: that is
/// before a release is sent, and after a grant has come, so that histories of several nodes of
/// one host can be merged.
#[derive(Debug)]
pub struct History {
    writer: Writer<File>,
    path: PathBuf,
    node: u32,
    life: u64,
    clients: BTreeSet<ClientId>,
    /// Tags of requests that may adopt an orphan, whose grant's token is an old one.
    adoptions: BTreeSet<u64>,
    leaving: bool,
}

/// A history that another program is to go on with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HistoryImage {
    path: PathBuf,
    node: u32,
    life: u64,
    clients: BTreeSet<ClientId>,
    adoptions: BTreeSet<u64>,
    leaving: bool,
}

/// The file of a lockspace: the first one's is the path given, the others' have their name added.
pub fn file_of(path: &Path, first: bool, space: &str) -> PathBuf {
    if first {
        return path.to_owned();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let escape = |c: char| if plain(c) { c.to_string() } else { format!("%{:X}", c as u32) };
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(space.chars().map(escape).collect::<String>());
    name.into()
}

/// Nobody may ever read a pipe, and the node would wait for it, its leases with it.
fn check_that_it_cannot_block(path: &Path) -> std::io::Result<()> {
    match path.metadata() {
        Ok(meta) if meta.file_type().is_fifo() => Err(std::io::Error::other(
            "it is a pipe, and a node must not wait for whoever reads it: give a file",
        )),
        _ => Ok(()),
    }
}

fn mode(mode: Mode) -> WrittenMode {
    WrittenMode::ALL[mode as usize]
}

impl History {
    /// A new file, of this life of this node.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path, node: u32, life: u64) -> Result<History, WriteError> {
        let now = monotonic();
        check_that_it_cannot_block(path).map_err(WriteError::Create)?;
        let mut writer = Writer::create(path)?;
        let writes = Some(WRITES.map(String::from).to_vec());
        writer.write(&Event { writes, ..Event::anywhere(now, Kind::Begin) })?;
        let (clients, adoptions, path) = (BTreeSet::new(), BTreeSet::new(), path.to_owned());
        Ok(History { writer, path, node, life, clients, adoptions, leaving: false })
    }

    /// For the program that goes on in this one's place; everything must have been written.
    pub(crate) fn image(&self) -> HistoryImage {
        let History { writer: _, path, node, life, clients, adoptions, leaving } = self;
        let (path, leaving) = (path.clone(), *leaving);
        let (clients, adoptions) = (clients.clone(), adoptions.clone());
        HistoryImage { path, node: *node, life: *life, clients, adoptions, leaving }
    }

    /// Goes on where another program has stopped.
    pub(crate) fn resume(image: HistoryImage) -> Result<History, WriteError> {
        let HistoryImage { path, node, life, clients, adoptions, leaving } = image;
        check_that_it_cannot_block(&path).map_err(WriteError::Create)?;
        let file = File::options().append(true).open(&path).map_err(WriteError::Create)?;
        let writer = Writer::new(file);
        Ok(History { writer, path, node, life, clients, adoptions, leaving })
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// The node joins again.
    pub fn begin_life(&mut self, life: u64) {
        self.life = life;
        self.leaving = false;
        self.clients.clear();
        self.adoptions.clear();
    }

    fn event(&self, kind: Kind) -> Event {
        Event::new(monotonic(), self.node, kind).incarnation(self.life)
    }

    fn of(&self, kind: Kind, client: ClientId) -> Event {
        Event { client: Some(client.0.to_string()), ..self.event(kind) }
    }

    /// A call was accepted.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn called(&mut self, input: &Input, id: Option<LockId>) -> Result<(), WriteError> {
        let event = match input {
            Input::Lock { client, args: a } => {
                self.clients.insert(*client);
                if a.flags.contains(LockFlags::ORPHAN) {
                    self.adoptions.insert(a.tag);
                }
                Event {
                    lock: id.map(|id| id.0),
                    mode: Some(mode(a.mode)),
                    flags: Flags::from_bits_truncate(a.flags.bits()),
                    lvb: a.lvb.as_deref().map(Lvb::new),
                    ..self.of(Kind::Request, *client).resource(a.name.as_bytes())
                }
            }
            Input::Convert(a) => Event {
                mode: Some(mode(a.mode)),
                flags: Flags::from_bits_truncate(a.flags.bits()),
                freed: a.flags.contains(LockFlags::FREED),
                lvb: a.lvb.as_deref().map(Lvb::new),
                ..self.of(Kind::Convert, a.client).lock(a.lock.0)
            },
            Input::Unlock(a) => {
                let flags = Flags::from_bits_truncate(a.flags.bits());
                Event {
                    flags,
                    freed: flags.contains(Flags::FREED),
                    lvb: a.lvb.as_deref().map(Lvb::new),
                    ..self.of(Kind::Unlock, a.client).lock(a.lock.0)
                }
            }
            Input::Cancel { client, lock } | Input::BreakDeadlock { client, lock } => {
                self.of(Kind::Cancel, *client).lock(lock.0)
            }
            Input::ClientGone(client) => {
                self.clients.remove(client);
                self.of(Kind::Gone, *client)
            }
            _ => return Ok(()),
        };
        self.writer.write(&event)
    }

    /// The node leaves in order: to its clients it is as if they had gone.
    pub(crate) fn leaves(&mut self) -> Result<(), WriteError> {
        self.leaving = true;
        for client in std::mem::take(&mut self.clients) {
            let gone = self.of(Kind::Gone, client);
            self.writer.write(&gone)?;
        }
        Ok(())
    }

    /// The node's life in the lockspace ended, in order or not.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn ended(&mut self, kind: Kind) -> Result<(), WriteError> {
        let event = self.event(kind);
        self.writer.write(&event)?;
        self.writer.flush()
    }

    /// The node begins to recover a view.
    pub(crate) fn entered(&mut self, view: &View) -> Result<(), WriteError> {
        let member =
            |m: &lockify_core::Member| Member { node: m.node.0, incarnation: Some(m.incarnation) };
        let members = Some(view.members.iter().map(member).collect());
        let event = Event { view: Some(view.seq), members, ..self.event(Kind::View) };
        self.writer.write(&event)
    }

    /// The state machine said something.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn said(&mut self, output: &Output) -> Result<(), WriteError> {
        let event = match output {
            Output::Complete(c) if !self.leaving => self.completion(c),
            Output::Bast { client, lock, mode: wanted, .. } if !self.leaving => {
                self.of(Kind::Bast, *client).lock(lock.0).mode(mode(*wanted))
            }
            Output::Lost { client, lock, .. } if !self.leaving => {
                self.of(Kind::Lost, *client).lock(lock.0)
            }
            Output::Settled { client, lock, token, .. } if !self.leaving => {
                Event { token: Some(*token), ..self.of(Kind::Settled, *client).lock(lock.0) }
            }
            Output::RecoveryDone(view) => Event { view: Some(*view), ..self.event(Kind::Recover) },
            Output::Trace(trace) => self.traced(trace),
            _ => return Ok(()),
        };
        self.writer.write(&event)
    }

    fn completion(&mut self, c: &Completion) -> Event {
        let granted = c.status == Status::Granted;
        let kind = if granted { Kind::Grant } else { Kind::Complete };
        let adopted = self.adoptions.remove(&c.tag);
        Event {
            mode: c.mode.map(mode),
            status: Some(i64::from(c.status.errno())),
            token: (c.token != 0 && !adopted).then_some(c.token),
            provisional: c.provisional,
            lvb: c.lvb.as_deref().map(Lvb::new),
            sb_flags: SbFlags::from_bits_truncate(c.status_flags.bits()),
            ..self.of(kind, c.client).lock(c.lock.0)
        }
    }

    fn traced(&self, trace: &Trace) -> Event {
        let of =
            |kind, name: &Name, claim: u64| self.event(kind).resource(name.as_bytes()).claim(claim);
        let at = |event, master: lockify_core::NodeId| Event { master: Some(master.0), ..event };
        match trace {
            Trace::Claim { name, claim } => of(Kind::Claim, name, *claim),
            Trace::Confirm { name, claim } => of(Kind::Confirm, name, *claim),
            Trace::Refuse { name, claim, master } => at(of(Kind::Refuse, name, *claim), *master),
            Trace::Merge { name, claim, master } => at(of(Kind::Merge, name, *claim), *master),
            Trace::Conflict { name, claim } => of(Kind::Conflict, name, *claim),
            Trace::Drop { name, claim } => of(Kind::Drop, name, *claim),
            Trace::Resend { name, claim } => of(Kind::Resend, name, *claim),
            Trace::Master { name, gained } => Event {
                gained: Some(*gained),
                ..self.event(Kind::Master).resource(name.as_bytes())
            },
            Trace::Barrier { lock, waits } => {
                Event { waits: Some(*waits), ..self.event(Kind::Barrier).lock(lock.0) }
            }
        }
    }
}
