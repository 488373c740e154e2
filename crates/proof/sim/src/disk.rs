//! A disk: sectors behind a queue and a volatile write cache.

use crate::delay::chance;
use crate::time::transfer_time;
use crate::{Delay, MICROSECOND, MILLISECOND, Nanos, Random};
use rand::RngExt;
use slab::Slab;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// One of a node's disks, numbered from 0 in the order of [`Sim::add_disk`](crate::Sim::add_disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u32);

/// The properties of a disk.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskConfig {
    /// Bytes of a sector, the unit that a crash leaves either old or new.
    pub sector_size: usize,
    /// Number of sectors.
    pub sectors: u64,
    /// Operations served at the same time; the others wait in order.
    pub queue_depth: usize,
    /// Time of a read, without transfer.
    pub read: Delay,
    /// Time of a write, without transfer.
    pub write: Delay,
    /// Time of a flush.
    pub flush: Delay,
    /// Bytes per second, shared by all operations; unlimited if absent.
    pub bandwidth: Option<u64>,
}

impl Default for DiskConfig {
    /// About an NVMe drive: 4 KiB sectors, 32 at a time, tens of microseconds, 3 GB/s.
    fn default() -> Self {
        Self {
            sector_size: 4096,
            sectors: 1 << 28,
            queue_depth: 32,
            read: Delay::LogNormal { base: 60 * MICROSECOND, median: 20 * MICROSECOND, sigma: 0.5 },
            write: Delay::LogNormal { base: 10 * MICROSECOND, median: 5 * MICROSECOND, sigma: 0.7 },
            flush: Delay::Exponential { base: 200 * MICROSECOND, mean: MILLISECOND },
            bandwidth: Some(3_000_000_000),
        }
    }
}

/// In which way a disk fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// Not at all.
    #[default]
    None,
    /// Every operation fails with [`DiskError::Io`].
    Error,
    /// Writes of sectors never written before fail with [`DiskError::Full`], as on a thinly provisioned device.
    Full,
    /// Every operation takes this many times as long.
    Slow(u32),
}

/// Why a disk operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The medium reports an error; of a write, nothing was written.
    #[error("disk input/output error")]
    Io,
    /// No space for new sectors.
    #[error("disk full")]
    Full,
    /// The range ends beyond the disk.
    #[error("sectors beyond the end of the disk")]
    OutOfRange,
    /// The data is not a whole number of sectors.
    #[error("data is not a whole number of sectors")]
    Unaligned,
    /// The node has no such disk.
    #[error("no such disk")]
    NoDisk,
}

/// End of a disk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDone {
    /// The disk.
    pub disk: DiskId,
    /// The machine's own mark for the operation.
    pub tag: u64,
    /// The content that was read (empty for writes and flushes), or the reason of the failure.
    pub result: Result<Vec<u8>, DiskError>,
}

#[derive(Debug)]
pub(crate) enum DiskOp {
    Read { sector: u64, count: u64 },
    Write { sector: u64, data: Vec<u8> },
    Flush,
}

#[derive(Debug)]
pub(crate) struct DiskRequest {
    pub tag: u64,
    pub op: DiskOp,
}

type Sector = Box<[u8]>;

/// The content of a disk's medium at some time.
#[derive(Clone, Debug, Default)]
pub struct DiskCopy(HashMap<u64, Sector>);

#[derive(Debug)]
pub(crate) struct Disk {
    id: DiskId,
    config: DiskConfig,
    fault: DiskFault,
    /// The content that survives a power loss. Never iterated, so its order does not matter.
    media: HashMap<u64, Sector>,
    /// Versions of each sector since the last flush, oldest first: a power loss leaves any of them, or the medium's.
    cache: BTreeMap<u64, Vec<Sector>>,
    waiting: VecDeque<DiskRequest>,
    active: Slab<DiskRequest>,
    /// A flush is being served: nothing else starts.
    flushing: bool,
    transfer_ends: Nanos,
    /// Grows with every crash, so that operations of before do not end after it.
    pub generation: u32,
}

