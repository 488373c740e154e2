//! Lockspaces: joining, calls, and what their state machines want done.

use std::collections::HashMap;

use lockify_core::{
    Config, Input, LockId, Lockspace, NodeId, Output, Stats, Time, View, WithdrawReason,
};
use lockify_history::Kind;
use serde::{Deserialize, Serialize};

use super::NodeEngine;
use super::greetings::is_visit;
use crate::clock::{boottime, monotonic};
use crate::config::SpaceConfig;
use crate::error::CallError;
use crate::event::{HostEvent, SpaceId};
use crate::history::History;
use crate::membership::{Event, SpaceJoin, SpaceKeys};
use crate::notice::Level;
use crate::wire::Payload;

/// Lock value blocks beyond this would not fit into the messages of a recovery.
const MAX_LVB: usize = 4096;

/// Bits for the joins of lockspaces within one life of the node.
const JOINS: u32 = 24;

/// A lockspace that this node has joined.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Space {
    pub(super) id: SpaceId,
    pub(super) name: String,
    pub(super) config: SpaceConfig,
    pub(super) core: Lockspace,
    /// This join of it.
    pub(super) life: u64,
    pub(super) leaving: bool,
    /// The members' lives, and the first view that each was in with it.
    since: HashMap<NodeId, (u64, u64)>,
    /// Waits for claims that other shards have asked for: the shard and its number.
    pub(super) claim_waits: HashMap<u64, (u32, u64)>,
}

impl Space {
    /// The settings that its members must share.
    fn keys(&self) -> SpaceKeys {
        let Config { policy, lvb_len, .. } = self.config.core;
        // `MAX_LVB` is far below.
        SpaceKeys { policy, lvb_len: lvb_len as u32 }
    }

    /// A message of a former life of its sender, or for a former life of this node.
    pub(super) fn is_stale(&self, from: NodeId, view: u64) -> bool {
        self.since.get(&from).is_some_and(|&(_, first)| view < first)
    }

    /// Enters a view.
    fn note_members(&mut self, view: &View) {
        self.since.retain(|node, _| view.member(*node).is_some());
        for m in &view.members {
            let known = self.since.entry(m.node).or_insert((m.incarnation, view.seq));
            if known.0 != m.incarnation {
                *known = (m.incarnation, view.seq);
            }
        }
    }
}

impl NodeEngine {
    /// Joins a lockspace (1 to 64 bytes); calls are possible after the first
    /// [`HostEvent::Running`]. Joining again with the same configuration returns the same id.
    ///
    /// # Errors
    /// [`CallError::BadSpaceName`], [`CallError::BadLvbLength`], [`CallError::Joined`],
    /// [`CallError::History`].
    pub fn join(&mut self, name: &str, config: SpaceConfig) -> Result<SpaceId, CallError> {
        if name.is_empty() || name.len() > 64 {
            return Err(CallError::BadSpaceName(name.len()));
        }
        if config.core.lvb_len > MAX_LVB {
            return Err(CallError::BadLvbLength(config.core.lvb_len, MAX_LVB));
        }
        if let Some(space) = self.spaces.iter().flatten().find(|s| s.name == name && !s.leaving) {
            return if space.config == config {
                Ok(space.id)
            } else {
                Err(CallError::Joined(name.into()))
            };
        }
        let id = SpaceId(self.spaces.len() as u32);
        let life = self.new_life();
        self.begin_history(name, life)?;
        let core = self.new_core(&config, life);
        let (name, since, claim_waits) = (name.to_owned(), HashMap::new(), HashMap::new());
        self.spaces.push(Some(Space {
            id,
            name,
            config,
            core,
            life,
            leaving: false,
            since,
            claim_waits,
        }));
        let now = monotonic();
        self.announce(now);
        self.leave_misfits(now);
        self.settle(now);
        Ok(id)
    }

    /// Leaves a lockspace in order; [`HostEvent::Left`] follows. Locks still held are unlocked.
    ///
    /// # Errors
    /// [`CallError::NoSpace`].
    pub fn leave(&mut self, space: SpaceId) -> Result<(), CallError> {
        let at = self.find(space)?;
        let now = monotonic();
        let Some(s) = self.spaces[at].as_mut() else { return Err(CallError::NoSpace) };
        if std::mem::replace(&mut s.leaving, true) {
            return Ok(());
        }
        if s.core.view().members.is_empty() {
            // Never a member, or halted: nobody need be told, and nobody could be asked.
            self.remove(at, now);
        } else {
            // Only client calls fail.
            let _ = s.core.handle(now, Input::Leave);
            self.record(at, History::leaves);
            self.drain(at, now);
        }
        self.settle(now);
        Ok(())
    }

