//! The file that describes an array: TOML, the same for every device, host and lock server.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lockify_array::{DeviceId, Layout, MOST_ADDED, Redundancy, Scheme};
use lockify_trust::{Address, Versions};
use serde::{Deserialize, Serialize};

use crate::versions::SPOKEN;

/// Bytes per block: the smallest piece that is read, written, locked and checked.
pub const BLOCK: u32 = 4096;
/// Bytes of the sector behind each block, unless the array was made for media that write larger pieces only.
pub const SECTOR: u32 = 512;
/// The permitted sizes of a sector, in bytes.
pub const SECTORS: [u32; 2] = [SECTOR, 4096];
/// The version of the file's format.
const VERSION: u32 = 1;
/// Lock servers beside the first one: each grant waits for all of them.
const MOST_STANDBYS: usize = 6;
/// The longest file that is read, bytes.
const LONGEST: u64 = 4 << 20;

/// Names an array, so that its devices are not taken for those of another: 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ArrayId(pub [u8; 16]);

impl ArrayId {
    /// A new one, at random.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> std::io::Result<ArrayId> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        Ok(ArrayId(id))
    }
}

impl fmt::Display for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<ArrayId> for String {
    fn from(id: ArrayId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for ArrayId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ArrayId, &'static str> {
        text.parse()
    }
}

impl FromStr for ArrayId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ArrayId, &'static str> {
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
        let number = number.ok_or("an array's id has 32 hexadecimal digits")?;
        Ok(ArrayId(number.to_be_bytes()))
    }
}

/// When an answer to a write means that the data survive a power loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// At once.
    #[default]
    Write,
    /// When a flush that came after it was answered.
    Flush,
}

/// A device, or a witness: it votes, and has no blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceEntry {
    /// Its number: devices count from 0, witnesses go on after the last device.
    pub id: u16,
    /// Where others find it. A name is looked up at each connection.
    pub address: Address,
    /// The cluster's node whose keys it shows.
    #[serde(default)]
    pub node: u32,
}

#[cfg(test)]
impl DeviceEntry {
    /// One of this machine.
    pub(crate) fn local(id: u16) -> DeviceEntry {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000 + id));
        DeviceEntry { id, address: address.into(), node: 0 }
    }
}

/// A witness is written as a device is.
pub type WitnessEntry = DeviceEntry;

/// The lock server of schemes that need one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockServerEntry {
    /// Where others find it. A name is looked up at each connection.
    pub address: Address,
    /// The cluster's node whose keys it shows.
    #[serde(default)]
    pub node: u32,
}

/// How long things may take, milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// How long a host, or a device, may be silent before it is taken for dead.
    pub lease_ms: u64,
    /// How far clocks may be apart (d_max, docs/design/array.md 2.4).
    pub clock_ms: u64,
    /// How long devices remember timestamps (T, docs/design/array.md 2.4).
    pub forget_ms: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { lease_ms: 4000, clock_ms: 100, forget_ms: 5000 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutEntry {
    redundancy: Redundancy,
    /// Data units per stripe.
    data: u16,
    #[serde(default = "one")]
    groups: u16,
    /// Bytes per stripe unit.
    unit_bytes: u64,
    /// In all groups together.
    stripes: u64,
    #[serde(default = "sector", skip_serializing_if = "is_usual")]
    sector_bytes: u32,
}

fn one() -> u16 {
    1
}

fn sector() -> u32 {
    SECTOR
}

fn is_usual(sector: &u32) -> bool {
    *sector == SECTOR
}

/// The file as it is written; [`ArrayFile`] is the checked one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wire_version: Option<u16>,
    id: ArrayId,
    #[serde(default)]
    scheme: Scheme,
    #[serde(default)]
    durability: Durability,
    layout: LayoutEntry,
    #[serde(default)]
    timing: Timing,
    #[serde(default, rename = "device")]
    devices: Vec<DeviceEntry>,
    #[serde(default, rename = "witness", skip_serializing_if = "Vec::is_empty")]
    witnesses: Vec<WitnessEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock_server: Option<LockServerEntry>,
    #[serde(default, rename = "standby", skip_serializing_if = "Vec::is_empty")]
    standbys: Vec<LockServerEntry>,
}

