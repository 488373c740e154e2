//! Clients that do not follow the protocol lose their connection or get an error, and others lose nothing.

use std::net::Shutdown;

use lockify_array::HostAnswer;

use crate::door::MAX_REQUEST;
use crate::door::testing::{BLOCK, export};
use crate::nbd::testing::{Running, head};
use crate::nbd::{BYTES, CONNECTIONS, REQUESTS};

const READ: (u16, u16) = (0, 0);
const WRITE: (u16, u16) = (0, 1);
const SIZE: u64 = 8 << 20;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;

/// A well-behaved client finds the server as it should be.
fn assert_serves(running: &Running) {
    let mut client = running.client(false);
    client.request(WRITE, 1, 0, 4096);
    client.put(&[42; 4096]);
    assert_eq!(client.reply(), (0, 1));
    client.request(READ, 2, 0, 4096);
    assert_eq!(client.reply(), (0, 2));
    assert_eq!(client.get(4096), [42; 4096]);
}

#[test]
fn handshakes_that_are_none_end() {
    let running = Running::of(export(SIZE));
    let absurd = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x07"[..], &u32::MAX.to_be_bytes()].concat();
    let endless: Vec<u8> =
        [&b"\0\0\0\x03"[..], &b"IHAVEOPT\0\0\0\x63\0\0\0\0".repeat(200)].concat();
    let other_name = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x05other";
    let wrong: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        // Flags that there are not.
        b"\0\0\0\x07",
        b"\0\0\0\x03IHAVEOPP\0\0\0\x03\0\0\0\0",
        &absurd,
        &endless,
        other_name,
    ];
    for bytes in wrong {
        let mut client = running.stranger();
        client.get(18);
        client.put(bytes);
        let mut rest = Vec::new();
        // It may be reset before all is read.
        let _ = std::io::Read::read_to_end(&mut client.0, &mut rest);
        assert!(rest.len() <= 128 * 64, "{} bytes", rest.len());
        assert_serves(&running);
    }
    // Nor has a client of the oldest kind another name to try.
    let mut client = running.stranger();
    client.get(18);
    client.put(b"\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\x05other");
    assert!(client.is_over());
    // A long option is skipped, and the next one is understood.
    let mut client = running.stranger();
    client.get(18);
    client.put(&3u32.to_be_bytes());
    client.option(6, &[b'x'; 100_000]);
    assert_eq!(client.answer().1, 0x8000_0009);
    client.option(8, &[]);
    assert_eq!(client.answer().1, 1);
}

#[test]
fn requests_that_cannot_be_done_are_refused_and_the_connection_goes_on() {
    let running = Running::of(export(SIZE));
    let (before, block) = (running.memory.bytes(0, SIZE as usize), BLOCK);
    let mut client = running.client(false);
    let wrong = [
        (READ, SIZE, block, INVALID),
        (READ, SIZE - 4096, 2 * block, INVALID),
        (READ, u64::MAX - 4095, block, INVALID),
        (READ, SIZE - 1, 2, INVALID),
        (READ, 0, 0, INVALID),
        (READ, 0, MAX_REQUEST + block, INVALID),
        (READ, 0, u32::MAX, INVALID),
        (WRITE, SIZE, block, NO_SPACE),
        (WRITE, SIZE - 4096, 2 * block, NO_SPACE),
        (WRITE, u64::MAX - 4095, block, NO_SPACE),
        (WRITE, SIZE - 511, 512, NO_SPACE),
        (WRITE, 0, 0, INVALID),
        // Its data is sent and has to be skipped.
        (WRITE, 0, MAX_REQUEST + block, INVALID),
        ((0, 6), SIZE - 4096, u32::MAX - 4095, NO_SPACE),
        // Flags that are not offered: not to fragment, nor fast reads.
        ((4, 0), 0, block, INVALID),
        ((16, 0), 0, block, INVALID),
        ((2, 1), 0, block, INVALID),
        ((0, 4), SIZE, block, INVALID),
        ((2, 4), 0, block, INVALID),
        // Block status that was not chosen, and unknown commands.
        ((0, 5), SIZE, block, INVALID),
        ((0, 7), 0, block, INVALID),
        ((0, 999), 0, block, INVALID),
    ];
    for (number, (command, offset, length, errno)) in wrong.into_iter().enumerate() {
        client.request(command, number as u64, offset, length);
        if command.1 == WRITE.1 {
            client.put(&vec![1; length as usize]);
        }
        assert_eq!(client.reply(), (errno, number as u64), "{command:?} {offset} {length}");
    }
    assert_eq!(running.memory.bytes(0, SIZE as usize), before);
    // The reason is told where there is room for it.
    let mut client = running.client(true);
    client.request(READ, 7, SIZE - 100, 512);
    let (kind, cookie, payload) = client.chunk();
    assert_eq!((kind, cookie), (0x8001, 7));
    assert!(String::from_utf8_lossy(&payload).contains("beyond the end"));
    assert_serves(&running);
}

#[test]
fn requests_behind_a_farewell_are_not_read() {
    let running = Running::of(export(SIZE));
    let mut client = running.client(false);
    client.put(&[head((0, 2), 1, 0, 0), head((0, 2), 2, 0, 0), head(WRITE, 3, 0, 4096)].concat());
    client.put(&[7; 4096]);
    assert!(client.is_over());
    assert_eq!(running.memory.bytes(0, 4096), [0; 4096]);
    assert_serves(&running);
}