    /// Feeds a client's call to a lockspace and sends the resulting messages. Immediate completions are in `events` of
    /// the next [`NodeEngine::run_once`], or at once in [`NodeEngine::take_events`].
    ///
    /// # Errors
    /// [`CallError::NotACall`] unless it is a `Lock`, `Convert`, `Unlock`, `Cancel`, `BreakDeadlock`, `ClientGone` or
    /// `Purge`; [`CallError::NoSpace`]; [`CallError::WouldBlock`] for new locks while [`NodeEngine::congested`];
    /// [`CallError::Lock`] as the lock manager says.
    pub fn handle(&mut self, space: SpaceId, input: Input) -> Result<Option<LockId>, CallError> {
        let now = monotonic();
        if self.lease_end.is_some_and(|end| boottime() >= end) {
            self.membership_event(now, Event::Tick);
        }
        let at = self.find(space)?;
        match &input {
            Input::Lock { .. } => self.check_congestion()?,
            Input::Convert(_)
            | Input::Unlock(_)
            | Input::Cancel { .. }
            | Input::BreakDeadlock { .. }
            | Input::ClientGone(_)
            | Input::Purge { .. } => {}
            _ => return Err(CallError::NotACall),
        }
        let result = match self.hold_for_shards(at, input, now)? {
            None => Ok(None),
            Some(input) => self.call(at, input, now),
        };
        self.settle(now);
        result
    }

    /// Hands a call to the state machine.
    pub(super) fn call(
        &mut self,
        at: usize,
        input: Input,
        now: Time,
    ) -> Result<Option<LockId>, CallError> {
        let Some(s) = self.spaces[at].as_mut() else { return Err(CallError::NoSpace) };
        if self.histories.is_empty() {
            let result = s.core.handle(now, input)?;
            self.drain(at, now);
            return Ok(result);
        }
        let result = s.core.handle(now, input.clone())?;
        self.record(at, |h| h.called(&input, result));
        self.drain(at, now);
        Ok(result)
    }

    /// After a call from outside the loop: writes, and makes sure that timers fire.
    pub(super) fn settle(&mut self, now: Time) {
        self.flush(now);
        let due = |s: &Space| s.core.next_timer();
        if let Some(next) = self.spaces.iter().flatten().filter_map(due).min() {
            self.set_timer(next);
        }
    }

    fn check_congestion(&self) -> Result<(), CallError> {
        match self.peers.iter().find(|p| p.congested) {
            Some(p) => Err(CallError::WouldBlock(p.node)),
            None => Ok(()),
        }
    }

    /// Returns true if a peer's backlog is over its limit: hosts stop reading from their clients,
    /// and [`NodeEngine::handle`] refuses new locks with [`CallError::WouldBlock`].
    pub fn congested(&self) -> bool {
        self.peers.iter().any(|p| p.congested)
    }

    /// A lockspace's counters.
    pub fn space_stats(&self, space: SpaceId) -> Option<Stats> {
        self.find(space).ok().and_then(|at| self.spaces[at].as_ref()).map(|s| s.core.stats())
    }

    /// How many locks this node's clients have in a lockspace, the orphans that they left included.
    pub fn own_locks(&self, space: SpaceId) -> usize {
        let joined = self.find(space).ok().and_then(|at| self.spaces[at].as_ref());
        joined.map_or(0, |s| s.core.own_lock_count())
    }

    /// Returns true if calls to a lockspace are handled now: it is a member and does not recover.
    pub fn is_running(&self, space: SpaceId) -> bool {
        self.find(space)
            .is_ok_and(|at| self.spaces[at].as_ref().is_some_and(|s| s.core.is_running()))
    }

    fn find(&self, space: SpaceId) -> Result<usize, CallError> {
        let at = space.0 as usize;
        if self.spaces.get(at).is_some_and(Option::is_some) {
            Ok(at)
        } else {
            Err(CallError::NoSpace)
        }
    }

    fn new_life(&mut self) -> u64 {
        // Larger than those of every earlier life of the node, and than its own joins before.
        let floor = match self.incarnation {
            // No life yet: a join from this time is repeated in it.
            visit if is_visit(visit) => 0,
            life => life << JOINS,
        };
        self.last_life = (self.last_life + 1).max(floor);
        self.last_life
    }

