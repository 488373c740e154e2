//! One configuration of the replicated log: commands go in, decided commands come out in one order.
//!
//! The consensus is OmniPaxos, which has no I/O and no clock and elects a leader that a majority
//! reaches even where links are broken. A log with one voter decides by itself, when its disk has it.

use lockify_core::NodeId;
use omnipaxos::messages::Message;
use omnipaxos::messages::sequence_paxos::PaxosMsg;
use omnipaxos::util::{LogEntry, LogSync};
use omnipaxos::{ClusterConfig, OmniPaxos, ServerConfig};

use super::state::{ClusterState, Command};
use super::store::{Memory, Records, Witness};

/// A message of the consensus.
pub(super) type Paxos = Message<Command>;

/// Commands of one configuration, at most, before the next one begins: so much is written each time.
pub(super) const LONG: u64 = 256;

/// A log with so many members in all its views together is long, too. The devices of an array have a quarter of a
/// mebibyte for it.
const LONG_VIEWS: usize = 1 << 14;

/// The number of commands of one configuration before the next one begins, in a cluster of so many nodes.
pub(super) fn long(nodes: usize) -> u64 {
    (LONG_VIEWS as u64 / (nodes as u64).max(1)).clamp(LONG / 4, LONG)
}

/// Heartbeats that a leader waits for a decision before it begins a new term.
const PATIENCE: u32 = 20;

/// Commands that may wait to be decided.
pub(super) const MOST_PENDING: usize = 32;

/// The log of one configuration, as one voter sees it.
pub(super) struct Agreement {
    voter: Voter,
    memory: Memory,
    /// Decided entries that were taken.
    taken: usize,
    /// Heartbeats in which this leader waited for a decision.
    idle: u32,
}

enum Voter {
    /// The only one: `durable` entries are on its disk.
    Alone { durable: usize },
    /// One of several.
    Group(Box<OmniPaxos<Command, Memory>>),
}

/// The consensus counts from one.
pub(super) fn pid(node: NodeId) -> u64 {
    u64::from(node.0) + 1
}

impl Agreement {
    /// Goes on from the records of this configuration, of which `me` is a voter.
    pub(super) fn new(state: &ClusterState, me: NodeId, records: Records) -> Agreement {
        let durable = records.len();
        let memory = Memory::new(records);
        let cluster = ClusterConfig {
            configuration_id: state.config.number,
            nodes: state.voters.keys().map(|n| pid(*n)).collect(),
            flexible_quorum: None,
        };
        let server = ServerConfig {
            pid: pid(me),
            // The host ticks when a heartbeat is due, and resends at every second one.
            election_tick_timeout: 1,
            resend_message_tick_timeout: 2,
            ..ServerConfig::default()
        };
        let voter = match cluster.build_for_server(server, memory.clone()) {
            Ok(group) => Voter::Group(Box::new(group)),
            // It refuses a single voter.
            Err(_) => Voter::Alone { durable },
        };
        Agreement { voter, memory, taken: 0, idle: 0 }
    }

    pub(super) fn records(&self) -> Records {
        self.memory.records()
    }

    /// Returns true if something must be on the disk before the next message.
    pub(super) fn take_dirty(&self) -> bool {
        self.memory.take_dirty()
    }

    /// All that has changed is on the disk.
    pub(super) fn written(&mut self, entries: usize) {
        if let Voter::Alone { durable } = &mut self.voter {
            *durable = entries;
        }
    }

    /// Proposes a command; it may be lost, as it is where too many wait to be decided: then a
    /// majority does not answer.
    pub(super) fn propose(&mut self, command: Command) {
        if self.memory.look(|r| r.log.len()) >= self.taken + MOST_PENDING {
            return;
        }
        // Behind a seal nothing is applied any more.
        if self.has_pending(|c| matches!(c, Command::Seal(_))) {
            return;
        }
        match &mut self.voter {
            Voter::Alone { .. } => {
                // Memory does not fail.
                let _ = omnipaxos::storage::Storage::append_entry(&mut self.memory, command);
            }
            Voter::Group(group) => {
                // Refused only by a log that OmniPaxos itself has stopped, which nobody does here.
                let _ = group.append(command);
            }
        }
    }

    /// Returns true if this node leads, in a term that a majority has agreed to.
    pub(super) fn leads(&self) -> bool {
        match &self.voter {
            Voter::Alone { .. } => true,
            Voter::Group(group) => group.get_current_leader() == Some((group.get_pid(), true)),
        }
    }

    /// The leader, as far as this node knows.
    pub(super) fn leader(&self) -> Option<NodeId> {
        match &self.voter {
            Voter::Alone { .. } => None,
            Voter::Group(group) => {
                let (pid, _) = group.get_current_leader()?;
                u32::try_from(pid.checked_sub(1)?).ok().map(NodeId)
            }
        }
    }

    /// A heartbeat is due.
    pub(super) fn tick(&mut self) {
        let leads = self.leads();
        let undecided = self.memory.look(|r| r.log.len() > r.decided);
        let Voter::Group(group) = &mut self.voter else { return };
        group.tick();
        // A message that was lost with a connection may be one that nobody sends again: a new term
        // brings every voter up to date.
        self.idle = if leads && undecided { self.idle + 1 } else { 0 };
        if self.idle == PATIENCE {
            self.idle = 0;
            group.try_become_leader();
        }
    }

