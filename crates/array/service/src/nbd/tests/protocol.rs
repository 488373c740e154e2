//! The guarantees for well-behaved clients.

use lockify_array::OpError;

use crate::door::Export;
use crate::door::testing::export;
use crate::nbd::Ended;
use crate::nbd::testing::Running;

const READ: (u16, u16) = (0, 0);
const WRITE: (u16, u16) = (0, 1);
const WRITE_FUA: (u16, u16) = (1, 1);
const FLUSH: (u16, u16) = (0, 3);
const ZEROES: (u16, u16) = (0, 6);
const SIZE: u64 = 8 << 20;

#[test]
fn options_are_answered_as_the_protocol_says() {
    let running = Running::of(export(SIZE));
    let mut client = running.stranger();
    assert_eq!(client.get(18), b"NBDMAGICIHAVEOPT\0\x03");
    client.put(&3u32.to_be_bytes());
    // One that nobody knows, TLS, and extended headers.
    for unknown in [77, 5, 11] {
        client.option(unknown, b"whatever");
        let (option, kind, _) = client.answer();
        assert_eq!((option, kind), (unknown, 0x8000_0001));
    }
    client.option(3, &[]);
    assert_eq!(client.answer(), (3, 2, b"\0\0\0\x05arraya test".to_vec()));
    assert_eq!(client.answer(), (3, 1, vec![]));
    client.option(3, b"superfluous");
    assert_eq!(client.answer().1, 0x8000_0003);
    client.option(8, &[]);
    assert_eq!(client.answer(), (8, 1, vec![]));
    // Another name; then this one, with its description, and something unknown.
    client.option(6, b"\0\0\0\x05other\0\0");
    assert_eq!(client.answer().1, 0x8000_0006);
    client.option(6, b"\0\0\0\x05array\0\x02\0\x02\x01\x00");
    let mut size = vec![0, 0];
    size.extend(SIZE.to_be_bytes());
    // All but the flags for rotational media and read-only exports.
    size.extend(0b1101_1110_1101u16.to_be_bytes());
    assert_eq!(client.answer(), (6, 3, size.clone()));
    let sizes = [1u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    assert_eq!(client.answer(), (6, 3, [&[0, 3], &sizes[..]].concat()));
    assert_eq!(client.answer(), (6, 3, b"\0\x02a test".to_vec()));
    assert_eq!(client.answer(), (6, 1, vec![]));
    // Lengths that contradict each other.
    for wrong in
        [&b"\0\0\0\x09array\0\0"[..], b"\0\0\0\x05array\0\x02\0\0", b"\xff\xff\xff\xff", b""]
    {
        client.option(7, wrong);
        assert_eq!(client.answer().1, 0x8000_0003);
    }
    client.option(7, b"\0\0\0\0\0\0");
    assert_eq!(client.answer().2, size);
    assert_eq!(client.answer().1, 3);
    assert_eq!(client.answer(), (7, 1, vec![]));
    // Past the handshake.
    client.request(FLUSH, 5, 0, 0);
    assert_eq!(client.reply(), (0, 5));

    let mut client = running.stranger();
    client.get(18);
    client.put(&3u32.to_be_bytes());
    client.option(2, &[]);
    assert_eq!(client.answer(), (2, 1, vec![]));
    assert!(client.is_over());
}

#[test]
fn old_clients_get_their_zeroes() {
    let running = Running::of(Export { read_only: true, ..export(SIZE) });
    let mut client = running.stranger();
    client.get(18);
    client.put(&1u32.to_be_bytes());
    client.option(1, b"");
    let mut expected = SIZE.to_be_bytes().to_vec();
    // No structured replies, and nothing to write.
    expected.extend(0b101_0000_1111u16.to_be_bytes());
    expected.resize(134, 0);
    assert_eq!(client.get(134), expected);
    // So do those that know no other option.
    let mut oldest = running.stranger();
    oldest.get(18);
    oldest.put(&0u32.to_be_bytes());
    oldest.option(1, b"array");
    assert_eq!(oldest.get(134), expected);
    client.request(WRITE, 1, 0, 4096);
    client.put(&[7; 4096]);
    assert_eq!(client.reply(), (1, 1));
    client.request(ZEROES, 2, 0, 4096);
    assert_eq!(client.reply(), (1, 2));
    client.request(READ, 3, 0, 4096);
    assert_eq!(client.reply(), (0, 3));
    assert_eq!(client.get(4096), [0; 4096]);
}

#[test]
fn what_is_written_is_read_also_in_pieces() {
    let running = Running::of(export(SIZE));
    let mut client = running.client(false);
    // Over several pieces, and not from a stripe's start.
    let data: Vec<u8> = (0..3u32 << 20).map(|i| (i / 4096 % 251) as u8).collect();
    client.request(WRITE, 10, 4096 * 3, 3 << 20);
    client.put(&data);
    assert_eq!(client.reply(), (0, 10));
    assert_eq!(running.memory.bytes(4096 * 3, 3 << 20), data);
    client.request(READ, 11, 4096 * 3, 3 << 20);
    assert_eq!(client.reply(), (0, 11));
    assert_eq!(client.get(3 << 20), data);
    client.request((2, 6), 12, 4096 * 4, 2 << 20);
    assert_eq!(client.reply(), (0, 12));
    assert_eq!(running.memory.bytes(4096 * 4, 2 << 20), vec![0; 2 << 20]);
    assert_eq!(running.memory.bytes(4096 * 3, 4096), data[..4096]);
    // A read with structure, not fragmented.
    let mut client = running.client(true);
    client.request((4, 0), 13, 4096 * 3, 4096);
    let (kind, cookie, payload) = client.chunk();
    assert_eq!((kind, cookie), (1, 13));
    assert_eq!(payload, [&(4096u64 * 3).to_be_bytes()[..], &data[..4096]].concat());
}

#[test]
fn requests_of_any_length_begin_anywhere() {
    let running = Running::of(export(SIZE));
    let mut model = vec![0; SIZE as usize];
    // Within a block, over two, over a piece's end, in the last one.
    let places = [(100, 1), (4000, 512), (4095, 2), (8191, 4098), ((1 << 20) - 1, (1 << 20) + 2)];
    let end = SIZE as usize - 3;
    for (number, (offset, length)) in places.into_iter().chain([(end, 3)]).enumerate() {
        let data: Vec<u8> = (0..length).map(|i| (i * 7 + number) as u8 | 1).collect();
        model[offset..offset + length].copy_from_slice(&data);
        let (mut client, cookie) = (running.client(false), number as u64);
        client.request(WRITE, cookie, offset as u64, length as u32);
        client.put(&data);
        assert_eq!(client.reply(), (0, cookie));
        assert!(running.memory.bytes(0, SIZE as usize) == model, "{length} bytes at {offset}");
        client.request(READ, cookie, offset as u64, length as u32);
        assert_eq!(client.reply(), (0, cookie));
        assert_eq!(client.get(length), data);
        // With structure, a reply names the place of its bytes.
        let mut client = running.client(true);
        client.request(READ, cookie, offset as u64, length as u32);
        let (_, _, payload) = client.chunk();
        assert!(payload == [&(offset as u64).to_be_bytes()[..], &data].concat());
    }
    // Zeroes, and with FUA.
    let mut client = running.client(false);
    for (offset, length) in [(8191, 3), (4095, 4097)] {
        model[offset..offset + length].fill(0);
        client.request((1, 6), 9, offset as u64, length as u32);
        assert_eq!(client.reply(), (0, 9));
        assert!(running.memory.bytes(0, SIZE as usize) == model, "{length} zeroes at {offset}");
    }
}

/// The data of an option for meta contexts.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let mut data = text(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(text(query)));
    data
}

