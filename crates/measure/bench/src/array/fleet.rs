//! An array of its own for each measurement: files, devices, lock server.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_array::{Layout, Redundancy, Scheme};
use lockify_report::crew::{Program, Worker};
use lockify_volume::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, LockServerEntry, SECTOR, Timing,
};

use super::case::DATA;
use super::worker::{Job, Role};
use super::{BenchError, Settings};

/// Blocks per stripe unit: 64 KiB.
const UNIT: u32 = 16;

/// The array that is measured.
pub(super) fn file(scheme: Scheme, groups: u16, settings: &Settings) -> std::io::Result<ArrayFile> {
    let layout = Layout {
        redundancy: Redundancy::Raid5,
        data: DATA,
        groups,
        unit: UNIT,
        block_size: BLOCK,
        stripes: settings.stripes * u64::from(groups),
        added: Default::default(),
    };
    let mut free = free(usize::from(layout.devices()) + 1)?.into_iter();
    let devices = (0..layout.devices()).zip(free.by_ref());
    let devices =
        devices.map(|(id, address)| DeviceEntry { id, address: address.into(), node: 0 }).collect();
    let server = free.next().filter(|_| scheme.has_server());
    Ok(ArrayFile {
        spoken: lockify_volume::SPOKEN,
        id: ArrayId::random()?,
        scheme,
        durability: if settings.durable { Durability::Write } else { Durability::Flush },
        layout,
        sector: SECTOR,
        timing: Timing::default(),
        devices,
        witnesses: Vec::new(),
        added: Vec::new(),
        lock_server: server.map(|address| LockServerEntry { address: address.into(), node: 0 }),
        standbys: Vec::new(),
    })
}

/// Each stays taken until all have been found: otherwise one may be found twice.
fn free(count: usize) -> std::io::Result<Vec<SocketAddr>> {
    let taken = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<Vec<_>>>()?;
    taken.iter().map(TcpListener::local_addr).collect()
}

/// The processes of an array, until they are dropped.
pub(super) struct Fleet {
    /// Its file.
    pub array: PathBuf,
    workers: Vec<Worker>,
}

impl Fleet {
    pub fn start(
        file: &ArrayFile,
        dir: &Path,
        settings: &Settings,
        how: &Program,
    ) -> Result<Fleet, BenchError> {
        let array = dir.join("array.toml");
        file.create(&array).map_err(|e| BenchError::Array(e.to_string()))?;
        let mut workers = Vec::new();
        let mut start = |name: String, role| {
            workers.push(Worker::start(how, name, &Job { array: array.clone(), role })?);
            Ok::<(), BenchError>(())
        };
        for id in 0..file.layout.devices() {
            let path = dir.join(format!("device{id}"));
            let role = Role::Device { id, path, direct: !settings.buffered };
            start(format!("device {id}"), role)?;
        }
        if file.lock_server.is_some() {
            start("lock server".into(), Role::LockServer { log: dir.join("locks") })?;
        }
        workers.iter_mut().try_for_each(super::ready)?;
        Ok(Fleet { array, workers })
    }

    /// The processor time of all of them.
    pub fn processor_time(&self) -> Duration {
        self.workers.iter().map(Worker::processor_time).sum()
    }
}