impl Text {
    fn spoken(&self) -> Result<Versions, String> {
        let newest = self.wire_version.unwrap_or(SPOKEN.newest);
        if !(SPOKEN.oldest..=SPOKEN.newest).contains(&newest) {
            return Err(format!(
                "wire_version = {newest}: this release speaks {SPOKEN}; remove the line, or give one of these"
            ));
        }
        Ok(Versions { newest, ..SPOKEN })
    }
}

/// An array, as its file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayFile {
    /// The versions of arrays' messages that its processes speak, at most those of this release (`docs/compatibility.md`).
    pub spoken: Versions,
    /// Its name.
    pub id: ArrayId,
    /// How concurrent operations are kept apart.
    pub scheme: Scheme,
    /// The guarantee of an answered write.
    pub durability: Durability,
    /// Where blocks lie.
    pub layout: Layout,
    /// Bytes of the sector behind each block of a device: the smallest piece that its medium writes.
    pub sector: u32,
    /// How long things may take.
    pub timing: Timing,
    /// The devices, by id.
    pub devices: Vec<DeviceEntry>,
    /// Those who vote besides the devices; ids go on from theirs.
    pub witnesses: Vec<WitnessEntry>,
    /// Devices of groups that the array has got since it was made, or is to get, by id. They go on behind the witnesses. The array's
    /// state says which it has; a file need not have them.
    pub added: Vec<DeviceEntry>,
    /// If the scheme needs one.
    pub lock_server: Option<LockServerEntry>,
    /// More lock servers. The array's state says which one serves.
    pub standbys: Vec<LockServerEntry>,
}

/// An error in an array's file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {error}; `lockify array create` makes such a file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// It is there already.
    #[error("{} exists: move it away first if no array needs it", .0.display())]
    Exists(PathBuf),
    /// It says what makes no sense.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The key, and its permitted values.
        what: String,
    },
}