#[test]
fn block_status_is_given_to_clients_that_have_chosen_it() {
    let running = Running::of(export(SIZE));
    let mut client = running.stranger();
    client.get(18);
    client.put(&3u32.to_be_bytes());
    // Not before structured replies, not for another export, and not with wrong lengths.
    client.option(10, &contexts("array", &["base:allocation"]));
    assert_eq!(client.answer().1, 0x8000_0003);
    client.option(8, &[]);
    client.answer();
    client.option(10, &contexts("other", &["base:allocation"]));
    assert_eq!(client.answer().1, 0x8000_0006);
    client.option(9, b"\0\0\0\x00\xff\xff\xff\xff");
    assert_eq!(client.answer().1, 0x8000_0003);
    for queries in [&[][..], &["base:"], &["qemu:dirty-bitmap:x", "base:allocation"]] {
        client.option(9, &contexts("", queries));
        assert_eq!(client.answer(), (9, 4, b"\0\0\0\0base:allocation".to_vec()));
        assert_eq!(client.answer(), (9, 1, vec![]));
    }
    // Names and queries may be as long as the protocol allows.
    let (name, query) = ("n".repeat(4096), "q".repeat(4096));
    client.option(9, &contexts(&name, &[&query]));
    assert_eq!(client.answer().1, 0x8000_0006);
    client.option(9, &contexts("", &[&query, "base:allocation"]));
    assert_eq!(client.answer().1, 4);
    assert_eq!(client.answer(), (9, 1, vec![]));
    // The last choice counts; to choose, a name has to be whole.
    client.option(10, &contexts("", &["base:"]));
    assert_eq!(client.answer(), (10, 1, vec![]));
    client.option(10, &contexts("array", &["base:allocation"]));
    assert_eq!(client.answer(), (10, 4, b"\0\0\0\x01base:allocation".to_vec()));
    assert_eq!(client.answer(), (10, 1, vec![]));
    client.option(1, b"array");
    client.get(10);
    client.request((8, 7), 3, 4096, 3 << 20);
    let status = [1u32, 3 << 20, 0].map(u32::to_be_bytes).concat();
    assert_eq!(client.chunk(), (5, 3, status));
    client.request((0, 7), 4, SIZE, 4096);
    assert_eq!(client.chunk().0, 0x8001);
}