    /// A connection to another voter was made anew: messages may have been lost.
    pub(super) fn reconnected(&mut self, node: NodeId) {
        if let Voter::Group(group) = &mut self.voter {
            group.reconnected(pid(node));
        }
    }

    /// Another voter says something. The caller has checked who says it.
    pub(super) fn handle(&mut self, message: Paxos) {
        let (decided, accepted) = self.memory.look(|r| (r.decided, r.log.len()));
        let fits = match &message {
            Message::SequencePaxos(m) => fits(&m.msg, decided, accepted, self.leads()),
            Message::BLE(_) => true,
        };
        if let Voter::Group(group) = &mut self.voter
            && fits
        {
            group.handle_incoming(message);
        }
    }

    /// Moves out the messages to send.
    pub(super) fn take_messages(&mut self) -> Vec<Paxos> {
        let mut out = Vec::new();
        if let Voter::Group(group) = &mut self.voter {
            group.take_outgoing_messages(&mut out);
        }
        out
    }

    /// Moves out the decisions since the last call; a seal is the last of all.
    pub(super) fn take_decided(&mut self) -> Vec<Command> {
        let decided = match &self.voter {
            Voter::Alone { durable } => {
                let commands = self.memory.look(|r| {
                    r.log.get(self.taken..(*durable).min(r.log.len())).unwrap_or_default().to_vec()
                });
                self.taken += commands.len();
                return commands;
            }
            Voter::Group(group) => group.read_decided_suffix(self.taken).unwrap_or_default(),
        };
        self.taken += decided.len();
        decided.into_iter().filter_map(command).collect()
    }

    /// How many decided commands were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken as u64
    }

    /// Returns true if an entry like this is accepted here, decided or not.
    pub(super) fn has_pending(&self, like: impl Fn(&Command) -> bool) -> bool {
        self.memory.look(|r| r.log.iter().skip(self.taken).any(like))
    }

    /// Notes that the leader of the term in which this voter accepted last had accepted all of it before.
    pub(super) fn note_leader(&self, from: NodeId, witness: &mut Witness) {
        let (round, accepted) =
            self.memory.look(|r| (r.accepted_round.unwrap_or_default(), r.len()));
        if round.pid == pid(from) && round >= witness.round {
            let before = if round == witness.round { witness.accepted } else { 0 };
            (witness.round, witness.accepted) = (round, accepted.max(before));
            witness.promise = witness.promise.max(round);
        }
    }

    /// This voter's record of its own disk.
    pub(super) fn witness(&self, state: &ClusterState, disk: u64) -> Witness {
        self.memory.look(|r| Witness {
            disk,
            config: state.config,
            promise: r.promise.unwrap_or_default(),
            round: r.accepted_round.unwrap_or_default(),
            accepted: r.len(),
        })
    }
}

/// Returns true if a log with so many entries, the first of them decided, can do as the message says. The consensus
/// itself believes each index that it reads. It asks again for what is not answered.
fn fits(message: &PaxosMsg<Command>, decided: usize, accepted: usize, leads: bool) -> bool {
    // No host here has the consensus compact or stop its log.
    let joins = |sync: &LogSync<Command>, from: usize| {
        sync.decided_snapshot.is_none()
            && sync.stopsign.is_none()
            && (from..=accepted).contains(&sync.sync_idx)
    };
    // A leader takes no entries from promises that come after a majority's.
    let from = if leads { 0 } else { decided };
    match message {
        PaxosMsg::Promise(p) => {
            p.decided_idx <= p.accepted_idx && p.log_sync.as_ref().is_none_or(|s| joins(s, from))
        }
        PaxosMsg::AcceptSync(a) => {
            joins(&a.log_sync, decided)
                && a.decided_idx <= a.log_sync.sync_idx + a.log_sync.suffix.len()
        }
        PaxosMsg::AcceptDecide(a) => a.decided_idx <= accepted + a.entries.len(),
        PaxosMsg::Accepted(a) => a.accepted_idx <= accepted,
        PaxosMsg::Decide(d) => d.decided_idx <= accepted,
        PaxosMsg::Compaction(_) | PaxosMsg::AcceptStopSign(_) | PaxosMsg::ForwardStopSign(_) => {
            false
        }
        PaxosMsg::PrepareReq(_)
        | PaxosMsg::Prepare(_)
        | PaxosMsg::NotAccepted(_)
        | PaxosMsg::ProposalForward(_) => true,
    }
}

fn command(entry: LogEntry<Command>) -> Option<Command> {
    match entry {
        LogEntry::Decided(command) => Some(command),
        // Never read as decided, or never made.
        _ => None,
    }
}

/// Notes a message's report of its sender's records.
pub(super) fn note(witness: &mut Witness, message: &Paxos) {
    let Message::SequencePaxos(m) = message else { return };
    match &m.msg {
        // A leader has promised its own term.
        PaxosMsg::Prepare(p) => witness.promise = witness.promise.max(p.n),
        PaxosMsg::Promise(p) => {
            witness.promise = witness.promise.max(p.n);
            if p.n_accepted >= witness.round {
                (witness.round, witness.accepted) = (p.n_accepted, p.accepted_idx);
            }
        }
        PaxosMsg::Accepted(a) => {
            witness.promise = witness.promise.max(a.n);
            witness.accepted = if a.n > witness.round {
                a.accepted_idx
            } else {
                witness.accepted.max(a.accepted_idx)
            };
            witness.round = witness.round.max(a.n);
        }
        _ => {}
    }
}