impl ArrayFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read(path: &Path) -> Result<ArrayFile, FileError> {
        let failed = |error| FileError::Read { path: path.to_owned(), error };
        let content = |what| FileError::Content { path: path.to_owned(), what };
        if std::fs::metadata(path).map_err(failed)?.len() > LONGEST {
            return Err(content("it is far too long for an array's file".into()));
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| content("it is not text".into()))?;
        text.parse().map_err(content)
    }

    /// Writes a file that must not exist yet.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn create(&self, path: &Path) -> Result<(), FileError> {
        use std::io::Write as _;
        let failed = |error| FileError::Write { path: path.to_owned(), error };
        let text = self.to_toml().map_err(|what| FileError::Content { path: path.into(), what })?;
        let mut file = match std::fs::File::create_new(path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(FileError::Exists(path.to_owned()));
            }
            made => made.map_err(failed)?,
        };
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
    }

    /// Checks the values as in a file.
    ///
    /// # Errors
    /// The key, and its permitted values.
    pub fn check(&self) -> Result<(), String> {
        self.to_toml()?.parse::<ArrayFile>().map(drop)
    }

    pub(crate) fn to_toml(&self) -> Result<String, String> {
        let layout = LayoutEntry {
            redundancy: self.layout.redundancy,
            data: self.layout.data,
            groups: self.layout.groups,
            unit_bytes: u64::from(self.layout.unit) * u64::from(self.layout.block_size),
            stripes: self.layout.stripes,
            sector_bytes: self.sector,
        };
        let text = Text {
            version: VERSION,
            wire_version: (self.spoken != SPOKEN).then_some(self.spoken.newest),
            id: self.id,
            scheme: self.scheme,
            durability: self.durability,
            layout,
            timing: self.timing,
            devices: self.devices.iter().chain(&self.added).cloned().collect(),
            witnesses: self.witnesses.clone(),
            lock_server: self.lock_server.clone(),
            standbys: self.standbys.clone(),
        };
        let body = toml::to_string(&text).map_err(|e| e.to_string())?;
        Ok(format!(
            "# An array of Lockify (docs/array.md): the same file for each of its devices, hosts and lock server.\n{body}"
        ))
    }

    /// The voters on the array's state and on its members, by id: devices, then witnesses.
    pub fn voters(&self) -> impl Iterator<Item = &DeviceEntry> {
        self.devices.iter().chain(&self.witnesses)
    }

    /// All lock servers, by id.
    pub fn lock_servers(&self) -> impl Iterator<Item = &LockServerEntry> {
        self.lock_server.iter().chain(&self.standbys)
    }

    /// The entry of a device or witness that votes.
    pub fn voter(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.voters().find(|entry| entry.id == id.0)
    }

    /// All devices and witnesses, by id.
    pub fn entries(&self) -> impl Iterator<Item = &DeviceEntry> {
        self.voters().chain(&self.added)
    }

    /// The entry of any device or witness.
    pub fn entry(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.entries().find(|entry| entry.id == id.0)
    }

    /// Returns true if this is the id of a witness.
    pub fn is_witness(&self, id: DeviceId) -> bool {
        self.witnesses.iter().any(|entry| entry.id == id.0)
    }

    /// The settings on which all participants must agree. Addresses and versions are not among them, so that they can change
    /// one after the other. Nor is the sector's size: it concerns only a device, and its superblock has it.
    pub fn digest(&self) -> u64 {
        let Self {
            spoken: _,
            id,
            scheme,
            durability,
            layout,
            sector: _,
            timing,
            devices,
            witnesses,
            added: _,
            lock_server: _,
            standbys: _,
        } = self;
        let voters = (devices.len() as u64, witnesses.len() as u64);
        let timing = (timing.lease_ms, timing.clock_ms, timing.forget_ms);
        let said = (id, scheme, durability, layout, timing, voters);
        // Only a serializer of unknown lengths could fail, and there are none.
        let bytes = postcard::to_allocvec(&said).unwrap_or_default();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

impl FromStr for ArrayFile {
    type Err = String;

    fn from_str(text: &str) -> Result<ArrayFile, String> {
        // Says line, column and key.
        let text: Text = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        if text.version != VERSION {
            return Err(format!(
                "version = {}: this release reads version {VERSION}; use the release that made it",
                text.version
            ));
        }
        let sector = text.layout.sector_bytes;
        if !SECTORS.contains(&sector) {
            return Err(format!("layout.sector_bytes = {sector}: {SECTORS:?}"));
        }
        let (spoken, layout) = (text.spoken()?, layout(&text.layout)?);
        let Text {
            id, scheme, durability, timing, devices, witnesses, lock_server, standbys, ..
        } = text;
        let mut devices = by_id(devices);
        let made_with = usize::from(layout.devices()).min(devices.len());
        let added = devices.split_off(made_with);
        let file = ArrayFile {
            spoken,
            id,
            scheme,
            durability,
            layout,
            sector,
            timing,
            devices,
            witnesses: by_id(witnesses),
            added,
            lock_server,
            standbys,
        };
        file.check_members()?;
        file.check_timing()?;
        Ok(file)
    }
}

fn by_id(mut entries: Vec<DeviceEntry>) -> Vec<DeviceEntry> {
    entries.sort_by_key(|entry| entry.id);
    entries
}

fn layout(entry: &LayoutEntry) -> Result<Layout, String> {
    let LayoutEntry { redundancy, data, groups, unit_bytes, stripes, sector_bytes: _ } = *entry;
    let blocks = unit_bytes / u64::from(BLOCK);
    let unit = u32::try_from(blocks)
        .ok()
        .filter(|&unit| unit > 0 && unit <= 16 * 1024 && unit_bytes % u64::from(BLOCK) == 0);
    let unit = unit.ok_or_else(|| {
        format!(
            "layout.unit_bytes = {unit_bytes}: a stripe unit is a multiple of {BLOCK} bytes, at most 64 MiB"
        )
    })?;
    let layout = Layout {
        redundancy,
        data,
        groups,
        unit,
        block_size: BLOCK,
        stripes,
        added: Default::default(),
    };
    layout.check().map_err(|e| format!("layout: {e}"))?;
    Ok(layout)
}

impl ArrayFile {
    fn check_members(&self) -> Result<(), String> {
        let (needed, size) = (usize::from(self.layout.devices()), self.layout.group_size());
        if self.devices.len() != needed || !self.added.len().is_multiple_of(size.into()) {
            return Err(format!(
                "there are {} [[device]] entries, and the layout has {needed} devices: {} group(s) of {size}; further groups, which \
                 the array gets by `lockify array grow --group`, have {size} each",
                self.devices.len() + self.added.len(),
                self.layout.groups,
            ));
        }
        if self.added.len() > MOST_ADDED * usize::from(size) {
            return Err(format!(
                "an array gets {MOST_ADDED} groups of devices at most after it was made"
            ));
        }
        if self.entries().count() > 255 {
            return Err("an array has at most 255 devices and witnesses".into());
        }
        for (expected, entry) in self.entries().enumerate() {
            if usize::from(entry.id) != expected {
                return Err(format!(
                    "the ids of [[device]] count from 0, those of [[witness]] go on after the last device that the array was made \
                     with, and those of further groups after the last witness: {expected} is missing, or another one is there twice"
                ));
            }
        }
        let mut taken = BTreeSet::new();
        let server = self.lock_servers().map(|server| &server.address);
        let devices = self.entries().map(|entry| &entry.address);
        for address in devices.chain(server) {
            if address.port() == 0 {
                return Err(format!("address = \"{address}\": a port has to be named"));
            }
            if address.is_unspecified() {
                return Err(format!("address = \"{address}\": nobody can connect to it"));
            }
            if !taken.insert(address) {
                return Err(format!("address = \"{address}\" is there twice"));
            }
        }
        if self.standbys.len() > MOST_STANDBYS {
            return Err(format!(
                "there are {} [[standby]] entries: {MOST_STANDBYS} at most",
                self.standbys.len()
            ));
        }
        if self.lock_server.is_none() && !self.standbys.is_empty() {
            return Err("[[standby]] is one more lock server: it needs [lock_server]".into());
        }
        match (self.scheme.has_server(), &self.lock_server) {
            (true, None) => {
                Err(format!("scheme = \"{}\" needs [lock_server] with its address", self.scheme))
            }
            (false, Some(_)) => Err(format!(
                "scheme = \"{}\" has no [lock_server]: remove it, or choose server-locking or callback-locking",
                self.scheme
            )),
            _ => Ok(()),
        }
    }

    fn check_timing(&self) -> Result<(), String> {
        let Timing { lease_ms, clock_ms, forget_ms } = self.timing;
        if !(200..=600_000).contains(&lease_ms) {
            return Err(format!("timing.lease_ms = {lease_ms}: 200 to 600000"));
        }
        if !(1..=60_000).contains(&clock_ms) {
            return Err(format!("timing.clock_ms = {clock_ms}: 1 to 60000"));
        }
        // T must exceed latency and skew (docs/design/array.md 2.4).
        if !(500..=600_000).contains(&forget_ms) || forget_ms < 4 * clock_ms {
            return Err(format!(
                "timing.forget_ms = {forget_ms}: 500 to 600000, and at least four times timing.clock_ms ({clock_ms})"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn file() -> ArrayFile {
        let entry = DeviceEntry::local;
        ArrayFile {
            spoken: SPOKEN,
            id: ArrayId([7; 16]),
            scheme: Scheme::TimestampOrdering,
            durability: Durability::Write,
            layout: Layout {
                redundancy: Redundancy::Raid5,
                data: 4,
                groups: 1,
                unit: 16,
                block_size: BLOCK,
                stripes: 100,
                added: Default::default(),
            },
            sector: SECTOR,
            timing: Timing::default(),
            devices: (0..5).map(entry).collect(),
            witnesses: vec![entry(5)],
            added: Vec::new(),
            lock_server: None,
            standbys: Vec::new(),
        }
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        file().create(&path).unwrap();
        assert_eq!(ArrayFile::read(&path).unwrap(), file());
        let coarse = ArrayFile { sector: 4096, ..file() };
        assert_eq!(coarse.to_toml().unwrap().parse(), Ok(coarse));
        assert!(matches!(file().create(&path), Err(FileError::Exists(_))));
        let missing = ArrayFile::read(&folder.path().join("b.toml")).unwrap_err().to_string();
        assert!(missing.contains("lockify array create"), "{missing}");
    }

    #[test]
    fn a_file_may_have_groups_that_came_later() {
        let more = |ids: std::ops::Range<u16>| ArrayFile {
            added: ids.map(DeviceEntry::local).collect(),
            ..file()
        };
        let grown = more(6..16);
        assert_eq!(grown.to_toml().unwrap().parse(), Ok(grown.clone()));
        // A process with the former file is of the same array.
        assert_eq!(grown.digest(), file().digest());
        let [device, added] = [4, 6].map(DeviceId);
        assert_eq!((grown.voters().count(), grown.voter(added)), (6, None));
        assert_eq!(grown.entry(added).unwrap().id, 6);
        assert!(
            !grown.is_witness(added) && !grown.is_witness(device) && grown.is_witness(DeviceId(5))
        );
        for (bad, named) in [
            (more(6..10), "have 5 each"),
            (more(7..12), "6 is missing"),
            (more(6..51), "8 groups of devices at most"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_file_may_have_lock_servers_that_stand_by() {
        let entry = |port: u16| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port)).into();
            LockServerEntry { address, node: 0 }
        };
        let one =
            ArrayFile { scheme: Scheme::ServerLocking, lock_server: Some(entry(7100)), ..file() };
        let several = ArrayFile { standbys: vec![entry(7101), entry(7102)], ..one.clone() };
        let text = several.to_toml().unwrap();
        assert!(text.contains("[lock_server]") && text.contains("[[standby]]"), "{text}");
        assert_eq!(text.parse(), Ok(several.clone()));
        assert_eq!(several.lock_servers().count(), 3);
        // They may come one process after the other.
        assert_eq!(several.digest(), one.digest());
        let wrong = |file: ArrayFile, named: &str| {
            let error = file.check().unwrap_err();
            assert!(error.contains(named), "{error}");
        };
        wrong(ArrayFile { lock_server: None, ..several.clone() }, "needs [lock_server]");
        wrong(ArrayFile { standbys: vec![entry(7100)], ..one.clone() }, "is there twice");
        wrong(ArrayFile { standbys: (7101..7110).map(entry).collect(), ..one }, "6 at most");
    }

    #[test]
    fn the_digest_is_of_what_all_have_to_agree_on() {
        let mut moved = file();
        moved.devices[1].address = "10.0.0.1:1".parse().unwrap();
        assert_eq!(moved.digest(), file().digest());
        let mut other = file();
        other.layout.unit = 8;
        assert_ne!(other.digest(), file().digest());
    }

    /// Each change, and the words that the error has to contain.
    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        let good = file().to_toml().unwrap();
        assert_eq!(good.parse(), Ok(file()));
        for (old, new, named) in [
            ("version = 1", "version = 9", "version = 9"),
            ("07070707070707070707070707070707", "0707", "32 hexadecimal"),
            ("timestamp-ordering", "time", "scheme"),
            ("timestamp-ordering", "server-locking", "[lock_server]"),
            ("unit_bytes = 65536", "unit_bytes = 1000", "layout.unit_bytes = 1000"),
            ("data = 4", "data = 3", "the layout has 4 devices"),
            ("data = 4", "data = 1", "2 to 64 data units"),
            ("stripes = 100", "stripe = 100", "stripe"),
            ("stripes = 100", "stripes = 100\nsector_bytes = 520", "layout.sector_bytes = 520"),
            ("id = 3\n", "id = 2\n", "3 is missing"),
            ("127.0.0.1:7003", "127.0.0.1:7002", "is there twice"),
            ("127.0.0.1:7003", "127.0.0.1:0", "a port"),
            ("127.0.0.1:7003", "nowhere", "address"),
            ("lease_ms = 4000", "lease_ms = 3", "timing.lease_ms = 3"),
            ("clock_ms = 100", "clock_ms = 0", "timing.clock_ms = 0"),
            ("forget_ms = 5000", "forget_ms = 100", "timing.forget_ms = 100"),
        ] {
            let bad = good.replacen(old, new, 1);
            assert_ne!(bad, good, "{old}");
            let error = bad.parse::<ArrayFile>().unwrap_err();
            assert!(error.contains(named), "{new}: {error}");
        }
    }
}
