use bytes::Bytes;
use lockify_array::message::{Action, Blocks, Content, Doubt, Flaw, Mark, Mode, Past};
use lockify_array::{
    Agree, Agreed, Ballot, BlockError, Change, Epoch, Extent, Header, Held, HostId, LockChange,
    LockMode, LockRange, Member, PartId, Stamp, Term, Units,
};
use lockify_trust::speech::{MAX_TEXT, SpeechError, decode, decode_head, encode, encode_head};

use super::*;

fn frames() -> Vec<Frame> {
    let life = Life { host: HostId(3), incarnation: 1 << 60 };
    let hello = |role| {
        let (to, array) = (Whom::Device(DeviceId(2)), ArrayId([4; 16]));
        Frame::Hello(Hello { cluster: "c".into(), node: 7, to, array, digest: 9, role })
    };
    let others = vec![
        Frame::Refused("no".into()),
        hello(Role::Host(life)),
        hello(Role::Device { id: DeviceId(1), life: 5, in_service: true }),
        hello(Role::Watcher),
        hello(Role::Server(ServerId(1))),
        Frame::Welcome(Welcome { life: 6, in_service: false }),
        Frame::Vote(Vote::Goodbye),
        Frame::Query,
        Frame::Report(Report {
            state: ArrayState::new(3),
            waits: Some("for others".into()),
            members: vec![0, 300],
            view: Some(1 << 40),
            out: vec![(2, "silent".into())],
            hosts: vec![(300, 1 << 60)],
            lost_writes: 300,
            ..Report::default()
        }),
        Frame::AskTime { asked: 7 },
        Frame::Time { asked: 7, time: 1 << 60 },
        Frame::Settled(true),
        Frame::Recover,
        Frame::Recovered(Ok(())),
        Frame::Recovered(Err("not now".into())),
        Frame::Grow(1 << 60),
        Frame::Grown(Ok(())),
        Frame::Grown(Err("its medium is too small".into())),
        Frame::Software(Software {
            release: "1.2.3".into(),
            newest: 300,
            spoken: vec![(Peer::Host(1 << 30), 11), (Peer::Device(7), 12)],
        }),
    ];
    let all = others.into_iter().chain(of_state(life)).chain(of_locks(life));
    let all = all.chain(of_lock_servers()).chain(of_blocks(life));
    all.chain(of_groups(life)).collect()
}

/// Each kind of message with a state, of an array that has got groups.
fn of_groups(life: Life) -> Vec<Frame> {
    let member = |id: u16| Member { address: format!("disk{id}.example:7100"), node: 300 };
    let group = |from, first| Group {
        from,
        first: DeviceId(first),
        members: (first..first + 3).map(member).collect(),
    };
    let added = vec![group(1 << 40, 300), group(1 << 41, 303)];
    let state = ArrayState { stripes: 1 << 42, ..ArrayState::new(9) }.with_groups(added);
    let call = Call { op: OpId { life, seq: 300 }, sibling: 1, step: 2 };
    let ballot = Ballot { round: 2, by: Some(life), change: 9 };
    let (stamp, epoch) = (Stamp { time: 1 << 60, host: 3 }, state.since);
    let ask = |action| Frame::Request(Request { call, stamp, epoch, action });
    let answer = |answer| Frame::Reply(Reply { call, waited: true, boot: 7, answer });
    let agreed = |agreed| answer(Answer::Agreed(Box::new(agreed)));
    let accepted = Some((ballot, state.clone()));
    vec![
        ask(Action::Install(Box::new(state.clone()))),
        ask(Action::Agree(Agree::Accept { ballot, state: Box::new(state.clone()) })),
        answer(Answer::Stale(Box::new(state.clone()))),
        agreed(Agreed::Promised { accepted, unsure: true }),
        agreed(Agreed::Chosen(state.clone())),
        Frame::Report(Report { state: state.clone(), ..Report::default() }),
        Frame::Attended(Attended { state: state.clone(), silent: 1 << 60 }),
        Frame::State(state),
    ]
}