impl Disk {
    pub fn new(id: DiskId, config: DiskConfig) -> Self {
        Self {
            id,
            config,
            fault: DiskFault::None,
            media: HashMap::new(),
            cache: BTreeMap::new(),
            waiting: VecDeque::new(),
            active: Slab::new(),
            flushing: false,
            transfer_ends: 0,
            generation: 0,
        }
    }

    pub fn set_fault(&mut self, fault: DiskFault) -> bool {
        std::mem::replace(&mut self.fault, fault) != fault
    }

    /// The content that a power loss would leave for certain.
    pub fn copy(&self) -> DiskCopy {
        DiskCopy(self.media.clone())
    }

    /// Another medium is in this one's place.
    pub fn replace(&mut self, copy: DiskCopy) {
        self.media = copy.0;
        self.cache.clear();
    }

    pub fn submit(&mut self, request: DiskRequest) {
        self.waiting.push_back(request);
    }

    /// Starts the next operation if the queue depth allows; returns its slot and when it ends.
    pub fn start_next(&mut self, now: Nanos, random: &mut Random) -> Option<(usize, Nanos)> {
        let is_flush = matches!(self.waiting.front()?.op, DiskOp::Flush);
        let depth = if is_flush { 1 } else { self.config.queue_depth.max(1) };
        if self.flushing || self.active.len() >= depth {
            return None;
        }
        let request = self.waiting.pop_front()?;
        self.flushing = is_flush;
        let ends = self.end_of(&request.op, now, random);
        Some((self.active.insert(request), ends))
    }

    fn end_of(&mut self, op: &DiskOp, now: Nanos, random: &mut Random) -> Nanos {
        let (delay, size) = match op {
            DiskOp::Read { count, .. } => (&self.config.read, self.bytes(*count)),
            DiskOp::Write { data, .. } => (&self.config.write, data.len()),
            DiskOp::Flush => (&self.config.flush, 0),
        };
        let factor =
            if let DiskFault::Slow(factor) = self.fault { Nanos::from(factor.max(1)) } else { 1 };
        let service = delay.sample(random).saturating_mul(factor);
        let transfer = transfer_time(size, self.config.bandwidth).saturating_mul(factor);
        self.transfer_ends = self.transfer_ends.max(now).saturating_add(transfer);
        self.transfer_ends.saturating_add(service)
    }

    /// Ends an operation that `start_next` began.
    pub fn finish(&mut self, slot: usize) -> Option<DiskDone> {
        let request = self.active.try_remove(slot)?;
        let result = self.apply(request.op);
        Some(DiskDone { disk: self.id, tag: request.tag, result })
    }

    fn apply(&mut self, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        if matches!(op, DiskOp::Flush) {
            self.flushing = false;
        }
        if self.fault == DiskFault::Error {
            return Err(DiskError::Io);
        }
        match op {
            DiskOp::Read { sector, count } => self.read(sector, count),
            DiskOp::Write { sector, data } => self.write(sector, &data).map(|()| Vec::new()),
            DiskOp::Flush => {
                self.flush();
                Ok(Vec::new())
            }
        }
    }

    fn bytes(&self, sectors: u64) -> usize {
        usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(self.config.sector_size)
    }

    fn check_range(&self, sector: u64, count: u64) -> Result<(), DiskError> {
        let end = sector.checked_add(count).ok_or(DiskError::OutOfRange)?;
        if end > self.config.sectors { Err(DiskError::OutOfRange) } else { Ok(()) }
    }

    fn read(&self, sector: u64, count: u64) -> Result<Vec<u8>, DiskError> {
        self.check_range(sector, count)?;
        let mut data = Vec::new();
        for sector in sector..sector + count {
            match self.current(sector) {
                Some(bytes) => data.extend_from_slice(bytes),
                None => data.resize(data.len() + self.config.sector_size, 0),
            }
        }
        Ok(data)
    }

