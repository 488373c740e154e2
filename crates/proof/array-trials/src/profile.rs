//! The costs of disks, messages and processors: Table 1 of the array paper, as docs/design/array.md 5 reads it. They were
//! fixed before any protocol was measured with them.

use lockify_sim::{Delay, DiskConfig, LinkProfile, MICROSECOND, MILLISECOND, Nanos, NetworkConfig};

use crate::workload::Alignment;

/// Bytes of a stripe unit. The paper does not say; the trial of docs/design/array.md 5.2 has 8 KiB.
pub const UNIT_BYTES: u64 = 8192;

/// Bytes of data that a unit has in the simulator, where it is one block.
pub const BLOCK_BYTES: u32 = 16;

/// Bytes of a message besides the units that it carries. Not published, and without weight beside the 1 to 2 ms.
const MESSAGE_BYTES: u64 = 128;

/// 0.06 microseconds per byte, in bytes per second.
const DISK_BANDWIDTH: u64 = 16_666_667;

/// 10 MB/s, each direction between two nodes.
const NETWORK_BANDWIDTH: u64 = 10_000_000;

/// The distribution of a disk's positioning time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seeks {
    /// Normal with a deviation of 1 ms, which is how Table 1's "variance 1 ms" is read here.
    Narrow,
    /// Exponential: much wider than the table says.
    Wide,
}

/// The costs of an array's machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Mean of the disk's positioning.
    pub positioning: Nanos,
    /// How single positionings differ from their mean.
    pub seeks: Seeks,
    /// Share of reads that the disk's cache serves: they take the transfer only. Writes always go to the medium.
    pub hits: f64,
    /// Time of a message on the way, without transfer.
    pub message: Delay,
    /// A host's time for each message that it gets.
    pub handling: Delay,
    /// The lock server's time for each message.
    pub serving: Delay,
}

impl Profile {
    /// Table 1 with another mean of the positioning, since the published results do not fit 8 ms (docs/design/array.md 5.2).
    pub fn table_1(positioning: Nanos) -> Profile {
        Profile {
            positioning,
            seeks: Seeks::Narrow,
            hits: 0.0,
            message: window(2 * MILLISECOND),
            // The table has a mean; devices are no hosts, and take no time besides their disks.
            handling: handling(750 * MICROSECOND),
            serving: handling(750 * MICROSECOND),
        }
    }

    /// Disks: one operation at a time, first come, first served.
    pub fn disk(&self) -> DiskConfig {
        let write = match self.seeks {
            Seeks::Narrow => Delay::Normal { mean: self.positioning, deviation: MILLISECOND },
            Seeks::Wide => Delay::Exponential { base: 0, mean: self.positioning },
        };
        let rare = Box::new(Delay::ZERO);
        let read = Delay::Mixed { usual: Box::new(write.clone()), rare, share: self.hits };
        DiskConfig {
            queue_depth: 1,
            read,
            write,
            // Writes have reached the medium when they end.
            flush: Delay::ZERO,
            bandwidth: Some(DISK_BANDWIDTH * u64::from(BLOCK_BYTES) / UNIT_BYTES),
            ..DiskConfig::default()
        }
    }

    /// Time of so many reads and writes of so many blocks in all, by the mean, in nanoseconds.
    pub fn disk_time(&self, reads: f64, writes: f64, blocks: f64) -> f64 {
        let positioned = reads * (1.0 - self.hits) + writes;
        let transfer = UNIT_BYTES as f64 * 1e9 / DISK_BANDWIDTH as f64;
        positioned * self.positioning as f64 + blocks * transfer
    }

    /// The network.
    pub fn network(&self) -> NetworkConfig {
        let link =
            LinkProfile { latency: self.message.clone(), bandwidth: Some(NETWORK_BANDWIDTH) };
        NetworkConfig { link, ..NetworkConfig::default() }
    }
}

/// The settings of the disks' positioning. No value gives all published figures (docs/design/array.md 5.2). Both are
/// fitted to zero-overhead alone, in the baseline's load on 20 devices. The results of the other schemes are the
/// experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Calibration {
    /// A: zero-overhead's peak is that published, 1349.5 operations per second. The slowest disk, in steps of 10 us, with which it
    /// keeps up with those 36 hosts.
    Peak,
    /// B: zero-overhead's mean latency at 600 operations per second is that published, 29.71 ms.
    Latency,
}

impl Calibration {
    /// The mean positioning time.
    pub fn positioning(self, alignment: Alignment) -> Nanos {
        match (self, alignment) {
            (Calibration::Peak, Alignment::Stripe) => 3_850 * MICROSECOND,
            (Calibration::Peak, Alignment::Free) => 3_370 * MICROSECOND,
            (Calibration::Latency, Alignment::Stripe) => 6_580 * MICROSECOND,
            (Calibration::Latency, Alignment::Free) => 5_860 * MICROSECOND,
        }
    }
}

/// Time of a processor for a message, of which Table 1 has the mean: taken for an exponential one.
pub fn handling(mean: Nanos) -> Delay {
    Delay::Exponential { base: 0, mean }
}

/// Message latencies of figure 11: uniform from 1 ms to this.
pub fn window(longest: Nanos) -> Delay {
    Delay::Uniform(MILLISECOND, longest)
}

/// Bytes of a message that carries so much of the simulator's blocks.
pub fn message_bytes(data: usize) -> usize {
    let scaled = MESSAGE_BYTES + data as u64 * UNIT_BYTES / u64::from(BLOCK_BYTES);
    usize::try_from(scaled).unwrap_or(usize::MAX)
}