#[test]
fn a_hint_to_cache_finds_errors_and_fast_zeroes_are_refused() {
    let running = Running::of(export(SIZE));
    let mut client = running.client(false);
    // It has no limit but the export's end.
    client.request((0, 5), 1, 0, SIZE as u32);
    assert_eq!(client.reply(), (0, 1));
    running.memory.break_block(700, OpError::Lost { block: 700 });
    client.request((0, 5), 2, 0, SIZE as u32);
    assert_eq!(client.reply(), (5, 2));
    client.request((16, 6), 3, 0, 4096);
    assert_eq!(client.reply(), (95, 3));
}

/// Every block keeps its space, and what it has.
#[test]
fn a_trim_of_any_length_changes_nothing() {
    let running = Running::of(Export { volatile: true, ..export(SIZE) });
    let mut client = running.client(false);
    client.request(WRITE, 1, 0, 4096);
    client.put(&[1; 4096]);
    assert_eq!(client.reply(), (0, 1));
    for (flags, offset, length) in [(0, 0, SIZE as u32), (1, 1, 4094), (0, SIZE - 1, 1)] {
        client.request((flags, 4), 2, offset, length);
        assert_eq!(client.reply(), (0, 2), "{offset} {length}");
    }
    assert_eq!(running.memory.bytes(0, 4096), [1; 4096]);
    assert_eq!(running.memory.flushes(), 0);
    let read_only = Running::of(Export { read_only: true, ..export(SIZE) });
    let mut client = read_only.client(false);
    client.request((0, 4), 3, 0, 4096);
    assert_eq!(client.reply(), (1, 3), "EPERM");
}

