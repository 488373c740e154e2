//! One configuration of the replicated log: commands go in, decided commands come out in one order.
//!
//! The consensus is OmniPaxos, which has no I/O and no clock and elects a leader that a majority
//! reaches even where links are broken. A log with one voter decides by itself, when its disk has it.

use lockify_core::NodeId;
use omnipaxos::messages::Message;
use omnipaxos::messages::sequence_paxos::PaxosMsg;
use omnipaxos::util::LogEntry;
use omnipaxos::{ClusterConfig, OmniPaxos, ServerConfig};

use super::state::{ClusterState, Command, Seal};
use super::store::{Memory, Records, Witness};

/// A message of the consensus.
pub(super) type Paxos = Message<Command>;

/// Commands of one configuration, at most, before the next one begins: so much is written each time.
pub(super) const LONG: u64 = 256;

/// Commands that may wait to be decided.
const MOST_PENDING: usize = 32;

/// The log of one configuration, as one voter sees it.
pub(super) struct Agreement {
    voter: Voter,
    memory: Memory,
    /// Decided entries that were taken.
    taken: usize,
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
        Agreement { voter, memory, taken: 0 }
    }

    pub(super) fn records(&self) -> Records {
        self.memory.records()
    }

    /// Whether something must be on the disk before anything else is said.
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
        match &mut self.voter {
            Voter::Alone { .. } => {
                if !self.memory.look(|r| matches!(r.log.last(), Some(Command::Seal(_)))) {
                    // Memory does not fail.
                    let _ = omnipaxos::storage::Storage::append_entry(&mut self.memory, command);
                }
            }
            Voter::Group(group) => match command {
                Command::Seal(seal) => {
                    let metadata = postcard::to_allocvec(&seal).ok();
                    // Only says that this configuration goes on no more; the seal says what is next.
                    let next = ClusterConfig {
                        configuration_id: u32::MAX,
                        nodes: vec![1, 2],
                        flexible_quorum: None,
                    };
                    // Refused only if another one is on its way.
                    let _ = group.reconfigure(next, metadata);
                }
                command => {
                    let _ = group.append(command);
                }
            },
        }
    }

    /// Whether this node leads, in a term that a majority has agreed to.
    pub(super) fn leads(&self) -> bool {
        match &self.voter {
            Voter::Alone { .. } => true,
            Voter::Group(group) => group.get_current_leader() == Some((group.get_pid(), true)),
        }
    }

    /// Who leads, as far as this node knows.
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
        if let Voter::Group(group) = &mut self.voter {
            group.tick();
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
        if let Voter::Group(group) = &mut self.voter {
            // Only hosts that run the consensus's own compaction send these.
            let foreign = matches!(&message, Message::SequencePaxos(m) if matches!(m.msg, PaxosMsg::Compaction(_)));
            if !foreign {
                group.handle_incoming(message);
            }
        }
    }

    /// Moves out what is to be sent.
    pub(super) fn take_messages(&mut self) -> Vec<Paxos> {
        let mut out = Vec::new();
        if let Voter::Group(group) = &mut self.voter {
            group.take_outgoing_messages(&mut out);
        }
        out
    }

    /// Moves out what was decided since this was last called; a seal is the last of all.
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

    /// Whether an entry that is accepted here, and may be decided or not, is like this.
    pub(super) fn has_pending(&self, like: impl Fn(&Command) -> bool) -> bool {
        self.memory.look(|r| r.log.iter().skip(self.taken).any(like))
    }

    /// What this voter says that it keeps.
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

fn command(entry: LogEntry<Command>) -> Option<Command> {
    match entry {
        LogEntry::Decided(command) => Some(command),
        LogEntry::StopSign(stop, true) => {
            let seal = stop.metadata.as_deref().and_then(|m| postcard::from_bytes::<Seal>(m).ok());
            seal.map(Command::Seal)
        }
        // Never read as decided, or never made.
        _ => None,
    }
}

/// Notes what a message says that its sender keeps.
pub(super) fn note(witness: &mut Witness, message: &Paxos) {
    let Message::SequencePaxos(m) = message else { return };
    match &m.msg {
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
