//! The properties of a simulated array: its layout and scheme, and its machines' configuration and
//! costs.

use std::rc::Rc;

use lockify_array::{DeviceConfig, DeviceId, HostConfig, Layout, Scheme, ServerConfig};
use lockify_sim::{Delay, DiskConfig, NetworkConfig};

use crate::medium::{BadSector, Shape};
use crate::places::Places;

/// When devices handle the requests that come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turns {
    /// As they come: locks and pre-writes do not wait for the disk.
    AtOnce,
    /// When the disk has done what came before.
    InTurn,
    /// Likewise, and behind a request that waits for a lock nothing is handled, not even an unlock, until its time-out.
    Strict,
}

impl Turns {
    /// All variants.
    pub const ALL: [Turns; 3] = [Turns::AtOnce, Turns::InTurn, Turns::Strict];

    /// Its name in results and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Turns::AtOnce => "at-once",
            Turns::InTurn => "in-turn",
            Turns::Strict => "strict",
        }
    }
}

/// The choices that protocols leave open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Variants {
    /// Timestamp ordering without its optimisation: writes wait for all reads with smaller timestamps
    /// (docs/design/array.md 2.4).
    pub basic: bool,
    /// Half a stripe is written by read-modify-write, not by reconstruct-write (docs/design/array.md 1.2).
    pub delta_at_half: bool,
}

/// Changes the defaults of a machine.
pub type Tune<C> = Rc<dyn Fn(&mut C)>;

/// The properties of a simulated array.
#[derive(Clone)]
pub struct Setting {
    /// How the array is laid out.
    pub layout: Layout,
    /// The array as large as it is to become: media have room for that.
    pub room: Layout,
    /// How operations are kept apart.
    pub scheme: Scheme,
    /// Which node is what. Devices behind those of the layout only vote.
    pub places: Places,
    /// The network.
    pub network: NetworkConfig,
    /// The disks of devices, but for the size and number of sectors; bandwidth counts data only.
    pub disk: DiskConfig,
    /// Sectors that a block takes; from 2 on a crash can tear it.
    pub sectors_per_block: usize,
    /// Sectors of devices that fail.
    pub bad_sectors: Rc<[BadSector]>,
    /// A host's time for each message that it gets.
    pub handling: Delay,
    /// The lock server's time for each message.
    pub serving: Delay,
    /// When devices handle requests.
    pub turns: Turns,
    /// The lock server's time for a write of its log.
    pub log: Delay,
    /// True if devices' steps are noted.
    pub events: bool,
    /// Lines of trace to keep.
    pub trace_lines: usize,
    /// The engine stops after so many events.
    pub most_events: u64,
    /// The changes to every host's default configuration.
    pub host: Tune<HostConfig>,
    /// The changes to every device's default configuration.
    pub device: Tune<DeviceConfig>,
    /// The changes to a lock server's default configuration.
    pub server: Tune<ServerConfig>,
    /// A rule that lock servers leave out.
    #[cfg(feature = "mutations")]
    pub server_mutation: Option<lockify_array::mutation::Mutation>,
}

impl Setting {
    /// The shape of a device's medium.
    pub(crate) fn shape(&self, device: DeviceId) -> Shape {
        Shape::new(&self.room, device, self.sectors_per_block)
    }

    /// An array whose disks, network and processors take no time to speak of; for everything that is not about speed.
    pub fn new(layout: Layout, scheme: Scheme, hosts: u32) -> Setting {
        Setting {
            layout,
            room: layout,
            scheme,
            places: Places {
                devices: layout.devices(),
                voters: layout.devices(),
                servers: u16::from(scheme.has_server()),
                hosts,
            },
            network: NetworkConfig::default(),
            disk: DiskConfig::default(),
            sectors_per_block: 1,
            bad_sectors: Rc::new([]),
            handling: Delay::ZERO,
            serving: Delay::ZERO,
            turns: Turns::AtOnce,
            log: Delay::ZERO,
            events: true,
            trace_lines: 0,
            most_events: u64::MAX,
            host: Rc::new(|_| ()),
            device: Rc::new(|_| ()),
            server: Rc::new(|_| ()),
            #[cfg(feature = "mutations")]
            server_mutation: None,
        }
    }
}
