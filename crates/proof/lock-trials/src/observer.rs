//! Turns nodes' notes into a history, and has it checked during the run.

use std::collections::{BTreeMap, BTreeSet};

use lockify_check::{Checker, Options, Violation};
use lockify_core::{
    ClientId, Completion, Error, Input, LockId, Mode, NodeId, Output, Status, Trace,
};
use lockify_history::{Event, Flags, Kind, Lvb, Member, Mode as CheckedMode, SbFlags};

use crate::note::Note;

/// Watches one run.
pub struct Observer {
    checker: Checker,
    /// Kept only if asked for: to show the events that break a rule.
    events: Option<Vec<Event>>,
    /// Incarnations that have ended.
    dead: BTreeSet<(NodeId, u64)>,
    /// Incarnations that are leaving, whose clients are told nothing any more.
    leaving: BTreeSet<(NodeId, u64)>,
    /// Clients by incarnation.
    clients: BTreeMap<(NodeId, u64), BTreeSet<ClientId>>,
    /// Requests that may adopt an orphan.
    adoptions: BTreeSet<(NodeId, u64)>,
    calls: u64,
    recoveries: u64,
    deadlocks: u64,
}

/// Where and when something happened.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    node: NodeId,
    incarnation: u64,
}

impl Place {
    fn event(self, kind: Kind) -> Event {
        Event::new(self.at, self.node.0, kind).incarnation(self.incarnation)
    }
}

fn mode(mode: Mode) -> CheckedMode {
    CheckedMode::ALL[mode as usize]
}

/// The mode on which a client can rely while a conversion is under way (CW and PR have only CR in
/// common).
pub fn meet(from: Mode, to: Mode) -> Mode {
    if from.is_middle(to) { Mode::CR } else { from.min(to) }
}

impl Observer {
    /// Nothing has happened; `keep` events to show those that break a rule. With `deadlocks`, each
    /// victim must have been in a deadlock.
    pub fn new(keep: bool, deadlocks: bool) -> Observer {
        let mut observer = Observer {
            checker: Checker::new(Options::whole()),
            events: keep.then(Vec::new),
            dead: BTreeSet::new(),
            leaving: BTreeSet::new(),
            clients: BTreeMap::new(),
            adoptions: BTreeSet::new(),
            calls: 0,
            recoveries: 0,
            deadlocks: 0,
        };
        let writes = ["request", "grant", "claim", "master", "barrier", "token", "lvb"];
        let searched = deadlocks.then_some("deadlock");
        let begin = Event {
            writes: Some(writes.into_iter().chain(searched).map(String::from).collect()),
            ..Event::anywhere(0, Kind::Begin)
        };
        // The first event of a history breaks no rule.
        let _ = observer.feed(begin);
        observer
    }

    /// Calls that clients made.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Recoveries that nodes completed.
    pub fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// Requests that were ended as deadlocks.
    pub fn deadlocks(&self) -> u64 {
        self.deadlocks
    }

    fn feed(&mut self, event: Event) -> Result<(), String> {
        if let Some(events) = &mut self.events {
            events.push(event.clone());
        }
        self.checker.observe(&event).map_err(|violation| self.describe(&violation))
    }

    fn describe(&self, violation: &Violation) -> String {
        let mut text = format!("{}: {}", violation.rule, violation.what);
        for line in &violation.lines {
            let event = self.events.as_ref().and_then(|events| events.get(*line as usize - 1));
            if let Some(event) = event {
                text += &format!("\n  event {line}: {event:?}");
            }
        }
        text
    }