    /// The node has another life: lockspaces that it is no member of are joined in that one.
    pub(super) fn rejoin_all(&mut self) {
        for at in 0..self.spaces.len() {
            let outside = |s: &&Space| s.core.view().members.is_empty() && !s.leaving;
            let Some(config) = self.spaces[at].as_ref().filter(outside).map(|s| s.config.clone())
            else {
                continue;
            };
            let life = self.new_life();
            let core = self.new_core(&config, life);
            if let Some(s) = self.spaces[at].as_mut() {
                (s.life, s.core) = (life, core);
            }
            self.record(at, |h| {
                h.begin_life(life);
                Ok(())
            });
        }
    }

    fn new_core(&self, config: &SpaceConfig, life: u64) -> Lockspace {
        let mut core = config.core.clone();
        core.node = self.identity.node;
        core.incarnation = life;
        // The link loses nothing, so there is nothing to send again.
        core.claim_resend = None;
        core.trace |= self.history.is_some();
        Lockspace::new(core)
    }

    /// Reports this node's lockspaces to the membership service.
    pub(super) fn announce(&mut self, now: Time) {
        let joins = self.joins();
        self.membership_event(now, Event::Spaces(joins));
    }

    /// The lockspaces that this node has joined.
    pub(super) fn joins(&self) -> Vec<SpaceJoin> {
        let join = |s: &Space| SpaceJoin { name: s.name.clone(), life: s.life, keys: s.keys() };
        self.spaces.iter().flatten().map(join).collect()
    }

    /// Gives lockspaces their time.
    pub(super) fn tick_spaces(&mut self, now: Time) {
        for at in 0..self.spaces.len() {
            if let Some(s) = self.spaces[at].as_mut()
                && s.core.next_timer().is_some_and(|t| t <= now)
            {
                // Only client calls fail.
                let _ = s.core.handle(now, Input::Tick);
                self.drain(at, now);
            }
        }
    }

    /// Withdraws from lockspaces whose members in the view have other keys: the view will never have this node's joins.
    pub(super) fn leave_misfits(&mut self, now: Time) {
        let me = self.identity.node;
        for at in 0..self.spaces.len() {
            let part = self.spaces[at].as_ref().zip(self.members.view());
            let misfit = part.is_some_and(|(s, view)| {
                let theirs = view.space_view(&s.name).filter(|v| !v.keys.fits(&s.keys()));
                theirs.is_some_and(|v| v.view.members.iter().any(|m| m.node != me))
            });
            if misfit {
                self.withdraw(at, WithdrawReason::ConfigurationMismatch, now);
            }
        }
    }

    /// A view was agreed on: the lockspace enters it if it is a new one for it.
    pub(super) fn enter(&mut self, at: usize, view: &View, now: Time) {
        let me = self.identity.node;
        let Some(s) = self.spaces[at].as_mut() else { return };
        let current = view.member(me).is_some_and(|m| m.incarnation == s.life);
        if current && view.seq > s.core.view().seq {
            s.note_members(view);
            // Only client calls fail.
            let _ = s.core.handle(now, Input::View(view.clone()));
            self.record(at, |h| h.entered(view));
            self.drain(at, now);
        }
    }

    /// Executes the state machine's outputs.
    pub(super) fn drain(&mut self, at: usize, now: Time) {
        while let Some(s) = self.spaces[at].as_mut()
            && let Some(output) = s.core.poll()
        {
            let space = s.id;
            if !self.histories.is_empty() {
                self.record(at, |h| h.said(&output));
            }
            match output {
                Output::Send { to, message } => self.send(at, to, *message, now),
                Output::Complete(completion) => {
                    self.pending.push(HostEvent::Completed { space, completion });
                }
                Output::Bast { client, lock, tag, mode } => {
                    self.pending.push(HostEvent::Bast { space, client, lock, tag, mode });
                }
                Output::Lost { client, lock, tag, reason } => {
                    self.pending.push(HostEvent::Lost { space, client, lock, tag, reason });
                }
                Output::Settled { client, lock, tag, token } => {
                    self.pending.push(HostEvent::Settled { space, client, lock, tag, token });
                }
                Output::Departed { client, orphans } => {
                    self.pending.push(HostEvent::Departed { space, client, orphans });
                }
                Output::OrphanGone { client } => {
                    self.pending.push(HostEvent::OrphanGone { space, client });
                }
                Output::ClaimsSettled(number) => self.claims_settled(at, number, now),
                Output::RecoveryBegun(view) => {
                    self.pending.push(HostEvent::Recovering { space, view })
                }
                Output::RecoveryDone(view) => self.pending.push(HostEvent::Running { space, view }),
                Output::Left => self.remove(at, now),
                Output::Withdraw(reason) => self.withdraw(at, reason, now),
                Output::Trace(_) => {}
            }
        }
        self.share_unsettled();
    }

