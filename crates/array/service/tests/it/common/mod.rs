//! An array's file, a folder for its devices' files, and who serves and opens it, all in this process.

#[path = "../../../../../lock/daemon/tests/it/common/ports.rs"]
mod ports;

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_array::{DeviceId, Layout, Redundancy, Scheme, ServerId, Usage};
use lockify_trust::Identity;
use lockify_volume::device::{Server, Serving};
use lockify_volume::host::{Array, Joining, this_node};
use lockify_volume::store::Access;
use lockify_volume::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, LockServerEntry, SECTOR, Timing,
    lock_server,
};

use ports::free_address;

/// Longest time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn log(what: &str) {
    println!("{what}");
}

pub fn identity() -> Identity {
    Identity::loopback("test", 0)
}

pub struct Site {
    pub folder: tempfile::TempDir,
    pub file: ArrayFile,
}

impl Site {
    /// One group of `data + 1` devices on free ports, none of which runs yet; units of four blocks.
    pub fn new(
        scheme: Scheme,
        data: u16,
        stripes: u64,
        durability: Durability,
        timing: Timing,
    ) -> Site {
        let redundancy = if data == 1 { Redundancy::Mirror } else { Redundancy::Raid5 };
        let layout = Layout {
            redundancy,
            data,
            groups: 1,
            unit: 4,
            block_size: BLOCK,
            stripes,
            added: Default::default(),
        };
        let server = || LockServerEntry { address: free_address().into(), node: 0 };
        let entry = |id| DeviceEntry { id, address: free_address().into(), node: 0 };
        let file = ArrayFile {
            spoken: lockify_volume::SPOKEN,
            id: ArrayId::random().unwrap(),
            scheme,
            durability,
            layout,
            sector: SECTOR,
            timing,
            devices: (0..=data).map(entry).collect(),
            witnesses: Vec::new(),
            lock_server: scheme.has_server().then(server),
            standbys: Vec::new(),
            added: Vec::new(),
        };
        file.check().unwrap();
        // On a disk: files in memory may refuse direct I/O.
        let here = std::env::current_exe().unwrap();
        Site { folder: tempfile::tempdir_in(here.parent().unwrap()).unwrap(), file }
    }

    pub fn path(&self, id: u16) -> PathBuf {
        self.folder.path().join(format!("device{id}"))
    }

    /// A device that is ready to run.
    pub fn device(&self, id: u16, create: bool) -> Server {
        let serving = Serving {
            device: DeviceId(id),
            path: self.path(id),
            create,
            sparse: true,
            access: Access::Direct,
            listen: None,
            identity: identity(),
            log,
        };
        Server::start(&self.file, &serving).unwrap()
    }

    /// The file has another group of so many devices from now on.
    pub fn add_group(&mut self, first: u16, size: u16) {
        let entry = |id| DeviceEntry { id, address: free_address().into(), node: 0 };
        self.file.added.extend((first..first + size).map(entry));
        self.file.check().unwrap();
    }

    /// One more lock server, which stands by at first.
    pub fn add_standby(&mut self) {
        let address = free_address().into();
        self.file.standbys.push(LockServerEntry { address, node: 0 });
        self.file.check().unwrap();
    }

    /// A lock server, ready to run.
    pub fn lock_server(&self, id: u16, create: bool) -> lock_server::Server {
        let log_file = self.folder.path().join(format!("locks{id}"));
        let serving = lock_server::Serving {
            id: ServerId(id),
            log_file,
            create,
            accept_loss: false,
            listen: None,
            identity: identity(),
            log,
        };
        lock_server::Server::start(&self.file, &serving).unwrap()
    }

    pub fn open(&self) -> Array {
        Array::open(&self.file, &self.joining(None)).unwrap()
    }

    pub fn joining(&self, memory: Option<&Path>) -> Joining {
        let memory = memory.map(Path::to_owned);
        Joining {
            memory,
            node: this_node(),
            usage: Usage::Shared,
            identity: identity(),
            patience: PATIENCE,
            log,
        }
    }
}
