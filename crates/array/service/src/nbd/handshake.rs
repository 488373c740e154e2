//! From a client's connection to its first request: fixed newstyle negotiation.

use std::io::{self, Read, Write};

use super::wire::{
    self, ALLOCATION, ALLOCATION_ID, ContextRequest, InfoRequest, OptionHead, export_flag,
    handshake_flag, info, option, reply,
};
use crate::door::{Export, MAX_REQUEST};

/// The longest name or query that the protocol allows, bytes.
const MAX_STRING: u32 = 4096;
/// An option's data that is kept; longer ones are answered as too big. It has room for a name and two queries of any length.
const MAX_OPTION: u32 = 4 * MAX_STRING;
/// An option that is not even read to its end.
const ABSURD_OPTION: u32 = 1024 * 1024;
/// Options of one client. Real clients send fewer than ten.
const MAX_OPTIONS: u32 = 128;
/// Options of a client that is turned away.
const FAREWELLS: u32 = 4;

/// What both sides have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// Reads are answered with structured replies.
    pub structured: bool,
    /// The client may ask which bytes are allocated.
    pub allocation: bool,
}

/// How a negotiation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Negotiated {
    /// Requests follow.
    Agreed(Agreed),
    /// TLS follows, and then other options.
    StartTls,
    /// The client took its leave.
    Left,
}

/// The part of TLS in a negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tls {
    /// This server has none.
    Absent,
    /// The client has to begin it, and learns nothing before.
    Required,
    /// It is there.
    Begun,
}

/// Negotiates, after the [greeting](greet). `zeroes` is what that returned.
///
/// # Errors
/// The connection fails, or the client does not follow the protocol (then the kind is `InvalidData`).
pub(crate) fn negotiate(
    stream: &mut (impl Read + Write),
    export: &Export,
    zeroes: bool,
    tls: Tls,
) -> io::Result<Negotiated> {
    let mut agreed = Agreed { structured: false, allocation: false };
    for _ in 0..MAX_OPTIONS {
        let head = option_head(stream)?;
        let Some(data) = option_data(stream, head)? else {
            stream.write_all(&wire::option_reply(head.option, reply::TOO_BIG, &[]))?;
            continue;
        };
        match head.option {
            // It need not wait for the answer.
            option::ABORT => {
                let _ = stream.write_all(&wire::option_reply(head.option, reply::ACK, &[]));
                return Ok(Negotiated::Left);
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(stream, head.option, reply::INVALID, "this option has no data")?;
            }
            option::STARTTLS if tls == Tls::Required && data.is_empty() => {
                stream.write_all(&wire::option_reply(head.option, reply::ACK, &[]))?;
                return Ok(Negotiated::StartTls);
            }
            option::STARTTLS if tls != Tls::Absent => {
                let what = "this option has no data, and is for once";
                refuse(stream, head.option, reply::INVALID, what)?;
            }
            option::EXPORT_NAME if tls == Tls::Required => {
                return Err(misbehaves("does not begin TLS, which this export requires"));
            }
            _ if tls == Tls::Required => {
                let what = "this export is served by TLS only: begin it first";
                refuse(stream, head.option, reply::TLS_REQUIRED, what)?;
            }
            option::EXPORT_NAME => {
                // This option has no way to refuse but to hang up.
                if !export.is_named(&data) {
                    return Err(misbehaves("asks for an export of another name"));
                }
                let mut answer = export.size.to_be_bytes().to_vec();
                answer.extend(flags_of(export, agreed).to_be_bytes());
                answer.resize(answer.len() + if zeroes { 124 } else { 0 }, 0);
                stream.write_all(&answer)?;
                return Ok(Negotiated::Agreed(agreed));
            }
            option::INFO | option::GO => {
                let known = answer_info(stream, head.option, &data, export, agreed)?;
                if known && head.option == option::GO {
                    return Ok(Negotiated::Agreed(agreed));
                }
            }
            option::LIST => {
                let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
                entry.extend(export.name.as_bytes());
                entry.extend(export.description.as_bytes());
                stream.write_all(&wire::option_reply(head.option, reply::SERVER, &entry))?;
                stream.write_all(&wire::option_reply(head.option, reply::ACK, &[]))?;
            }
            option::STRUCTURED_REPLY => {
                agreed.structured = true;
                stream.write_all(&wire::option_reply(head.option, reply::ACK, &[]))?;
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let answer = answer_contexts(stream, head.option, &data, export, agreed)?;
                if head.option == option::SET_META_CONTEXT {
                    agreed.allocation = answer;
                }
            }
            _ => refuse(stream, head.option, reply::UNSUPPORTED, "not supported here")?,
        }
    }
    Err(misbehaves("sends options without end"))
}

/// Tells a client why it is not served, with its first few options.
///
/// # Errors
/// As for [`negotiate`].
pub(crate) fn turn_away(stream: &mut (impl Read + Write), why: &str) -> io::Result<()> {
    greet(stream)?;
    for _ in 0..FAREWELLS {
        let head = option_head(stream)?;
        option_data(stream, head)?;
        match head.option {
            // The one has no way to refuse but to hang up, and the other is a farewell.
            option::EXPORT_NAME | option::ABORT => return Ok(()),
            _ => refuse(stream, head.option, reply::POLICY, why)?,
        }
    }
    Ok(())
}

