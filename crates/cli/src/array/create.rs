//! `lockify array create`: describes an array in a file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_array::{Layout, Redundancy, Scheme};
use lockify_trust::Address;
use lockify_volume::store::blocks_in;
use lockify_volume::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, LockServerEntry, SECTORS, Timing,
};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Describe a new array in a file
///
/// Give the file to each device, host and lock server of the array. Devices are numbered in the order in which they are named.
#[derive(clap::Args)]
pub struct Args {
    /// The file, which must not exist
    #[arg(value_name = "ARRAY.toml")]
    file: PathBuf,
    /// Where each device will be found, by an IP address or a name; with keys, and the cluster's node whose keys it shows
    /// (@NODE)
    #[arg(long = "device", value_name = "ADDR:PORT[@NODE]", required = true)]
    devices: Vec<Member>,
    /// Bytes of each device's file or block device (as 512MiB, 10GiB, 2TiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_size: u64,
    /// Pairs of devices with the same content, instead of RAID-5
    #[arg(long)]
    mirror: bool,
    /// Two parities in each stripe, instead of one: each group bears the loss of two devices, and has at least four
    #[arg(long, conflicts_with = "mirror")]
    raid6: bool,
    /// Over how many groups of devices stripes go in turn; each bears the loss of one device, or with --raid6 of two
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    groups: u16,
    /// Bytes of a stripe on each device, at most 16MiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_size)]
    unit: u64,
    /// The smallest piece that the devices' media write, and the size of each block's own record: 512, or 4KiB for media
    /// with logical sectors of 4 KiB, on which content then gets half of the space
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = parse_sector)]
    sector_size: u32,
    /// How hosts' operations are kept apart: timestamp-ordering, device-locking, server-locking, callback-locking or zero-overhead
    /// (not at all, for measuring)
    #[arg(long, default_value = "timestamp-ordering")]
    scheme: Scheme,
    /// Where the lock server of server-locking or callback-locking will listen. Given again: where another one stands by
    #[arg(long = "lock-server", value_name = "ADDR:PORT[@NODE]")]
    lock_servers: Vec<Member>,
    /// Where a witness will listen: it votes with the devices on who is there, and has no blocks. A mirror of two devices needs
    /// one to go on without one of them
    #[arg(long = "witness", value_name = "ADDR:PORT[@NODE]")]
    witnesses: Vec<Member>,
    /// How long a host or device may be silent before it is taken for dead
    #[arg(long, value_name = "D", default_value = "4s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Answer writes before they are durable; only a flush makes them so
    #[arg(long)]
    durable_on_flush: bool,
}

#[derive(Clone)]
pub(super) struct Member {
    address: Address,
    node: u32,
}

impl Member {
    /// Its entry in the array's file.
    pub(super) fn entry(&self, id: u16) -> DeviceEntry {
        DeviceEntry { id, address: self.address.clone(), node: self.node }
    }

    /// Its entry as a lock server.
    pub(super) fn lock_server(&self) -> LockServerEntry {
        LockServerEntry { address: self.address.clone(), node: self.node }
    }
}

impl std::str::FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Member, String> {
        let (address, node) = match text.split_once('@') {
            Some((address, node)) => (address, node.parse().map_err(|_| wrong(text))?),
            None => (text, 0),
        };
        Ok(Member { address: address.parse().map_err(|_| wrong(text))?, node })
    }
}

fn wrong(text: &str) -> String {
    format!(
        "{text:?} is not ADDR:PORT or ADDR:PORT@NODE, as 10.0.0.1:7100@3 or disk1.example:7100@3"
    )
}

/// The largest unit of a new array, bytes. Arrays of earlier releases may have larger ones.
const LARGEST_UNIT: u64 = 16 << 20;

/// Bytes, with binary units.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "K" | "k" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        _ => return Err("a size is a number with B, KiB, MiB, GiB or TiB, as 10GiB".into()),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than there is"))
}

