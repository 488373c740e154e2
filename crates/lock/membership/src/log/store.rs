//! A node's state on its disk, as one image with a checksum.
//!
//! The image is small (the log begins anew with each configuration), so it is written whole: the
//! host writes it beside the old one, syncs it, and renames it. Between two images nothing of a
//! newer one has been said to anybody (see [`super::LogMembership`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockify_core::NodeId;
use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::storage::{Entry, NoSnapshot, StopSign, Storage, StorageOp, StorageResult};
use serde::{Deserialize, Serialize};

use super::state::{ClusterState, Command, ConfigId};

/// How every image begins.
pub(crate) const MAGIC: &[u8; 8] = b"LOCKLOG\x01";

impl Entry for Command {
    type Snapshot = NoSnapshot;
}

/// The durable records of the consensus.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Records {
    pub(super) promise: Option<Ballot>,
    pub(super) accepted_round: Option<Ballot>,
    pub(super) decided: usize,
    pub(super) log: Vec<Command>,
    pub(super) stopsign: Option<StopSign>,
}

impl Records {
    /// Entries, a stop sign included.
    pub(super) fn len(&self) -> usize {
        self.log.len() + usize::from(self.stopsign.is_some())
    }
}

/// Another voter's report of its durable records, and of the disk that has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Witness {
    pub(super) disk: u64,
    pub(super) config: ConfigId,
    pub(super) promise: Ballot,
    pub(super) round: Ballot,
    pub(super) accepted: usize,
}

impl Witness {
    /// Returns true if a disk with the report `self` has forgotten something that it once reported.
    pub(super) fn forgot(&self, once: &Witness) -> bool {
        if self.disk != once.disk || self.config > once.config {
            return false;
        }
        let less = |now: &Ballot, then: &Ballot| now < then;
        self.config < once.config
            || less(&self.promise, &once.promise)
            || less(&self.round, &once.round)
            || (self.round == once.round && self.accepted < once.accepted)
    }
}

/// All that a node keeps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    /// The cluster's name.
    pub(super) cluster: String,
    /// The node.
    pub(super) node: NodeId,
    /// The disk's random number.
    pub(super) disk: u64,
    /// The state at the beginning of the configuration; `None`: the cluster has not begun.
    pub(super) base: Option<ClusterState>,
    /// On a node that does not vote: commands of the configuration that `base` includes.
    pub(super) index: u64,
    pub(super) records: Records,
    pub(super) witnesses: BTreeMap<NodeId, Witness>,
}

/// Why an image cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// The bytes differ from the written ones.
    #[error(
        "the state is damaged ({0}): move it away, and this node comes back as one that has lost \
         its disk, as long as a majority of the voters has theirs"
    )]
    Damaged(&'static str),
    /// It is another node's or another cluster's.
    #[error(
        "the state is that of node {node} of cluster {cluster:?}, where node {me} of cluster \
         {ours:?} was expected: give every node a state_dir of its own"
    )]
    Foreign {
        /// The node of the disk.
        node: NodeId,
        /// Of which cluster.
        cluster: String,
        /// This node.
        me: NodeId,
        /// Its cluster.
        ours: String,
    },
    /// It is that of another kind of membership.
    #[error(
        "the state is that of a node with membership = {found:?}, where {expected:?} was expected: give every \
         node a new state_dir, start one of them, and run `lockify cluster recover` on it, so that fencing \
         tokens go on above the old ones"
    )]
    Kind {
        /// Which it is.
        found: &'static str,
        /// Which this node has.
        expected: &'static str,
    },
}

/// An image as bytes: magic, checksum, contents.
pub(crate) fn seal(magic: &[u8; 8], contents: &impl Serialize) -> Vec<u8> {
    // Only a serializer of unknown lengths could fail, and these types have none.
    let body = postcard::to_allocvec(contents).unwrap_or_default();
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The contents of an image.
pub(crate) fn open<'a, T: Deserialize<'a>>(
    magic: &[u8; 8],
    bytes: &'a [u8],
) -> Result<T, ImageError> {
    let rest = bytes.strip_prefix(magic.as_slice());
    let rest = rest.ok_or(ImageError::Damaged("it does not begin as a state of this release"))?;
    let (sum, body) = rest.split_first_chunk().ok_or(ImageError::Damaged("it is cut short"))?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(ImageError::Damaged("its checksum is wrong"));
    }
    match postcard::take_from_bytes(body) {
        Ok((contents, [])) => Ok(contents),
        _ => Err(ImageError::Damaged("its contents cannot be read")),
    }
}