    fn send(&mut self, at: usize, to: NodeId, message: lockify_core::Message, now: Time) {
        let Some(peer) = self.peer_of(to) else { return };
        self.log_message(at, self.identity.node, to, &message.body);
        let Some(s) = &self.spaces[at] else { return };
        let (id, number) = (s.id, s.id.0);
        if !self.peers[peer].opened.contains(&id) {
            let open = Payload::Open { space: number, name: s.name.clone() };
            self.peers[peer].opened.insert(id);
            self.transmit(peer, open, now);
        }
        self.transmit(peer, Payload::Lock { space: number, message }, now);
    }

    /// The lockspace was left.
    fn remove(&mut self, at: usize, now: Time) {
        self.record(at, |h| h.ended(Kind::Leave));
        let Some(s) = self.spaces[at].take() else { return };
        self.drop_held(at);
        self.release_claim_waits(&s);
        self.pending.push(HostEvent::Left { space: s.id });
        self.announce(now);
    }

    /// The lockspace's state machine wants to be halted.
    fn withdraw(&mut self, at: usize, reason: WithdrawReason, now: Time) {
        let Some(s) = &self.spaces[at] else { return };
        let (space, name) = (s.id, s.name.clone());
        let theirs = self.members.view().and_then(|v| v.space_view(&name)).map(|s| s.keys);
        let why = match reason {
            WithdrawReason::ConflictNotAbandoned => {
                "a lock that was lost to a conflict was not given up".into()
            }
            WithdrawReason::ConfigurationMismatch => contradiction(s.keys(), theirs),
            WithdrawReason::LeftBehind => "it was left behind by the other members' views".into(),
        };
        self.notice(Level::Error, format!("withdrew from lockspace {name}: {why}"));
        self.halt_space(at, now);
        self.pending.push(HostEvent::Withdrawn { space, reason });
        if reason == WithdrawReason::ConfigurationMismatch {
            self.spaces[at] = None;
        }
        self.announce(now);
    }

    /// Ends this node's life in a lockspace and prepares the next one.
    pub(super) fn halt_space(&mut self, at: usize, now: Time) {
        let life = self.new_life();
        self.record(at, |h| h.ended(Kind::Crash));
        self.record(at, |h| {
            h.begin_life(life);
            Ok(())
        });
        let Some(s) = self.spaces[at].as_mut() else { return };
        // Only client calls fail.
        let _ = s.core.handle(now, Input::Halt);
        while let Some(output) = s.core.poll() {
            let space = s.id;
            match output {
                // Completions from before the halt are true; messages are nobody's any more.
                Output::Complete(completion) => {
                    self.pending.push(HostEvent::Completed { space, completion });
                }
                Output::Lost { client, lock, tag, reason } => {
                    self.pending.push(HostEvent::Lost { space, client, lock, tag, reason });
                }
                _ => {}
            }
        }
        let (id, leaving, config) = (s.id, s.leaving, s.config.clone());
        s.life = life;
        s.since.clear();
        let claim_waits = std::mem::take(&mut s.claim_waits);
        self.pending.push(HostEvent::Halted { space: id });
        self.drop_held(at);
        self.release(claim_waits.into_values());
        let core = self.new_core(&config, life);
        if leaving {
            self.spaces[at] = None;
            self.pending.push(HostEvent::Left { space: id });
        } else if let Some(s) = self.spaces[at].as_mut() {
            s.core = core;
        }
        self.share_unsettled();
    }
}

/// Why a lockspace cannot be joined with these keys.
fn contradiction(ours: SpaceKeys, theirs: Option<SpaceKeys>) -> String {
    let theirs = theirs.map_or_else(|| "something else".into(), |t| t.to_string());
    format!(
        "this node is configured with {ours}, and the other members with {theirs}: give all the same (policies \
         directory, claim and claim-strict can be mixed)"
    )
}