fn parse_sector(text: &str) -> Result<u32, String> {
    let size = u32::try_from(parse_size(text)?).ok().filter(|size| SECTORS.contains(size));
    size.ok_or_else(|| "a sector has 512 bytes or 4KiB".into())
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = describe(args).map_err(|what| Failure::new(Code::Unreadable, what))?;
    file.create(&args.file).or_fail(Code::Failed)?;
    let (path, bytes) = (args.file.display(), file.layout.blocks() * u64::from(BLOCK));
    let mut text =
        format!("array {} of {bytes} bytes, in {path}; now, for each device:\n", file.id);
    for device in &file.devices {
        text += &format!(
            "  lockify array device FILE --create --array {path} --id {}   # at {}\n",
            device.id, device.address
        );
    }
    for witness in &file.witnesses {
        text += &format!(
            "  lockify array device FILE --create --array {path} --id {}   # witness, at {}\n",
            witness.id, witness.address
        );
    }
    for (id, server) in file.lock_servers().enumerate() {
        text += &format!(
            "  lockify array lock-server LOG --create --array {path} --id {id}   # at {}\n",
            server.address
        );
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(args: &Args) -> Result<ArrayFile, String> {
    match (args.scheme.has_server(), args.lock_servers.first()) {
        (true, None) => {
            return Err(format!(
                "--scheme {} needs a lock server: say where with --lock-server ADDR:PORT",
                args.scheme
            ));
        }
        (false, Some(_)) => {
            return Err(format!(
                "--scheme {} has no lock server: leave --lock-server away, or choose server-locking or callback-locking",
                args.scheme
            ));
        }
        _ => {}
    }
    let devices = u16::try_from(args.devices.len()).map_err(|_| "far too many devices")?;
    let groups = args.groups;
    if devices % groups != 0 {
        return Err(format!("{devices} devices cannot be {groups} groups of the same size"));
    }
    let redundancy = match (args.mirror, args.raid6) {
        (true, _) => Redundancy::Mirror,
        (false, true) => Redundancy::Raid6,
        (false, false) => Redundancy::Raid5,
    };
    let data = (devices / groups).saturating_sub(redundancy.parities());
    if args.mirror && data != 1 {
        return Err(format!(
            "a mirror has two devices for each group: give --groups {} for these {devices}",
            devices / 2
        ));
    }
    if args.raid6 && data < 2 {
        return Err(format!(
            "RAID-6 has at least four devices in a group, and here are {}: give more, or leave --raid6 away",
            devices / groups
        ));
    }
    if !args.mirror && data < 2 {
        return Err("RAID-5 has at least three devices in a group; two are a --mirror".into());
    }
    let unit = u32::try_from(args.unit / u64::from(BLOCK)).map_err(|_| "--unit is too large")?;
    if unit == 0 || !args.unit.is_multiple_of(u64::from(BLOCK)) {
        return Err(format!("--unit is a multiple of {BLOCK} bytes"));
    }
    if args.unit > LARGEST_UNIT {
        return Err(format!(
            "--unit is {} MiB, and may be {} MiB at most: a scrub, a repair or a rebuild reads whole stripes into memory, and \
             reads a stripe again for each gap between blocks that it writes anew",
            args.unit >> 20,
            LARGEST_UNIT >> 20
        ));
    }
    let rows = blocks_in(args.device_size, args.sector_size) / u64::from(unit);
    let stripes = rows.saturating_mul(groups.into());
    if stripes == 0 {
        return Err("--device-size is too small for a single stripe; two MiB are for the device's own records".into());
    }
    let entry = |(id, member): (u16, &Member)| member.entry(id);
    let file = ArrayFile {
        spoken: lockify_volume::SPOKEN,
        id: ArrayId::random().map_err(|e| format!("no random numbers: {e}"))?,
        scheme: args.scheme,
        durability: if args.durable_on_flush { Durability::Flush } else { Durability::Write },
        layout: Layout {
            redundancy,
            data,
            groups,
            unit,
            block_size: BLOCK,
            stripes,
            added: Default::default(),
        },
        sector: args.sector_size,
        timing: Timing { lease_ms: args.lease.as_millis() as u64, ..Timing::default() },
        devices: (0..).zip(&args.devices).map(entry).collect(),
        witnesses: (devices..).zip(&args.witnesses).map(entry).collect(),
        added: Vec::new(),
        lock_server: args.lock_servers.first().map(Member::lock_server),
        standbys: args.lock_servers.iter().skip(1).map(Member::lock_server).collect(),
    };
    file.check()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("3 GiB"), Ok(3 << 30));
        assert!(parse_size("3GB").is_err() && parse_size("x").is_err());
        assert!(parse_size("99999999999TiB").is_err());
        assert_eq!((parse_sector("512"), parse_sector("4KiB")), (Ok(512), Ok(4096)));
        assert!(parse_sector("1KiB").is_err());
    }
}
