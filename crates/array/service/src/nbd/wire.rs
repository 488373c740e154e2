//! The protocol's bytes (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>): numbers are big-endian.
//!
//! Nothing here reads a socket, so that whatever a client may send can be tried in tests.

use crate::door::{Command, Errno, Request};

/// The server's first bytes: `NBDMAGIC`.
pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: the second word of the greeting, and the first of each option.
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Handshake flags; a client answers with those it knows, at the same bits.
pub(crate) mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// The capabilities of an export.
pub(crate) mod export_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const DF: u16 = 1 << 7;
    pub const MULTI_CONN: u16 = 1 << 8;
    pub const CACHE: u16 = 1 << 10;
    pub const FAST_ZERO: u16 = 1 << 11;
}

/// Options that are known.
pub(crate) mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Answers to options.
pub(crate) mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub const POLICY: u32 = 1 << 31 | 2;
    pub const INVALID: u32 = 1 << 31 | 3;
    pub const TLS_REQUIRED: u32 = 1 << 31 | 5;
    pub const UNKNOWN: u32 = 1 << 31 | 6;
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// The information in answers to `INFO` and `GO`.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of requests.
pub(crate) mod request_flag {
    pub const FUA: u16 = crate::door::FUA;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The one meta context that there is, and its number on a connection: which bytes have a place on devices.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
pub(crate) const ALLOCATION_ID: u32 = 1;

/// Types of a structured reply's chunks; it ends with the one that has [`CHUNK_DONE`].
mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
}
const CHUNK_DONE: u16 = 1;

/// The first fields of `N` bytes, one after the other. Reading more than there is gives `None`.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// The head of an option; `length` bytes follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OptionHead {
    pub option: u32,
    pub length: u32,
}

impl OptionHead {
    pub const BYTES: usize = 16;

    /// `None` if this is not the head of an option.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<OptionHead> {
        let mut fields = Fields(bytes);
        (fields.u64()? == OPTION).then_some(())?;
        Some(OptionHead { option: fields.u32()?, length: fields.u32()? })
    }
}

/// The content of `INFO` and `GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InfoRequest<'a> {
    pub name: &'a [u8],
    /// Kinds of information beyond those that are always given.
    pub kinds: Vec<u16>,
}

impl InfoRequest<'_> {
    /// `None` if lengths contradict each other.
    pub fn decode(data: &[u8]) -> Option<InfoRequest<'_>> {
        let mut fields = Fields(data);
        let length = fields.u32()?;
        let name = fields.bytes(length.try_into().ok()?)?;
        let count = fields.u16()?;
        let kinds = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
        fields.0.is_empty().then_some(InfoRequest { name, kinds })
    }
}

/// The content of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ContextRequest<'a> {
    pub name: &'a [u8],
    pub queries: Vec<&'a [u8]>,
}

impl ContextRequest<'_> {
    /// `None` if lengths contradict each other.
    pub fn decode(data: &[u8]) -> Option<ContextRequest<'_>> {
        let mut fields = Fields(data);
        let length = fields.u32()?;
        let name = fields.bytes(length.try_into().ok()?)?;
        let mut queries = Vec::new();
        for _ in 0..fields.u32()? {
            let length = fields.u32()?;
            queries.push(fields.bytes(length.try_into().ok()?)?);
        }
        fields.0.is_empty().then_some(ContextRequest { name, queries })
    }
}

/// The server's first message.
pub(crate) fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&GREETING.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION.to_be_bytes());
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    bytes[16..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// An answer to an option. `data` is short: the server's own words, or a name that was checked.
pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(OPTION_REPLY.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

impl Request {
    pub const BYTES: usize = 28;

    /// `None` if this is not a request.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Request> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST).then_some(())?;
        let flags = fields.u16()?;
        let command = match fields.u16()? {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        let (cookie, offset, length) = (fields.u64()?, fields.u64()?, fields.u32()?);
        Some(Request { flags, command, cookie, offset, length })
    }

    /// How many bytes of data follow.
    pub fn payload(&self) -> u32 {
        if self.command == Command::Write { self.length } else { 0 }
    }
}

fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(SIMPLE_REPLY.to_be_bytes());
    bytes.extend(errno.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

/// A structured reply of one chunk, up to where `payload` bytes follow.
fn structured(kind: u16, cookie: u64, payload: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(STRUCTURED_REPLY.to_be_bytes());
    bytes.extend(CHUNK_DONE.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(payload.to_be_bytes());
    bytes
}

/// The header before the data of a successful read.
pub(crate) fn data_head(request: &Request, with_structure: bool) -> Vec<u8> {
    if !with_structure {
        return simple(request.cookie, 0);
    }
    // Lengths were checked against the export's limit, which is far below this.
    let mut bytes =
        structured(chunk::OFFSET_DATA, request.cookie, request.length.saturating_add(8));
    bytes.extend(request.offset.to_be_bytes());
    bytes
}

/// The reply to a request for block status: all of it has a place on devices, and may be other than zero.
pub(crate) fn allocated(request: &Request) -> Vec<u8> {
    let mut bytes = structured(chunk::BLOCK_STATUS, request.cookie, 12);
    for word in [ALLOCATION_ID, request.length, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes
}

/// The reply to anything else that succeeded.
pub(crate) fn done(cookie: u64) -> Vec<u8> {
    simple(cookie, 0)
}

/// The reply to what failed. Only structured ones have room for words.
pub(crate) fn failed(cookie: u64, errno: Errno, what: &str, with_structure: bool) -> Vec<u8> {
    if !with_structure {
        return simple(cookie, errno as u32);
    }
    // The protocol's limit for texts.
    let mut end = what.len().min(4096);
    while !what.is_char_boundary(end) {
        end -= 1;
    }
    let what = &what.as_bytes()[..end];
    let mut bytes = structured(chunk::ERROR, cookie, 6 + what.len() as u32);
    bytes.extend((errno as u32).to_be_bytes());
    bytes.extend((what.len() as u16).to_be_bytes());
    bytes.extend(what);
    bytes
}