/// As it is said.
fn said(frame: &Frame) -> Frame {
    frame.with_groups().unwrap_or_else(|| frame.clone())
}

/// The messages that agree on the array's state and report it.
fn of_state(life: Life) -> impl Iterator<Item = Frame> {
    let state = ArrayState::new(3);
    let state = state
        .changed(Change::LetIn(DeviceId(1), Term { number: 1 << 33, follows: 0, key: u64::MAX }))
        .unwrap()
        .unwrap();
    let state = state.changed(state.without(DeviceId(2))).unwrap().unwrap();
    let call = Call { op: OpId { life, seq: 300 }, sibling: 1, step: 2 };
    let ballot = Ballot { round: 2, by: Some(life), change: 9 };
    let asks = [
        Action::Install(Box::new(state.clone())),
        Action::Agree(Agree::Promise { epoch: state.epoch, ballot }),
        Action::Agree(Agree::Accept { ballot, state: Box::new(state.clone()) }),
    ];
    let agreed = |agreed| Answer::Agreed(Box::new(agreed));
    let answers = [
        Answer::Stale(Box::new(state.clone())),
        Answer::Behind(state.since),
        agreed(Agreed::Promised { accepted: Some((ballot, state.clone())), unsure: true }),
        agreed(Agreed::Accepted),
        agreed(Agreed::Outbid { ballot }),
        agreed(Agreed::Chosen(state.clone())),
        agreed(Agreed::Missing(state.epoch)),
    ];
    let (stamp, epoch) = (Stamp { time: 1 << 60, host: 3 }, state.since);
    let ask = move |action| Frame::Request(Request { call, stamp, epoch, action });
    let answer = move |answer| Frame::Reply(Reply { call, waited: true, boot: u64::MAX, answer });
    let news = [Frame::State(state)];
    asks.into_iter().map(ask).chain(answers.into_iter().map(answer)).chain(news)
}

/// The messages of lock servers to devices, and to each other.
fn of_lock_servers() -> [Frame; 6] {
    let serve = LockChange::Serve { after: 0, by: ServerId(0), log: 0, holder: u64::MAX };
    let state = ArrayState::new(3).changed(Change::Locks(serve)).unwrap().unwrap();
    let (term, number, record) = (1, 1 << 60, b"locks"[..].into());
    [
        Frame::Attend(None),
        Frame::Attend(Some(1 << 60)),
        Frame::Attended(Attended { state, silent: 1 << 60 }),
        Frame::Copy(CopyMessage::Whole { term, number, key: u64::MAX, record }),
        Frame::Copy(CopyMessage::More { term, number, record: b""[..].into() }),
        Frame::Copy(CopyMessage::Copied { term, number }),
    ]
}

