//! The session protocol: decoding reverses encoding, and no input makes it panic.

use lockify_core::{
    Ended, LockArgs, LockFlags, LockId, LostReason, Mode, Name, NodeId, SbFlags, Status,
    UnlockFlags,
};
use lockify_session::codec::{self, Inbox, MAX_FRAME};
use lockify_session::protocol::{
    Answer, ConvertRequest, Done, Event, Goodbye, Greeting, LockRef, LockRequest, Query, Refusal,
    Request, Space, UnlockRequest, client_id, pid_of, sessions_of,
};
use lockify_trust::frame::BadFrame;

fn lock() -> LockRef {
    LockRef { space: Space(3), life: 2, lock: LockId(0x7_0000_0001) }
}

fn requests() -> Vec<Request> {
    let name = Name::new([0, 255, b'x']).unwrap();
    vec![
        Request::Lock(LockRequest {
            space: Space(0),
            args: LockArgs {
                tag: u64::MAX,
                flags: LockFlags::NOTIFY | LockFlags::VALBLK,
                lvb: Some(vec![7; 32].into()),
                bast: true,
                timeout: Some(1_000_000),
                ..LockArgs::new(name, Mode::EX)
            },
        }),
        Request::Convert(ConvertRequest {
            lock: lock(),
            tag: 4,
            mode: Mode::NL,
            flags: LockFlags::empty(),
            lvb: None,
            timeout: None,
        }),
        Request::Unlock(UnlockRequest {
            lock: lock(),
            tag: 4,
            flags: UnlockFlags::FORCE,
            lvb: None,
        }),
        Request::Cancel(lock()),
        Request::Query { id: 1, query: Query::Open("default".into()) },
        Request::Query { id: 2, query: Query::Status },
        Request::Query { id: 3, query: Query::Who(Space(1), name) },
        Request::Query {
            id: 4,
            query: Query::Purge { space: Space(1), node: Some(NodeId(2)), clients: sessions_of(9) },
        },
        Request::BreakDeadlock(lock()),
        Request::Query { id: 5, query: Query::Create { name: "new".into(), exclusive: true } },
        Request::Query {
            id: 7,
            query: Query::CreateWithMode { name: "new".into(), exclusive: false, mode: 0o640 },
        },
        Request::Query { id: 6, query: Query::Release { name: "new".into(), force: false } },
        Request::Query { id: 7, query: Query::Reload },
        Request::Query { id: 9, query: Query::Restart },
        Request::Query { id: 9, query: Query::MayRelease("new".into()) },
        Request::Query {
            id: 10,
            query: Query::Page {
                space: Space(0),
                after: Name::new("a").ok(),
                limit: 500,
                waited: true,
            },
        },
    ]
}

fn events() -> Vec<Event> {
    vec![
        Event::Accepted { tag: 1, lock: LockId(2) },
        Event::Refused { tag: 1, why: Refusal::TooManyLocks(10) },
        Event::Refused { tag: 1, why: Refusal::SpaceBusy("s".into(), 10) },
        Event::Refused { tag: 1, why: Refusal::Core(lockify_core::Error::Busy) },
        Event::Completed(Done {
            space: Space(0),
            tag: 1,
            lock: LockId(2),
            ended: Ended {
                status: Status::Granted,
                mode: Some(Mode::PW),
                status_flags: SbFlags::VALNOTVALID,
                lvb: Some(vec![1, 2, 3].into()),
                token: 1 << 60,
                provisional: true,
            },
        }),
        Event::Bast { tag: 1, mode: Mode::CW },
        Event::Lost { tag: 1, reason: LostReason::Halted },
        Event::Settled { tag: 1, token: 5 },
        Event::Halted { space: Space(0), life: 1 },
        Event::Running { space: Space(0), running: true },
        Event::Answer { id: 1, answer: Answer::Silent(vec![NodeId(3)]), more: true },
        Event::Goodbye(Goodbye::SlowReader(17)),
        Event::Refused { tag: 1, why: Refusal::MayNotLook("s".into()) },
        Event::Refused { tag: 1, why: Refusal::NotReloaded("because".into()) },
        Event::Answer { id: 7, answer: Answer::Reloaded("changed".into()), more: false },
        Event::Answer {
            id: 8,
            answer: Answer::Software {
                node: NodeId(1),
                shard: 0,
                software: lockify_node::Software {
                    release: "1.2.3".into(),
                    oldest: 3,
                    newest: 4,
                    spoken: vec![(NodeId(2), 4)],
                },
            },
            more: true,
        },
        Event::Answer {
            id: 8,
            answer: Answer::Certificates {
                node: NodeId(1),
                shard: 0,
                certificates: vec![lockify_node::Certificate {
                    node: NodeId(2),
                    ends: 1 << 31,
                    warn_days: 30,
                }],
            },
            more: true,
        },
        Event::Answer {
            id: 10,
            answer: Answer::Rest { more: 3, next: Name::new("z").ok() },
            more: true,
        },
    ]
}

/// Small and good enough to make frames that nobody thought of (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Programs of other releases read and write these bytes: a change of them needs a new version
/// (docs/compatibility.md). After an addition on purpose, run this with `LOCKIFY_GOLDEN` set.
#[test]
fn frames_keep_their_bytes() {
    fn hex(value: &impl serde::Serialize) -> String {
        let mut bytes = Vec::new();
        codec::encode(value, &mut bytes).unwrap();
        bytes.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n"
    }
    let text: String = requests().iter().map(hex).chain(events().iter().map(hex)).collect();
    if std::env::var_os("LOCKIFY_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/frames.txt");
        std::fs::write(path, &text).unwrap();
        return;
    }
    assert_eq!(text, include_str!("golden/frames.txt"));
}