    /// A node noted something.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn note(
        &mut self,
        at: u64,
        node: NodeId,
        incarnation: u64,
        note: &Note,
    ) -> Result<(), String> {
        let place = Place { at, node, incarnation };
        match note {
            Note::Called { input, result } => self.called(place, input, *result),
            Note::Said(output) => self.said(place, output),
            Note::Step(_)
            | Note::Broken(_)
            | Note::Lives(_)
            | Note::Installed(_)
            | Note::Cast(_)
            | Note::Agent(_) => Ok(()),
        }
    }

    /// An incarnation ended without order.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn crashed(&mut self, at: u64, node: NodeId, incarnation: u64) -> Result<(), String> {
        if !self.dead.insert((node, incarnation)) {
            return Ok(());
        }
        self.feed(Place { at, node, incarnation }.event(Kind::Crash))
    }

    /// An incarnation left in order.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn left(&mut self, at: u64, node: NodeId, incarnation: u64) -> Result<(), String> {
        if !self.dead.insert((node, incarnation)) {
            return Ok(());
        }
        self.feed(Place { at, node, incarnation }.event(Kind::Leave))
    }

    /// Everything has come to rest.
    ///
    /// # Errors
    /// The rule that this breaks.
    pub fn end(&mut self, at: u64) -> Result<(), String> {
        self.feed(Event::anywhere(at, Kind::End))?;
        let checker = std::mem::replace(&mut self.checker, Checker::new(Options::whole()));
        match checker.finish().violations.first() {
            Some(violation) => Err(self.describe(violation)),
            None => Ok(()),
        }
    }

    fn called(
        &mut self,
        place: Place,
        input: &Input,
        result: Result<Option<LockId>, Error>,
    ) -> Result<(), String> {
        self.calls += 1;
        let Ok(id) = result else { return Ok(()) };
        if let Input::Lock { client, .. } = input {
            self.clients.entry((place.node, place.incarnation)).or_default().insert(*client);
        }
        if let Input::Lock { args, .. } = input
            && args.flags.contains(lockify_core::LockFlags::ORPHAN)
        {
            self.adoptions.insert((place.node, args.tag));
        }
        let event = match input {
            Input::Lock { client, args } => Event {
                client: Some(client.0.to_string()),
                lock: id.map(|id| id.0),
                mode: Some(mode(args.mode)),
                flags: Flags::from_bits_truncate(args.flags.bits()),
                op: Some(args.tag),
                lvb: args.lvb.as_deref().map(Lvb::new),
                ..place.event(Kind::Request).resource(args.name.as_bytes())
            },
            Input::Convert(args) => {
                let flags = Flags::from_bits_truncate(args.flags.bits());
                Event {
                    client: Some(args.client.0.to_string()),
                    lock: Some(args.lock.0),
                    mode: Some(mode(args.mode)),
                    flags,
                    freed: flags.contains(Flags::FREED),
                    op: Some(args.tag),
                    lvb: args.lvb.as_deref().map(Lvb::new),
                    ..place.event(Kind::Convert)
                }
            }
            Input::Unlock(args) => {
                let flags = Flags::from_bits_truncate(args.flags.bits());
                Event {
                    client: Some(args.client.0.to_string()),
                    lock: Some(args.lock.0),
                    flags,
                    freed: flags.contains(Flags::FREED),
                    op: Some(args.tag),
                    lvb: args.lvb.as_deref().map(Lvb::new),
                    ..place.event(Kind::Unlock)
                }
            }
            Input::Cancel { client, lock } | Input::BreakDeadlock { client, lock } => Event {
                client: Some(client.0.to_string()),
                lock: Some(lock.0),
                ..place.event(Kind::Cancel)
            },
            Input::ClientGone(client) => {
                Event { client: Some(client.0.to_string()), ..place.event(Kind::Gone) }
            }
            Input::View(view) => {
                let member = |m: &lockify_core::Member| Member {
                    node: m.node.0,
                    incarnation: Some(m.incarnation),
                };
                Event {
                    view: Some(view.seq),
                    members: Some(view.members.iter().map(member).collect()),
                    ..place.event(Kind::View)
                }
            }
            Input::Leave => return self.leaves(place),
            Input::Halt => return self.crashed(place.at, place.node, place.incarnation),
            _ => return Ok(()),
        };
        self.feed(event)
    }

    /// A leaving node force-unlocks its clients' locks: to these clients it is as if they had
    /// exited.
    fn leaves(&mut self, place: Place) -> Result<(), String> {
        self.leaving.insert((place.node, place.incarnation));
        for client in self.clients.remove(&(place.node, place.incarnation)).unwrap_or_default() {
            let client = Some(client.0.to_string());
            self.feed(Event { client, ..place.event(Kind::Gone) })?;
        }
        Ok(())
    }

    fn said(&mut self, place: Place, output: &Output) -> Result<(), String> {
        let event = match output {
            Output::Complete(done) => {
                let ended = done.status == Status::Deadlock && done.mode.is_none();
                self.deadlocks += u64::from(ended);
                let mut event = completion(place, done);
                if self.adoptions.remove(&(place.node, done.tag)) {
                    // An adoption goes on with the orphan's grant: it has that grant's token.
                    event.token = None;
                }
                event
            }
            Output::Bast { client, lock, mode: wanted, .. } => Event {
                client: Some(client.0.to_string()),
                ..place.event(Kind::Bast).lock(lock.0).mode(mode(*wanted))
            },
            Output::Lost { client, lock, .. } => {
                Event { client: Some(client.0.to_string()), ..place.event(Kind::Lost).lock(lock.0) }
            }
            Output::Settled { client, lock, token, .. } => Event {
                client: Some(client.0.to_string()),
                token: Some(*token),
                ..place.event(Kind::Settled).lock(lock.0)
            },
            Output::RecoveryDone(view) => {
                self.recoveries += 1;
                Event { view: Some(*view), ..place.event(Kind::Recover) }
            }
            Output::Left => return self.left(place.at, place.node, place.incarnation),
            Output::Withdraw(reason) => {
                return Err(format!("node {} must withdraw: {reason:?}", place.node));
            }
            Output::Trace(trace) => protocol_event(place, trace),
            Output::Send { .. }
            | Output::Departed { .. }
            | Output::OrphanGone { .. }
            | Output::ClaimsSettled(_)
            | Output::RecoveryBegun(_) => return Ok(()),
        };
        let life = (place.node, place.incarnation);
        if self.dead.contains(&life) || (self.leaving.contains(&life) && event.client.is_some()) {
            return Ok(()); // nobody is told
        }
        self.feed(event)
    }
}