/// The requests of hosts to devices, and their answers.
fn of_blocks(life: Life) -> impl Iterator<Item = Frame> {
    let stamp = Stamp { time: 1 << 60, host: 3 };
    let extent = Extent { start: 1 << 40, count: 2 };
    let header = Header {
        stamp,
        first: 4,
        last: 1 << 33,
        skipped: [DeviceId(9), DeviceId(300)].into_iter().collect(),
        ..Header::default()
    };
    let mark =
        Mark { index: 1, lost: true, lost_data: Units::default().with(3), content: Some(stamp) };
    let data = Bytes::from_static(b"blocks");
    let blocks = || Blocks { extent, data: data.clone(), header, marks: vec![mark] };
    let op = OpId { life, seq: 300 };
    let prepare = |past| Action::Prepare {
        read: Some(extent),
        write: None,
        repairs: false,
        starving: true,
        past,
    };
    let lock = |mode| Action::Lock {
        extent,
        mode,
        read: Some(extent),
        repairs: true,
        patience: 1 << 30,
        past: Past::Nobody,
    };
    let actions = [
        Action::Read { extent, repairs: true },
        Action::Write { blocks: blocks(), repairs: false },
        prepare(Past::Tries(vec![op])),
        prepare(Past::Life(life)),
        Action::Commit(blocks()),
        Action::Cancel,
        lock(Mode::Shared),
        lock(Mode::Exclusive),
        Action::WriteUnlock(blocks()),
        Action::Unlock,
        Action::Flush { newest: 1 << 60 },
        Action::Lease,
        Action::Fence { life },
        Action::Clear { life },
        Action::ListFences,
        Action::LearnFences { lives: vec![life] },
        Action::Repaired { stripe: 1 << 20, pass: op },
        Action::Settled,
    ];
    let content = |doubt| Content {
        data: data.clone(),
        flaws: vec![
            (0, Flaw::Lost),
            (1, Flaw::Unreadable(BlockError::Torn)),
            (2, Flaw::Unreadable(BlockError::Unreadable)),
        ],
        headers: vec![header],
        doubt,
        durable_to: 1 << 59,
        left: Box::new([life]),
    };
    let answers = [
        Answer::Content(content(Doubt::None)),
        Answer::Content(content(Doubt::Suspect)),
        Answer::Locked { seen: 7, content: Some(content(Doubt::Unsure)) },
        Answer::Done,
        Answer::Written,
        Answer::Rejected { seen: 7 },
        Answer::Overtaken { seen: 7 },
        Answer::Ahead { excess: 7, ahead: 8 },
        Answer::Denied,
        Answer::NotPrepared,
        Answer::Fenced,
        Answer::InFlight {
            in_flight: vec![(extent, stamp)],
            written: vec![(extent, header)],
            forgotten: 9,
            forgot: true,
        },
        Answer::Fences(vec![life]),
        Answer::Suspect { stripe: 300 },
        Answer::Starting { wait: 1 << 30 },
        Answer::Broken,
        Answer::Unwritable,
        Answer::Invalid,
    ];
    let call = Call { op, sibling: 1, step: 2 };
    let ask = move |action| Frame::Request(Request { call, stamp, epoch: Epoch(300), action });
    let answer = move |answer| Frame::Reply(Reply { call, waited: false, boot: 7, answer });
    actions.into_iter().map(ask).chain(answers.into_iter().map(answer))
}

/// All that hosts and the lock server say to each other.
fn of_locks(life: Life) -> impl Iterator<Item = Frame> {
    let op = OpId { life, seq: 300 };
    let part = PartId { op, index: 2 };
    let extent = Extent { start: 1 << 40, count: 5 };
    let range = LockRange { device: DeviceId(9), extent, mode: LockMode::Exclusive };
    let lock = |past| ServerRequest::Lock { op, ranges: vec![range; 3], past, repair: true };
    let asks = [
        ServerRequest::Register {
            incarnation: 7,
            held: vec![Held { part, mode: LockMode::Shared }],
            newest: 1 << 60,
        },
        lock(Past::Nobody),
        lock(Past::Tries(vec![op])),
        lock(Past::Life(life)),
        ServerRequest::Unlock { op, newest: 1 << 60 },
        ServerRequest::Relinquish { free: vec![part], shared: vec![part, part], newest: 0 },
        ServerRequest::Yield { parts: vec![part, part] },
        ServerRequest::Renew,
        ServerRequest::Fence { life },
        ServerRequest::Clear { life },
    ];
    let answers = [
        ServerReply::Welcome { incarnation: 7, lease: 1 << 32 },
        ServerReply::Granted { op, waited: true, newest: 1 << 60 },
        ServerReply::Unlocked { op },
        ServerReply::Callback { parts: vec![part], shared: true },
        ServerReply::Renewed,
        ServerReply::Fenced { life, ranges: vec![range] },
        ServerReply::Cleared { life },
        ServerReply::Refused { reason: "why".into() },
    ];
    asks.into_iter().map(Frame::Ask).chain(answers.into_iter().map(Frame::Answer))
}