#[test]
fn what_is_encoded_is_decoded() {
    let mut bytes = Vec::new();
    for request in requests() {
        codec::encode(&request, &mut bytes).unwrap();
    }
    let mut rest = &bytes[..];
    for request in requests() {
        let (decoded, used) = codec::decode::<Request>(rest).unwrap().unwrap();
        assert_eq!(decoded, request);
        rest = &rest[used..];
    }
    assert!(rest.is_empty());
    for event in events() {
        let mut bytes = Vec::new();
        codec::encode(&event, &mut bytes).unwrap();
        assert_eq!(codec::decode::<Event>(&bytes), Ok(Some((event, bytes.len()))));
    }
}

#[test]
fn a_frame_cut_short_is_awaited() {
    let mut bytes = Vec::new();
    codec::encode(&events()[3], &mut bytes).unwrap();
    for len in 0..bytes.len() {
        assert_eq!(codec::decode::<Event>(&bytes[..len]), Ok(None));
    }
}

#[test]
fn an_inbox_joins_what_comes_in_pieces() {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&Greeting { version: 1, shard: 2, pid: 3 }.encode());
    for _ in 0..200 {
        requests().iter().for_each(|r| codec::encode(r, &mut bytes).unwrap());
    }
    for step in [1, 7, 4096, bytes.len()] {
        let mut inbox = Inbox::default();
        let mut decoded = Vec::new();
        let mut greeting = None;
        for piece in bytes.chunks(step) {
            let mut source = piece;
            while !source.is_empty() {
                inbox.fill(&mut source).unwrap();
                if greeting.is_none() {
                    greeting = inbox.take::<{ Greeting::LEN }>();
                }
                while greeting.is_some()
                    && let Some(request) = inbox.next_frame::<Request>().unwrap()
                {
                    decoded.push(request);
                }
            }
        }
        let greeting = Greeting::decode(&greeting.unwrap()).unwrap();
        assert_eq!((greeting.version, greeting.shard, greeting.pid), (1, 2, 3));
        assert_eq!(decoded.len(), 200 * requests().len());
        assert_eq!(&decoded[..requests().len()], &requests()[..]);
        assert_eq!(inbox.pending(), 0);
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let decode = |bytes: &[u8]| codec::decode::<Request>(bytes);
    for len in [MAX_FRAME as u32 + 1, u32::MAX] {
        let too_long = BadFrame::TooLong { length: len as usize, longest: MAX_FRAME };
        assert_eq!(decode(&len.to_le_bytes()), Err(too_long));
    }
    assert!(matches!(decode(&[0; 4]), Err(BadFrame::NoValue { length: 0, .. })));
    let mut bytes = Vec::new();
    codec::encode(&Request::Cancel(lock()), &mut bytes).unwrap();
    let length = bytes.len() - 4 + 3;
    bytes.extend_from_slice(&[0; 3]);
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    assert_eq!(decode(&bytes), Err(BadFrame::Extra { length, extra: 3 }));
}

#[test]
fn a_value_too_large_for_a_frame_leaves_the_buffer_as_it_was() {
    let mut bytes = vec![1, 2, 3];
    let query = Query::Open("x".repeat(MAX_FRAME));
    let encoded = codec::encode(&Request::Query { id: 1, query }, &mut bytes);
    assert!(matches!(encoded, Err(BadFrame::TooLong { .. })), "{encoded:?}");
    assert_eq!(bytes, [1, 2, 3]);
}

#[test]
fn strangers_are_known_by_their_greeting() {
    assert_eq!(Greeting::decode(b"GET / HTTP/1.1\r\n"), None);
    let newer = Greeting { version: 9, shard: 0, pid: 1 };
    assert_eq!(Greeting::decode(&newer.encode()), Some(newer));
}

/// Random bytes, and good frames with random damage, are decoded or refused, and never more is
/// consumed than there is.
#[test]
fn damaged_frames_are_decoded_or_refused() {
    let mut random = Random(0x5eed);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for request in requests() {
        let mut bytes = Vec::new();
        codec::encode(&request, &mut bytes).unwrap();
        frames.push(bytes);
    }
    for event in events() {
        let mut bytes = Vec::new();
        codec::encode(&event, &mut bytes).unwrap();
        frames.push(bytes);
    }
    let (mut decoded, mut refused) = (0, 0);
    for round in 0..200_000 {
        let mut bytes = if round % 4 == 0 {
            let mut bytes: Vec<u8> = (0..random.below(80)).map(|_| random.next() as u8).collect();
            // Half of them with a length that fits, to reach the content's decoder.
            if bytes.len() > 4 && round % 8 == 0 {
                let len = (bytes.len() - 4) as u32;
                bytes[..4].copy_from_slice(&len.to_le_bytes());
            }
            bytes
        } else {
            frames[random.below(frames.len())].clone()
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
        }
        let used = [
            codec::decode::<Request>(&bytes).map(|d| d.map(|(_, used)| used)),
            codec::decode::<Event>(&bytes).map(|d| d.map(|(_, used)| used)),
        ];
        for used in used {
            match used {
                Ok(Some(used)) => {
                    assert!(used <= bytes.len());
                    decoded += 1;
                }
                Ok(None) => {}
                Err(_) => refused += 1,
            }
        }
        if let Some(greeting) = bytes.first_chunk() {
            Greeting::decode(greeting);
        }
    }
    assert!(decoded > 10_000 && refused > 10_000, "{decoded} decoded, {refused} refused");
}

#[test]
fn client_ids_tell_the_process() {
    assert_eq!(pid_of(client_id(4711, 3)), 4711);
    assert_ne!(client_id(4711, 3), client_id(4711, 4));
}