/// The first words; whether the client wants the zeroes of old.
///
/// # Errors
/// As for [`negotiate`].
pub(crate) fn greet(stream: &mut (impl Read + Write)) -> io::Result<bool> {
    stream.write_all(&wire::greeting())?;
    let flags = u32::from_be_bytes(array(stream)?);
    let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    if flags & !known != 0 {
        return Err(misbehaves("sets handshake flags that there are not"));
    }
    Ok(flags & u32::from(handshake_flag::NO_ZEROES) == 0)
}

fn option_head(stream: &mut impl Read) -> io::Result<OptionHead> {
    OptionHead::decode(&array(stream)?)
        .ok_or_else(|| misbehaves("sends something that is no option: does it speak NBD?"))
}

/// Answers a question for meta contexts; whether the client has chosen the one that there is.
fn answer_contexts(
    stream: &mut impl Write,
    option: u32,
    data: &[u8],
    export: &Export,
    agreed: Agreed,
) -> io::Result<bool> {
    if !agreed.structured {
        refuse(stream, option, reply::INVALID, "ask for structured replies first")?;
        return Ok(false);
    }
    let request = ContextRequest::decode(data);
    let named = request.as_ref().map(|request| request.name);
    let Some(request) = for_export(stream, option, named, export)?.and(request) else {
        return Ok(false);
    };
    let lists = option == option::LIST_META_CONTEXT;
    let named = request.queries.contains(&ALLOCATION);
    let all = lists && (request.queries.is_empty() || request.queries.contains(&&b"base:"[..]));
    if named || all {
        // In a list, numbers mean nothing.
        let id = if lists { 0 } else { ALLOCATION_ID };
        let context = [&id.to_be_bytes()[..], ALLOCATION].concat();
        stream.write_all(&wire::option_reply(option, reply::META_CONTEXT, &context))?;
    }
    stream.write_all(&wire::option_reply(option, reply::ACK, &[]))?;
    Ok(named)
}

/// Refuses an option that cannot be decoded, or that names another export.
fn for_export(
    stream: &mut impl Write,
    option: u32,
    named: Option<&[u8]>,
    export: &Export,
) -> io::Result<Option<()>> {
    match named {
        None => {
            let what = "the lengths in this option contradict each other";
            refuse(stream, option, reply::INVALID, what)?;
        }
        Some(name) if export.is_named(name) => return Ok(Some(())),
        Some(_) => {
            let what = format!("there is no such export; there is \"{}\"", export.name);
            refuse(stream, option, reply::UNKNOWN, &what)?;
        }
    }
    Ok(None)
}

/// The export's capabilities after this negotiation.
fn flags_of(export: &Export, agreed: Agreed) -> u16 {
    use export_flag::{
        CACHE, DF, FAST_ZERO, FLUSH, FUA, HAS_FLAGS, MULTI_CONN, READ_ONLY, TRIM, WRITE_ZEROES,
    };
    // Nothing is cached here, and a flush goes to all devices: connections need not know of each other.
    let always = HAS_FLAGS | FLUSH | FUA | MULTI_CONN | CACHE;
    let writing = if export.read_only { READ_ONLY } else { TRIM | WRITE_ZEROES | FAST_ZERO };
    always | writing | if agreed.structured { DF } else { 0 }
}

/// Answers `INFO` or `GO`; whether it asks for this export.
fn answer_info(
    stream: &mut impl Write,
    option: u32,
    data: &[u8],
    export: &Export,
    agreed: Agreed,
) -> io::Result<bool> {
    let request = InfoRequest::decode(data);
    let named = request.as_ref().map(|request| request.name);
    let Some(request) = for_export(stream, option, named, export)?.and(request) else {
        return Ok(false);
    };
    let mut tell = |kind: u16, value: &[u8]| {
        let mut data = kind.to_be_bytes().to_vec();
        data.extend(value);
        stream.write_all(&wire::option_reply(option, reply::INFO, &data))
    };
    let mut size = export.size.to_be_bytes().to_vec();
    size.extend(flags_of(export, agreed).to_be_bytes());
    tell(info::EXPORT, &size)?;
    // Told to all, since a client that knows the block need not have its edges read first. The smallest is a byte.
    let sizes = [1, export.block_size, MAX_REQUEST];
    tell(info::BLOCK_SIZE, &sizes.map(u32::to_be_bytes).concat())?;
    if request.kinds.contains(&info::NAME) {
        tell(info::NAME, export.name.as_bytes())?;
    }
    if request.kinds.contains(&info::DESCRIPTION) {
        tell(info::DESCRIPTION, export.description.as_bytes())?;
    }
    stream.write_all(&wire::option_reply(option, reply::ACK, &[]))?;
    Ok(true)
}

fn refuse(stream: &mut impl Write, option: u32, kind: u32, why: &str) -> io::Result<()> {
    stream.write_all(&wire::option_reply(option, kind, why.as_bytes()))
}

/// An option's data; `None` if it is too long, but was skipped.
fn option_data(stream: &mut impl Read, head: OptionHead) -> io::Result<Option<Vec<u8>>> {
    if head.length > ABSURD_OPTION {
        return Err(misbehaves("announces an option of more than a mebibyte"));
    }
    if head.length > MAX_OPTION {
        skip(stream, head.length)?;
        return Ok(None);
    }
    let mut data = vec![0; head.length as usize];
    stream.read_exact(&mut data)?;
    Ok(Some(data))
}

/// Reads so many bytes that nobody needs.
pub(crate) fn skip(stream: &mut impl Read, count: u32) -> io::Result<()> {
    let skipped = io::copy(&mut stream.take(count.into()), &mut io::sink())?;
    if skipped < count.into() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The client does something that the protocol does not allow.
pub(crate) fn misbehaves(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