fn completion(place: Place, done: &Completion) -> Event {
    let kind = if done.status == Status::Granted { Kind::Grant } else { Kind::Complete };
    Event {
        client: Some(done.client.0.to_string()),
        mode: done.mode.map(mode),
        status: Some(i64::from(done.status.errno())),
        token: (done.token != 0).then_some(done.token),
        provisional: done.provisional,
        lvb: done.lvb.as_deref().map(Lvb::new),
        sb_flags: SbFlags::from_bits_truncate(done.status_flags.bits()),
        ..place.event(kind).lock(done.lock.0).op(done.tag)
    }
}

fn protocol_event(place: Place, trace: &Trace) -> Event {
    let of = |kind, name: &lockify_core::Name, claim: &u64| {
        place.event(kind).resource(name.as_bytes()).claim(*claim)
    };
    match trace {
        Trace::Claim { name, claim } => of(Kind::Claim, name, claim),
        Trace::Confirm { name, claim } => of(Kind::Confirm, name, claim),
        Trace::Refuse { name, claim, master } => {
            Event { master: Some(master.0), ..of(Kind::Refuse, name, claim) }
        }
        Trace::Merge { name, claim, master } => {
            Event { master: Some(master.0), ..of(Kind::Merge, name, claim) }
        }
        Trace::Conflict { name, claim } => of(Kind::Conflict, name, claim),
        Trace::Drop { name, claim } => of(Kind::Drop, name, claim),
        Trace::Resend { name, claim } => of(Kind::Resend, name, claim),
        Trace::Master { name, gained } => {
            Event { gained: Some(*gained), ..place.event(Kind::Master).resource(name.as_bytes()) }
        }
        Trace::Barrier { lock, waits } => {
            Event { waits: Some(*waits), ..place.event(Kind::Barrier).lock(lock.0) }
        }
    }
}
