//! A request as the kernel has it (`include/uapi/linux/ublk_cmd.h`).

use libublk::sys::{self, ublksrv_io_desc};

use super::{MAX_BYTES, MAX_ZEROES};
use crate::door::{Command, Errno, Export, FUA, Request};

const SECTOR: u64 = 512;

/// Decodes a request and checks it against the export.
///
/// # Errors
/// What the kernel gets as the answer.
pub(super) fn decode(
    tag: u16,
    descriptor: &ublksrv_io_desc,
    export: &Export,
) -> Result<Request, Errno> {
    let command = match descriptor.op_flags & 0xff {
        sys::UBLK_IO_OP_READ => Command::Read,
        sys::UBLK_IO_OP_WRITE => Command::Write,
        sys::UBLK_IO_OP_FLUSH => Command::Flush,
        sys::UBLK_IO_OP_WRITE_ZEROES => Command::WriteZeroes,
        // Discards among them: the array keeps its space.
        _ => return Err(Errno::NotSupported),
    };
    let flags = if descriptor.op_flags & sys::UBLK_IO_F_FUA == 0 { 0 } else { FUA };
    let cookie = tag.into();
    if command == Command::Flush {
        return Ok(Request { flags, command, cookie, offset: 0, length: 0 });
    }
    let writes = command.writes();
    if writes && export.read_only {
        return Err(Errno::NotPermitted);
    }
    let most = if command == Command::WriteZeroes { MAX_ZEROES } else { MAX_BYTES };
    let length = u64::from(descriptor.nr_sectors) * SECTOR;
    let length = u32::try_from(length).ok().filter(|length| (1..=most).contains(length));
    let length = length.ok_or(Errno::Invalid)?;
    let offset = descriptor.start_sector.checked_mul(SECTOR);
    let end = offset.and_then(|offset| offset.checked_add(length.into()));
    match (offset, end) {
        (Some(offset), Some(end)) if end <= export.size => {
            Ok(Request { flags, command, cookie, offset, length })
        }
        _ => Err(if writes { Errno::NoSpace } else { Errno::Invalid }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::door::testing::export;

    const MIB: u64 = 1 << 20;

    fn descriptor(op_flags: u32, start_sector: u64, nr_sectors: u32) -> ublksrv_io_desc {
        ublksrv_io_desc { op_flags, nr_sectors, start_sector, addr: 0 }
    }

    #[test]
    fn requests_are_decoded() {
        let export = export(64 * MIB);
        let request = |flags, command, offset, length| {
            Ok(Request { flags, command, cookie: 5, offset, length })
        };
        let decode = |op, start, sectors| decode(5, &descriptor(op, start, sectors), &export);
        assert_eq!(decode(sys::UBLK_IO_OP_READ, 8, 16), request(0, Command::Read, 4096, 8192));
        // With flags that say nothing to an array.
        let hints = sys::UBLK_IO_F_META | sys::UBLK_IO_F_NOUNMAP;
        let write = sys::UBLK_IO_OP_WRITE | hints;
        assert_eq!(decode(write, 0, 8), request(0, Command::Write, 0, 4096));
        let durable = write | sys::UBLK_IO_F_FUA;
        assert_eq!(decode(durable, 0, 8), request(FUA, Command::Write, 0, 4096));
        // Where a flush is has no meaning.
        let flush = request(0, Command::Flush, 0, 0);
        assert_eq!(decode(sys::UBLK_IO_OP_FLUSH, u64::MAX, u32::MAX), flush);
        let zeroes = sys::UBLK_IO_OP_WRITE_ZEROES;
        assert_eq!(decode(zeroes, 8, 32768), request(0, Command::WriteZeroes, 4096, 16 << 20));
    }

    #[test]
    fn requests_that_cannot_be_done_are_refused() {
        let export = export(64 * MIB);
        let decode = |op, start, sectors| decode(0, &descriptor(op, start, sectors), &export);
        let (read, write) = (sys::UBLK_IO_OP_READ, sys::UBLK_IO_OP_WRITE);
        for other in [sys::UBLK_IO_OP_DISCARD, sys::UBLK_IO_OP_WRITE_SAME, 7, 13, 255] {
            assert_eq!(decode(other, 0, 8), Err(Errno::NotSupported), "{other}");
        }
        let last = 64 * MIB / 512 - 8;
        assert!(decode(read, last, 8).is_ok());
        assert_eq!(decode(read, last, 9), Err(Errno::Invalid));
        assert_eq!(decode(write, last, 9), Err(Errno::NoSpace));
        assert_eq!(decode(write, u64::MAX, 8), Err(Errno::NoSpace));
        assert_eq!(decode(read, u64::MAX / 512, 8), Err(Errno::Invalid));
        for none in [0, MAX_BYTES / 512 + 1, u32::MAX] {
            assert_eq!(decode(read, 0, none), Err(Errno::Invalid), "{none}");
        }
        assert_eq!(decode(sys::UBLK_IO_OP_WRITE_ZEROES, 0, 32769), Err(Errno::Invalid));
        let read_only = Export { read_only: true, ..export.clone() };
        let refused = super::decode(0, &descriptor(write, 0, 8), &read_only);
        assert_eq!(refused, Err(Errno::NotPermitted));
        assert!(super::decode(0, &descriptor(read, 0, 8), &read_only).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_decoded_is_within_the_export(
            op in any::<u32>(), start in any::<u64>(), small in 0_u64..200_000, sectors in any::<u32>(), few in 0_u32..70_000,
        ) {
            let export = export(64 * MIB);
            for (start, sectors) in [(start, sectors), (small, few), (small, sectors)] {
                if let Ok(request) = decode(9, &descriptor(op, start, sectors), &export) {
                    prop_assert!(request.offset + u64::from(request.length) <= export.size);
                    prop_assert!(request.length <= MAX_ZEROES);
                    let bounded = request.length <= MAX_BYTES;
                    prop_assert!(bounded || request.command == Command::WriteZeroes);
                    prop_assert_eq!(request.cookie, 9);
                }
            }
        }
    }
}