#[test]
fn replies_come_when_operations_end() {
    let running = Running::of(export(SIZE));
    running.memory.hold();
    let mut client = running.client(false);
    for cookie in 0..3 {
        client.request(READ, cookie, cookie * 4096, 4096);
    }
    let held = running.memory.held(3);
    for (work, done) in held.into_iter().rev() {
        done(running.memory.perform(&work));
    }
    for cookie in [2, 1, 0] {
        assert_eq!(client.reply(), (0, cookie));
        client.get(4096);
    }
}

#[test]
fn fua_means_a_flush_only_if_writes_are_not_durable_by_themselves() {
    for volatile in [false, true] {
        let running = Running::of(Export { volatile, ..export(SIZE) });
        let mut client = running.client(false);
        for (number, command) in [WRITE, WRITE_FUA].into_iter().enumerate() {
            client.request(command, 1, 0, 4096);
            client.put(&[1; 4096]);
            assert_eq!(client.reply(), (0, 1));
            assert_eq!(running.memory.flushes(), if volatile { number } else { 0 });
        }
        client.request((1, 6), 2, 0, 4096);
        assert_eq!(client.reply(), (0, 2));
        // On reads it means nothing, but is allowed.
        client.request((1, 0), 3, 0, 4096);
        assert_eq!(client.reply(), (0, 3));
        client.get(4096);
        let before = running.memory.flushes();
        assert_eq!(before, if volatile { 2 } else { 0 });
        client.request(FLUSH, 4, 0, 0);
        assert_eq!(client.reply(), (0, 4));
        assert_eq!(running.memory.flushes(), before + 1);
    }
}

#[test]
fn a_client_that_leaves_or_a_server_that_ends_finishes_what_was_begun() {
    for leaves in [true, false] {
        let mut running = Running::of(export(SIZE));
        let memory = running.memory.clone();
        memory.hold();
        let mut client = running.client(false);
        client.request(WRITE, 9, 4096, 4096);
        client.put(&[3; 4096]);
        if leaves {
            client.request((0, 2), 10, 0, 0);
        }
        let held = memory.held(1);
        if !leaves {
            running.stop();
        }
        for (work, done) in held {
            done(memory.perform(&work));
        }
        assert_eq!(client.reply(), (0, 9));
        assert!(client.is_over());
        assert_eq!(memory.bytes(4096, 4096), [3; 4096]);
        running.stop();
        assert_eq!(running.wait(), Ended::Stopped);
    }
}

#[test]
fn failures_are_told_with_their_reasons() {
    let mut running = Running::of(export(SIZE));
    running.memory.break_block(5, OpError::Lost { block: 5 });
    let mut client = running.client(true);
    // The other pieces are fine.
    client.request(READ, 1, 0, 2 << 20);
    let (kind, cookie, payload) = client.chunk();
    assert_eq!((kind, cookie), (0x8001, 1));
    assert_eq!(payload[..4], 5u32.to_be_bytes());
    let text = String::from_utf8(payload[6..].to_vec()).unwrap();
    assert_eq!(text, OpError::Lost { block: 5 }.to_string());
    client.request(WRITE, 2, 5 * 4096, 4096);
    client.put(&[0; 4096]);
    assert_eq!(client.chunk().0, 0x8001);
    client.request(READ, 3, 6 * 4096, 4096);
    assert_eq!(client.chunk().0, 1);
    // A part of it, and a part of its neighbour.
    client.request(WRITE, 6, 5 * 4096 + 9, 1);
    client.put(&[0]);
    assert_eq!(client.chunk().2[..4], 5u32.to_be_bytes());
    client.request(WRITE, 7, 6 * 4096 - 1, 2);
    client.put(&[0; 2]);
    assert_eq!(client.chunk().2[..4], 5u32.to_be_bytes());
    client.request(READ, 8, 4 * 4096, 4096);
    assert_eq!(client.chunk().0, 1);
    // A fenced host cannot continue.
    running.memory.break_block(5, OpError::Fenced);
    client.request(READ, 4, 5 * 4096, 4096);
    assert_eq!(client.chunk().2[..4], 108u32.to_be_bytes());
    assert!(client.is_over());
    assert_eq!(running.wait(), Ended::Fenced);
}