impl Image {
    /// The image as bytes: magic, checksum, contents.
    pub(super) fn encode(&self) -> Vec<u8> {
        seal(MAGIC, self)
    }

    /// Reads an image.
    pub(super) fn decode(bytes: &[u8]) -> Result<Image, ImageError> {
        if bytes.starts_with(crate::corosync::MAGIC) {
            return Err(ImageError::Kind { found: "corosync", expected: "static" });
        }
        open(MAGIC, bytes)
    }
}

/// The highest number of a view that an image knows of, decided or not.
///
/// # Errors
/// The image is damaged.
pub fn highest_view(image: &[u8]) -> Result<u64, ImageError> {
    if image.starts_with(crate::corosync::MAGIC) {
        return crate::corosync::highest_view(image);
    }
    let image = Image::decode(image)?;
    let proposed = image.records.log.iter().filter_map(|command| match command {
        Command::View { seq, .. } => Some(*seq),
        _ => None,
    });
    let held = image.base.map_or(0, |state| state.view.seq);
    Ok(proposed.max().unwrap_or(0).max(held))
}

/// The records, shared between the consensus, which changes them, and the log, which has them written.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    shared: Arc<Mutex<(Records, bool)>>,
}

impl Memory {
    pub(super) fn new(records: Records) -> Memory {
        Memory { shared: Arc::new(Mutex::new((records, false))) }
    }

    fn lock(&self) -> MutexGuard<'_, (Records, bool)> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn records(&self) -> Records {
        self.lock().0.clone()
    }

    /// Looks at the records without a copy.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Records) -> R) -> R {
        look(&self.lock().0)
    }

    /// Returns true if durable state has changed since the last call.
    pub(super) fn take_dirty(&self) -> bool {
        std::mem::take(&mut self.lock().1)
    }

    fn change(&self, change: impl FnOnce(&mut Records)) -> StorageResult<()> {
        let mut shared = self.lock();
        change(&mut shared.0);
        shared.1 = true;
        Ok(())
    }
}

/// Nothing here fails: what cannot be written is the host's to tell, and nothing is said until it is.
impl Storage<Command> for Memory {
    fn write_atomically(&mut self, ops: Vec<StorageOp<Command>>) -> StorageResult<()> {
        for op in ops {
            match op {
                StorageOp::AppendEntry(e) => self.append_entry(e)?,
                StorageOp::AppendEntries(e) => self.append_entries(e)?,
                StorageOp::AppendOnPrefix(from, e) => self.append_on_prefix(from, e)?,
                StorageOp::SetPromise(b) => self.set_promise(b)?,
                StorageOp::SetDecidedIndex(i) => self.set_decided_idx(i)?,
                StorageOp::SetAcceptedRound(b) => self.set_accepted_round(b)?,
                StorageOp::SetStopsign(s) => self.set_stopsign(s)?,
                // The log begins anew with each configuration instead.
                StorageOp::SetCompactedIdx(_) | StorageOp::Trim(_) | StorageOp::SetSnapshot(_) => {}
            }
        }
        Ok(())
    }

    fn append_entry(&mut self, entry: Command) -> StorageResult<()> {
        self.change(|r| r.log.push(entry))
    }

    fn append_entries(&mut self, entries: Vec<Command>) -> StorageResult<()> {
        if entries.is_empty() {
            return Ok(());
        }
        self.change(|r| r.log.extend(entries))
    }

    fn append_on_prefix(&mut self, from: usize, entries: Vec<Command>) -> StorageResult<()> {
        self.change(|r| {
            r.log.truncate(from);
            r.log.extend(entries);
        })
    }

    fn set_promise(&mut self, promise: Ballot) -> StorageResult<()> {
        if self.look(|r| r.promise == Some(promise)) {
            return Ok(());
        }
        self.change(|r| r.promise = Some(promise))
    }

    fn set_decided_idx(&mut self, decided: usize) -> StorageResult<()> {
        // A majority has it on its disks: it need not be on this one at once.
        self.lock().0.decided = decided;
        Ok(())
    }

    fn get_decided_idx(&self) -> StorageResult<usize> {
        Ok(self.look(|r| r.decided))
    }

    fn set_accepted_round(&mut self, round: Ballot) -> StorageResult<()> {
        if self.look(|r| r.accepted_round == Some(round)) {
            return Ok(());
        }
        self.change(|r| r.accepted_round = Some(round))
    }