#[test]
fn frames_come_back_as_they_were_and_never_too_early() {
    for frame in frames() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &said(&frame));
        assert_eq!(decode(&bytes, false), Ok(Some((frame, bytes.len()))));
        (0..bytes.len())
            .for_each(|cut| assert_eq!(decode::<Frame>(&bytes[..cut], false), Ok(None)));
    }
}

/// Processes of other releases read these bytes: a change of them needs a new version, in which the old ones stay
/// (docs/compatibility.md). For frames that are added on purpose, run this with `LOCKIFY_GOLDEN` set.
#[test]
fn frames_keep_their_bytes() {
    let hex = |frame: &Frame| {
        let mut bytes = Vec::new();
        encode(&mut bytes, &said(frame));
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
    };
    let now: String = frames().iter().map(hex).collect();
    if std::env::var_os("LOCKIFY_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/frame/golden.txt");
        std::fs::write(path, &now).unwrap();
        return;
    }
    let then = include_str!("golden.txt");
    for (frame, (now, then)) in frames().iter().zip(now.lines().zip(then.lines())) {
        assert_eq!(now, then, "{frame:?}");
    }
    assert_eq!(now, then);
}

#[test]
fn groups_that_belong_to_no_state_are_refused() {
    let with_groups = of_groups(Life { host: HostId(3), incarnation: 1 }).pop().unwrap();
    let Frame::Grouped(groups, inner) = said(&with_groups) else { panic!("{with_groups:?}") };
    let within = |frame: &Frame| {
        let inner = postcard::to_allocvec(frame).unwrap();
        Frame::Grouped(groups.clone(), inner.into()).received()
    };
    assert!(within(&Frame::Query).unwrap_err().contains("without a state"));
    assert!(within(&said(&with_groups)).unwrap_err().contains("twice"));
    let cut = inner.slice(..inner.len() - 1);
    assert!(Frame::Grouped(groups.clone(), cut).received().is_err());
}

/// Every version understands these bytes.
#[test]
fn heads_and_refusals_keep_their_bytes() {
    let mut all = Vec::new();
    encode_head::<Frame>(&mut all, Frame::SPOKEN.newest);
    encode(&mut all, &Frame::Refused("no".into()));
    assert_eq!(all, b"LOCKIFYA\x10\0\x04\0\0\0\0\x02no");
    assert_eq!(decode_head::<Frame>(&all), Ok(Some(Frame::SPOKEN.newest)));
    assert_eq!(decode_head::<Frame>(b"\x16\x03\x01"), Err(SpeechError::Tls));
    let other = decode_head::<Frame>(b"LOCKIFYR\x01\0").unwrap_err();
    assert_eq!(other.to_string(), "this is no process of an array: is the address right?");
}

#[test]
fn strangers_are_not_given_memory() {
    let length = (Frame::MAX_GREETING as u32 + 1).to_le_bytes();
    assert!(decode::<Frame>(&length, false).is_err());
    assert_eq!(decode::<Frame>(&length, true), Ok(None));
    assert!(decode::<Frame>(&(Frame::MAX_FRAME as u32 + 1).to_le_bytes(), true).is_err());
    let long = Frame::Refused("\u{7}ä".repeat(9999));
    let mut bytes = Vec::new();
    encode(&mut bytes, &long);
    let Ok(Some((Frame::Refused(text), _))) = decode(&bytes, false) else { panic!() };
    assert!(text.starts_with("\\u{7}ä\\u{7}ä") && text.len() <= MAX_TEXT);
}

/// Every single wrong byte, and every cut.
#[test]
fn noise_is_refused_without_a_panic() {
    for frame in frames() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &said(&frame));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut noise = bytes.clone();
                noise[at] ^= 1 << bit;
                if let Ok(Some((_, used))) = decode::<Frame>(&noise, false) {
                    assert!(used <= noise.len());
                }
            }
        }
    }
}
