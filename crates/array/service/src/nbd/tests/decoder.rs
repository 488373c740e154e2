//! Tests with arbitrary bytes from clients.

use std::io::{self, Cursor, Read, Write};

use proptest::prelude::*;

use crate::door::testing::export;
use crate::door::{Command, Errno, Request};
use crate::nbd::handshake::{Negotiated, Tls, greet, negotiate};
use crate::nbd::wire::{self, InfoRequest, OptionHead};

/// A connection that says this and then ends.
struct Script {
    says: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Script {
    fn saying(bytes: Vec<u8>) -> Script {
        Script { says: Cursor::new(bytes), heard: Vec::new() }
    }
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.says.read(buffer)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Options as clients send them, more or less.
fn option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        Just(Vec::new()),
        Just(b"array".to_vec()),
        Just(b"\0\0\0\x05array\0\x01\0\x03".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    (any::<Option<u64>>(), 0u32..12, data, proptest::option::weighted(0.1, any::<u32>())).prop_map(
        |(magic, option, data, length)| {
            let mut bytes = match magic {
                Some(magic) if magic % 8 == 0 => magic,
                _ => wire::OPTION,
            }
            .to_be_bytes()
            .to_vec();
            bytes.extend(option.to_be_bytes());
            bytes.extend(length.unwrap_or(data.len() as u32).to_be_bytes());
            bytes.extend(data);
            bytes
        },
    )
}

/// Checks the server's bytes: a greeting, then whole option replies. An export's description may follow.
fn assert_well_formed(heard: &[u8]) {
    let mut rest = heard.strip_prefix(&wire::greeting()[..]).unwrap();
    while rest.len() >= 20 && rest[..8] == 0x0003_e889_0455_65a9u64.to_be_bytes() {
        let length = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
        rest = &rest[20 + length..];
    }
    assert!([0, 10, 134].contains(&rest.len()), "{} bytes left", rest.len());
}

/// The whole handshake, or the part before or in TLS.
fn meet(script: &mut Script, tls: Tls) -> io::Result<Negotiated> {
    let zeroes = greet(script)?;
    negotiate(script, &export(1 << 20), zeroes, tls)
}

fn tls() -> impl Strategy<Value = Tls> {
    prop_oneof![Just(Tls::Absent), Just(Tls::Required), Just(Tls::Begun)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_handshake_ends_whatever_the_client_says(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), tls in tls()
    ) {
        let mut script = Script::saying(bytes);
        let _ = meet(&mut script, tls);
        assert_well_formed(&script.heard);
    }

    #[test]
    fn options_in_any_order_and_shape_are_answered(
        flags in 0u32..4, options in proptest::collection::vec(option(), 0..20), tls in tls()
    ) {
        let mut script = Script::saying([flags.to_be_bytes().to_vec(), options.concat()].concat());
        match meet(&mut script, tls) {
            Ok(Negotiated::Agreed(agreed)) => {
                prop_assert_ne!(tls, Tls::Required);
                let asked = options.iter().any(|o| o[8..12] == 8u32.to_be_bytes());
                prop_assert!(asked || !agreed.structured);
            }
            Ok(Negotiated::StartTls) => prop_assert_eq!(tls, Tls::Required),
            Ok(Negotiated::Left) => {}
            Err(e) => prop_assert!(
                matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
            ),
        }
        let named = script.heard.windows(5).any(|part| part == b"array");
        prop_assert!(tls != Tls::Required || !named);
        assert_well_formed(&script.heard);
    }

    #[test]
    fn a_request_is_what_its_bytes_say(
        flags: u16, command: u16, cookie: u64, offset: u64, length: u32, wrong in any::<Option<u32>>()
    ) {
        let bytes = crate::nbd::testing::head((flags, command), cookie, offset, length);
        let mut bytes: [u8; Request::BYTES] = bytes.try_into().unwrap();
        let request = Request::decode(&bytes).unwrap();
        prop_assert_eq!((request.flags, request.cookie), (flags, cookie));
        prop_assert_eq!((request.offset, request.length), (offset, length));
        prop_assert_eq!(request.command == Command::Write, command == 1);
        prop_assert_eq!(request.payload(), if command == 1 { length } else { 0 });
        if let Some(magic) = wrong.filter(|magic| *magic != 0x2560_9513) {
            bytes[..4].copy_from_slice(&magic.to_be_bytes());
            prop_assert_eq!(Request::decode(&bytes), None);
        }
    }

    #[test]
    fn heads_and_questions_of_any_bytes_are_decoded_or_refused(
        head: [u8; OptionHead::BYTES], data in proptest::collection::vec(any::<u8>(), 0..100)
    ) {
        prop_assert_eq!(OptionHead::decode(&head).is_some(), head[..8] == *b"IHAVEOPT");
        if let Some(request) = InfoRequest::decode(&data) {
            prop_assert_eq!(data.len(), 6 + request.name.len() + 2 * request.kinds.len());
        }
    }

    #[test]
    fn reasons_are_cut_at_characters(what in "\\PC{0,3000}", structured: bool) {
        let bytes = wire::failed(7, Errno::Io, &what, structured);
        if structured {
            let text = std::str::from_utf8(&bytes[26..]).unwrap();
            prop_assert!(what.starts_with(text) && text.len() <= 4096);
            prop_assert_eq!(text.len() < what.len(), what.len() > 4096);
            prop_assert_eq!(bytes[16..20].to_vec(), (6 + text.len() as u32).to_be_bytes().to_vec());
        } else {
            prop_assert_eq!(bytes.len(), 16);
        }
    }
}