    fn current(&self, sector: u64) -> Option<&Sector> {
        let cached = self.cache.get(&sector).and_then(|versions| versions.last());
        cached.or_else(|| self.media.get(&sector))
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), DiskError> {
        let size = self.config.sector_size.max(1);
        if !data.len().is_multiple_of(size) {
            return Err(DiskError::Unaligned);
        }
        let count = (data.len() / size) as u64;
        self.check_range(sector, count)?;
        let needs_space = (sector..sector + count).any(|sector| self.current(sector).is_none());
        if self.fault == DiskFault::Full && needs_space {
            return Err(DiskError::Full);
        }
        for (sector, bytes) in (sector..).zip(data.chunks_exact(size)) {
            self.cache.entry(sector).or_default().push(bytes.into());
        }
        Ok(())
    }

    fn flush(&mut self) {
        for (sector, mut versions) in std::mem::take(&mut self.cache) {
            if let Some(last) = versions.pop() {
                self.media.insert(sector, last);
            }
        }
    }

    /// The node crashed: what waited is gone, and of each write that was being served any set of sectors is written.
    /// With `power_loss` the cache is lost too, except for what had reached the medium by chance.
    pub fn crash(&mut self, power_loss: bool, random: &mut Random) {
        self.generation += 1;
        self.waiting.clear();
        self.flushing = false;
        self.transfer_ends = 0;
        for request in std::mem::take(&mut self.active).into_iter().map(|(_, request)| request) {
            if let DiskOp::Write { sector, data } = request.op {
                self.tear(sector, &data, random);
            }
        }
        if power_loss {
            self.lose_cache(random);
        }
    }

    fn tear(&mut self, sector: u64, data: &[u8], random: &mut Random) {
        for (sector, bytes) in (sector..).zip(data.chunks(self.config.sector_size.max(1))) {
            if chance(random, 0.5) {
                // Errors as for a whole write: nobody is left to be told.
                let _ = self.write(sector, bytes);
            }
        }
    }