#[test]
fn half_messages_change_nothing() {
    let running = Running::of(export(SIZE));
    let write = head(WRITE, 1, 8192, 8192);
    // In the request, after it, in the data.
    for sent in [3, write.len(), write.len() + 5000] {
        let mut client = running.client(false);
        let message = [&write[..], &[9; 8192]].concat();
        client.put(&message[..sent]);
        client.0.shutdown(Shutdown::Write).unwrap();
        assert!(client.is_over());
        assert_eq!(running.memory.bytes(8192, 8192), [0; 8192]);
        assert_serves(&running);
    }
    let mut client = running.client(false);
    client.put(&[1; 28]);
    assert!(client.is_over());
    assert_serves(&running);
}

#[test]
fn a_client_that_disappears_mid_write_leaves_whole_operations() {
    let mut running = Running::of(export(SIZE));
    running.memory.hold();
    let mut client = running.client(false);
    client.request(WRITE, 1, 0, 4096);
    client.put(&[5; 4096]);
    client.request(WRITE, 2, 4096, 4096);
    client.put(&[6; 1000]);
    let held = running.memory.held(1);
    drop(client);
    assert_eq!(held.len(), 1);
    for (work, done) in held {
        done(running.memory.perform(&work));
    }
    assert_eq!(running.memory.bytes(0, 4096), [5; 4096]);
    assert_eq!(running.memory.bytes(4096, 4096), [0; 4096]);
    running.stop();
    assert_eq!(running.wait(), crate::nbd::Ended::Stopped);
}

/// Otherwise a client that asks again and again, since it has little patience, has the server do ever more.
#[test]
fn what_is_not_begun_is_not_done_for_a_client_that_has_gone() {
    let running = Running::of(export(200 << 20));
    let others: Vec<_> = (1..CONNECTIONS).map(|_| running.client(false)).collect();
    running.memory.hold();
    let mut client = running.client(false);
    client.request((0, 6), 1, 0, 200 << 20);
    let begun = running.memory.held(REQUESTS - 1);
    drop(client);
    for (_, done) in begun {
        done(Ok(HostAnswer::Done));
    }
    // Its place is free when its thread has ended.
    while asks_for_a_place(&running).is_none_or(|(kind, _)| kind != 3) {
        assert_eq!(running.memory.waiting(), 0, "more was begun");
    }
    assert_eq!(running.memory.waiting(), 0, "more was begun");
    drop(others);
}

#[test]
fn a_client_that_reads_no_replies_keeps_only_its_own_budget() {
    let running = Running::of(export(SIZE));
    let mut greedy = running.client(false);
    // Until the server takes no more.
    let requests: Vec<u8> = (0..10_000).flat_map(|cookie| head(READ, cookie, 0, 1 << 20)).collect();
    greedy.0.set_nonblocking(true).unwrap();
    running.memory.hold();
    let mut sent = 0;
    while running.memory.waiting() < BYTES >> 20 {
        match std::io::Write::write(&mut greedy.0, &requests[sent..]) {
            Ok(count) => sent += count,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
    // Small ones are bounded by their number.
    let mut other = running.client(false);
    let small: Vec<u8> = (0..1000).flat_map(|cookie| head(READ, cookie, 0, 4096)).collect();
    other.put(&small);
    let all = (BYTES >> 20) + REQUESTS;
    let held = running.memory.held(all);
    assert_eq!(held.len(), all);
    // Answers nobody reads, and answers somebody reads.
    for (work, done) in held {
        done(running.memory.perform(&work));
    }
    for _ in 0..REQUESTS {
        assert_eq!(other.reply().0, 0);
        other.get(4096);
    }
    running.memory.resume();
    drop((greedy, other));
}

#[test]
fn connections_are_bounded_and_places_are_free_again() {
    let running = Running::of(export(SIZE));
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| running.client(false)).collect();
    assert_eq!(asks_for_a_place(&running).unwrap().0, 0x8000_0002);
    let why = asks_for_a_place(&running).unwrap().1;
    assert!(String::from_utf8(why).unwrap().contains("64 connections are in use"));
    // Those that say nothing do not keep others from being answered for ever; there are few of them.
    let silent: Vec<_> = (0..20).map(|_| running.stranger()).collect();
    drop(silent);
    let mut last = clients.pop().unwrap();
    last.request((0, 2), 0, 0, 0);
    assert!(last.is_over());
    // Its place is free when its thread has ended, which nothing tells.
    while asks_for_a_place(&running).is_none_or(|(kind, _)| kind != 3) {}
    clients.pop();
    drop(clients);
}

/// Kind and data of the first answer to GO, unless the server hangs up.
fn asks_for_a_place(running: &Running) -> Option<(u32, Vec<u8>)> {
    use std::io::{Read as _, Write as _};
    let mut client = running.stranger();
    client.0.read_exact(&mut [0; 18]).ok()?;
    client.0.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").ok()?;
    let mut head = [0; 20];
    client.0.read_exact(&mut head).ok()?;
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    Some((number(12), client.get(number(16) as usize)))
}