    fn get_accepted_round(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.look(|r| r.accepted_round))
    }

    fn get_entries(&self, from: usize, to: usize) -> StorageResult<Vec<Command>> {
        Ok(self.look(|r| r.log.get(from..to.min(r.log.len())).unwrap_or_default().to_vec()))
    }

    fn get_log_len(&self) -> StorageResult<usize> {
        Ok(self.look(|r| r.log.len()))
    }

    fn get_suffix(&self, from: usize) -> StorageResult<Vec<Command>> {
        Ok(self.look(|r| r.log.get(from..).unwrap_or_default().to_vec()))
    }

    fn get_promise(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.look(|r| r.promise))
    }

    fn set_stopsign(&mut self, stopsign: Option<StopSign>) -> StorageResult<()> {
        if self.look(|r| r.stopsign == stopsign) {
            return Ok(());
        }
        self.change(|r| r.stopsign = stopsign)
    }

    fn get_stopsign(&self) -> StorageResult<Option<StopSign>> {
        Ok(self.look(|r| r.stopsign.clone()))
    }

    fn trim(&mut self, _: usize) -> StorageResult<()> {
        Ok(())
    }

    fn set_compacted_idx(&mut self, _: usize) -> StorageResult<()> {
        Ok(())
    }

    fn get_compacted_idx(&self) -> StorageResult<usize> {
        Ok(0)
    }

    fn set_snapshot(&mut self, _: Option<NoSnapshot>) -> StorageResult<()> {
        Ok(())
    }

    fn get_snapshot(&self) -> StorageResult<Option<NoSnapshot>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            cluster: "c".into(),
            node: NodeId(3),
            disk: 7,
            base: None,
            index: 0,
            records: Records {
                log: vec![Command::Live { node: NodeId(3), visit: 9 }],
                ..Records::default()
            },
            witnesses: BTreeMap::new(),
        }
    }

    #[test]
    fn an_image_comes_back_as_it_was_written_and_damage_is_seen() {
        let bytes = image().encode();
        assert_eq!(Image::decode(&bytes).unwrap(), image());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(matches!(Image::decode(&damaged), Err(ImageError::Damaged(_))), "byte {at}");
            assert!(Image::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    /// The largest array has so many devices and witnesses, each of which keeps at most a quarter of a mebibyte.
    #[test]
    fn an_image_of_an_array_with_all_devices_that_there_may_be_is_small_enough() {
        use super::super::agree::{MOST_PENDING, long};
        use super::super::state::{Exclusion, Keys, Life, NodeEntry, Why};
        use crate::{FenceKind, NodeView};
        use lockify_core::Member;

        let ids = || (0..255).map(NodeId);
        // Lives and views of years.
        let members: Vec<Member> =
            ids().map(|node| Member { node, incarnation: 1 << 27, weight: 1 }).collect();
        let keys = Keys { lease: 1 << 40, fence: FenceKind::Lease, shards: 1 };
        let entry = |n| (n, NodeEntry { address: "device 255".into(), voter: false });
        let voters = ids().take(7).map(|n| (n, u64::MAX)).collect();
        let mut base = ClusterState::first(u64::MAX, ids().map(entry).collect(), voters, keys);
        base.lives = ids().map(|n| (n, Life { number: 1 << 27, visit: u64::MAX })).collect();
        base.excluded =
            ids().map(|n| (n, Exclusion { life: 1 << 27, why: Why::Link(NodeId(9)) })).collect();
        base.over = ids().map(|n| (n, 1 << 27)).collect();
        base.view = NodeView { members: members.clone(), ..base.view };
        // Every command the longest one that there is, and as many proposed ones as there may be.
        let view = Command::View { base: u64::MAX, seq: u64::MAX, members, spaces: Vec::new() };
        let log = vec![view; long(255) as usize + MOST_PENDING];
        let witness = Witness { disk: u64::MAX, accepted: 1 << 20, ..Witness::default() };
        let image = Image {
            cluster: "f".repeat(32),
            base: Some(base),
            records: Records { log, ..Records::default() },
            witnesses: ids().map(|n| (n, witness)).collect(),
            ..image()
        };
        let bytes = image.encode();
        assert!(bytes.len() < 256 << 10, "{} bytes", bytes.len());
        assert_eq!((long(7), long(255), long(1024)), (256, 64, 64));
    }

    #[test]
    fn a_disk_that_says_less_than_it_once_said_has_forgotten() {
        let once = Witness { disk: 1, accepted: 4, ..Witness::default() };
        assert!(Witness { accepted: 3, ..once }.forgot(&once));
        assert!(!Witness { accepted: 4, ..once }.forgot(&once));
        assert!(!Witness { disk: 2, accepted: 0, ..once }.forgot(&once));
        let round = Ballot { n: 2, ..Ballot::default() };
        assert!(!Witness { round, promise: round, accepted: 1, ..once }.forgot(&once));
    }
}
