//! The messages by which nodes agree on the log, on lives and on views.

use std::collections::BTreeMap;

use lockify_core::{NodeId, Time};
use serde::{Deserialize, Serialize};

use super::super::SpaceJoin;
use super::state::{ClusterState, Command, ConfigId, Keys, NodeEntry, Position};
use super::store::Witness;

/// A message of the membership service with a replicated log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogWord {
    /// "I am here."
    Beat {
        /// The sender's clock.
        stamp: Time,
        /// How much of the log it has applied.
        position: Position,
    },
    /// The answer to a beat, while the answerer counts the sender as a member: prolongs its lease.
    Echo {
        /// The beat's stamp.
        stamp: Time,
    },
    /// The first word on each connection, and when the sender's disk becomes another one.
    Hello(Box<Hello>),
    /// A node's report about itself. A node that hears a new one passes it on.
    Report(Box<Report>),
    /// No listed node has a state: the cluster begins with this one.
    Begin(Box<ClusterState>),
    /// The state that the receiver has missed: the state at `index` commands of its configuration.
    Truth {
        /// The state.
        state: Box<ClusterState>,
        /// How many commands of the configuration it includes.
        index: u64,
    },
    /// A message of the consensus, in this configuration.
    Paxos {
        /// The configuration.
        config: ConfigId,
        /// The message, encoded.
        bytes: Vec<u8>,
    },
    /// A node that does not vote asks a voter to propose this.
    Propose(Box<Command>),
}

/// A node's identity in the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster's random number; 0: the sender's disk has no state.
    pub(super) cluster: u64,
    /// The report of the sender's disk.
    pub(super) witness: Witness,
    /// The sender's memory of the receiver's disk.
    pub(super) recalls: Option<Witness>,
    /// How the sender would begin the cluster.
    pub(super) first: First,
}

/// The first configuration, as a node's configuration file has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct First {
    pub(super) nodes: BTreeMap<NodeId, NodeEntry>,
    pub(super) keys: Keys,
}

/// A node's report about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The node that it describes.
    pub(super) node: NodeId,
    /// The random number of its process, or of what follows a halt of it.
    pub(super) visit: u64,
    /// Counts the reports of the visit.
    pub(super) number: u64,
    /// Its life, once it has one.
    pub(super) life: Option<u64>,
    /// It waits for a life.
    pub(super) asks: bool,
    /// Its share of directories.
    pub(super) weight: u32,
    /// The lockspaces that it has joined.
    pub(super) spaces: Vec<SpaceJoin>,
    /// Whom it reaches: each node's life, or its visit before it has one.
    pub(super) reach: BTreeMap<NodeId, u64>,
    /// Lives below these are over: their process said goodbye, or is known to be gone.
    pub(super) proofs: BTreeMap<NodeId, u64>,
    /// The configuration that it is in.
    pub(super) config: ConfigId,
    /// The version of the keys that it goes by.
    pub(super) keys: u64,
}

impl Report {
    /// The identity of connections to it.
    pub(super) fn id(&self) -> u64 {
        self.life.unwrap_or(self.visit)
    }
}