    fn lose_cache(&mut self, random: &mut Random) {
        for (sector, mut versions) in std::mem::take(&mut self.cache) {
            let survivor = random.random_range(0..=versions.len());
            if survivor > 0 {
                self.media.insert(sector, versions.swap_remove(survivor - 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn disk() -> (Disk, Random) {
        let config = DiskConfig {
            sector_size: 2,
            sectors: 100,
            queue_depth: 2,
            read: Delay::Constant(100),
            write: Delay::Constant(10),
            flush: Delay::Constant(1_000),
            bandwidth: Some(1_000_000_000),
        };
        (Disk::new(DiskId(0), config), Random::seed_from_u64(3))
    }

    fn write(sector: u64, data: &[u8]) -> DiskRequest {
        DiskRequest { tag: sector, op: DiskOp::Write { sector, data: data.to_vec() } }
    }

    fn run(disk: &mut Disk, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        disk.submit(DiskRequest { tag: 0, op });
        let (slot, _) = disk.start_next(0, &mut Random::seed_from_u64(0)).expect("idle disk");
        disk.finish(slot).expect("active").result
    }

    #[test]
    fn queue_depth_and_bandwidth_decide_when_operations_end() {
        let (mut disk, mut random) = disk();
        for sector in 0..3 {
            disk.submit(write(sector, &[1, 1]));
        }
        // Two bytes take 2 ns of the shared transfer, the write itself 10 ns.
        let (first, end) = disk.start_next(0, &mut random).expect("free");
        assert_eq!(end, 12);
        assert_eq!(disk.start_next(0, &mut random).map(|(_, end)| end), Some(14));
        assert!(disk.start_next(0, &mut random).is_none(), "depth is 2");
        disk.finish(first).expect("active");
        assert_eq!(disk.start_next(12, &mut random).map(|(_, end)| end), Some(24));
    }

    #[test]
    fn flush_is_a_barrier() {
        let (mut disk, mut random) = disk();
        disk.submit(write(0, &[1, 1]));
        disk.submit(DiskRequest { tag: 9, op: DiskOp::Flush });
        disk.submit(write(1, &[2, 2]));
        let (first, _) = disk.start_next(0, &mut random).expect("free");
        assert!(disk.start_next(0, &mut random).is_none(), "the flush waits for the write");
        disk.finish(first).expect("active");
        let (flush, _) = disk.start_next(20, &mut random).expect("nothing before it");
        assert!(disk.start_next(20, &mut random).is_none(), "the second write waits for the flush");
        disk.finish(flush).expect("active");
        assert!(disk.start_next(2_000, &mut random).is_some());
    }

    #[test]
    fn power_loss_keeps_flushed_data_and_any_version_of_the_rest() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (mut disk, _) = disk();
            run(&mut disk, DiskOp::Write { sector: 0, data: vec![1, 1, 1, 1] }).expect("written");
            run(&mut disk, DiskOp::Flush).expect("flushed");
            run(&mut disk, DiskOp::Write { sector: 1, data: vec![2, 2, 2, 2] }).expect("written");
            run(&mut disk, DiskOp::Write { sector: 1, data: vec![3, 3] }).expect("written");
            disk.crash(true, &mut Random::seed_from_u64(seed));
            let data = run(&mut disk, DiskOp::Read { sector: 0, count: 3 }).expect("read");
            assert_eq!(data[..2], [1, 1], "flushed, not overwritten");
            seen.insert((data[2], data[4]));
        }
        let possible = [(1, 0), (1, 2), (2, 0), (2, 2), (3, 0), (3, 2)];
        assert!(seen.iter().eq(possible.iter()), "every sector alone keeps any version: {seen:?}");
    }

    #[test]
    fn process_crash_keeps_completed_writes_and_tears_running_ones() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let (mut disk, mut random) = disk();
            run(&mut disk, DiskOp::Write { sector: 0, data: vec![1, 1] }).expect("written");
            disk.submit(write(1, &[2, 2, 3, 3]));
            disk.start_next(0, &mut random).expect("free");
            disk.submit(write(5, &[9, 9]));
            disk.crash(false, &mut Random::seed_from_u64(seed));
            let data = run(&mut disk, DiskOp::Read { sector: 0, count: 6 }).expect("read");
            assert_eq!(data[..2], [1, 1]);
            assert_eq!(data[10..], [0, 0], "what waited in the queue is gone");
            outcomes.insert((data[2], data[4]));
        }
        assert_eq!(outcomes.len(), 4, "none, either, both: {outcomes:?}");
    }

    #[test]
    fn faults_and_bad_requests_are_errors() {
        let (mut disk, _) = disk();
        run(&mut disk, DiskOp::Write { sector: 0, data: vec![1, 1] }).expect("written");
        disk.set_fault(DiskFault::Full);
        run(&mut disk, DiskOp::Write { sector: 0, data: vec![2, 2] })
            .expect("overwriting needs no space");
        assert_eq!(
            run(&mut disk, DiskOp::Write { sector: 1, data: vec![2, 2] }),
            Err(DiskError::Full)
        );
        disk.set_fault(DiskFault::Error);
        assert_eq!(run(&mut disk, DiskOp::Read { sector: 0, count: 1 }), Err(DiskError::Io));
        assert_eq!(run(&mut disk, DiskOp::Flush), Err(DiskError::Io));
        disk.set_fault(DiskFault::None);
        assert_eq!(
            run(&mut disk, DiskOp::Read { sector: 0, count: 1 }),
            Ok(vec![2, 2]),
            "the cache survived"
        );
        assert_eq!(
            run(&mut disk, DiskOp::Read { sector: 99, count: 2 }),
            Err(DiskError::OutOfRange)
        );
        assert_eq!(
            run(&mut disk, DiskOp::Read { sector: u64::MAX, count: 1 }),
            Err(DiskError::OutOfRange)
        );
        assert_eq!(
            run(&mut disk, DiskOp::Write { sector: 0, data: vec![1] }),
            Err(DiskError::Unaligned)
        );
    }
}
