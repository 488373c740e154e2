//! Reading and writing: bad input, full disks, and files as a whole.

use std::fs;
use std::io::{self, Write};

use lockify_check::{
    Checker, Event, Flags, Kind, LONGEST_LINE, Lvb, Member, Mode, Options, ReadError, Reader,
    SbFlags, Sink, WriteError, Writer, check_file,
};
use proptest::prelude::*;

const REQUEST: &str = r#"{"t":5,"node":1,"lock":1,"resource":"a","event":"request","mode":"EX"}"#;
const GRANT: &str = r#"{"t":6,"node":1,"lock":1,"event":"grant","mode":"EX"}"#;

fn read(bytes: impl AsRef<[u8]>) -> Result<Vec<Event>, ReadError> {
    Reader::new(bytes.as_ref()).collect()
}

/// The error that this input gives, after a good line.
fn error(second_line: impl AsRef<[u8]>) -> ReadError {
    let input = [REQUEST.as_bytes(), b"\n", second_line.as_ref()].concat();
    let error = read(input).unwrap_err();
    assert_eq!(error.line(), Some(2), "{error}");
    error
}

#[test]
fn the_documented_example_is_read() {
    let line = r#"{"t":7,"node":1,"incarnation":1,"client":"c7","lock":42,"resource":"name","event":"grant","mode":"EX","flags":["notify"],"status":0,"token":9}"#;
    let event = &read(line).unwrap()[0];
    assert_eq!((event.token, event.kind, event.mode), (Some(9), Kind::Grant, Some(Mode::EX)));
    assert_eq!(event.flags, Flags::NOTIFY);
    assert_eq!(event.resource.as_ref().unwrap().as_bytes(), b"name");
}

#[test]
fn empty_lines_and_a_missing_last_newline_are_no_error() {
    assert_eq!(read(format!("\n{REQUEST}\n\r\n{GRANT}")).unwrap().len(), 2);
    assert_eq!(read("").unwrap().len(), 0);
}

#[test]
fn bad_lines_say_what_is_wrong_and_where() {
    let cases = [
        (r#"{"t":6,"node":1,"event":"grnat"}"#, "unknown variant `grnat`"),
        (r#"{"t":"6","node":1,"event":"crash"}"#, "invalid type: string \"6\", expected u64"),
        (r#"{"t":6,"node":-1,"event":"crash"}"#, "expected u32"),
        (r#"{"t":6,"node":1,"event":"crash","tokn":1}"#, "unknown field `tokn`"),
        (r#"{"t":6,"event":"begin","flags":["nofly"]}"#, "unknown flag `nofly`"),
        (r#"{"t":6,"event":"begin","sb_flags":["x"]}"#, "unknown sb_flag `x`"),
        (r#"{"t":6,"event":"begin","mode":"XX"}"#, "unknown variant `XX`"),
        (r#"{"t":6,"event":"begin","lvb":"0g"}"#, "pairs of hexadecimal digits"),
        (r#"{"t":6,"event":"begin","lvb":"012"}"#, "pairs of hexadecimal digits"),
        (r#"{"t":6,"event":"begin","resource":"%z"}"#, "write `%25` for a `%`"),
        (r#"{"t":6,"node":1,"event":"grant","mode":"EX"}"#, "a `grant` event needs `lock`"),
        (r#"{"t":6,"event":"crash"}"#, "a `crash` event needs `node`"),
        (r#"{"t":4,"event":"end"}"#, "sort the history by `t`"),
        (r#"[1,2]"#, "line 2, byte"),
        (r#"{"t":6,"event":"end"} {"t":7,"event":"end"}"#, "trailing characters"),
        ("not json", "line 2, byte"),
    ];
    for (line, expect) in cases {
        let text = error(format!("{line}\n")).to_string();
        assert!(text.contains(expect) && text.starts_with("line 2"), "{line}: {text}");
        assert!(!text.contains("at line 1"), "two positions: {text}");
    }
}

#[test]
fn a_last_line_that_breaks_off_is_said_to_at_every_byte() {
    let line = r#"{"t":6,"node":1,"lock":1,"event":"grant","mode":"EX","note":"ä"}"#.as_bytes();
    for cut in 1..line.len() {
        let e = error(&line[..cut]);
        assert!(matches!(e, ReadError::Truncated { .. }), "cut at {cut}: {e}");
        assert!(e.to_string().contains("remove this line"), "{e}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_located() {
    let e = error(b"{\"t\":6,\"event\":\"end\",\"note\":\"\xff\"}\n");
    assert!(matches!(e, ReadError::NotUtf8 { byte: 30, .. }), "{e}");
    assert!(e.to_string().contains("%XX"), "{e}");
}

#[test]
fn a_huge_line_is_refused_without_reading_it_all() {
    let e = error(vec![b'x'; 3 * LONGEST_LINE]);
    assert!(matches!(e, ReadError::TooLong { .. }), "{e}");
    // The endless line of a device.
    let mut reader = Reader::new(io::BufReader::new(io::repeat(b'{')));
    assert!(matches!(reader.read(), Err(ReadError::TooLong { line: 1 })));
    let deep = format!("{}\n", "[".repeat(LONGEST_LINE / 2));
    assert!(matches!(error(deep), ReadError::NoEvent { .. }));
}

#[test]
fn the_iterator_ends_after_an_error() {
    let mut reader = Reader::new(&b"x\nx\nx\n"[..]);
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn files_have_the_documented_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let second = GRANT.replace("\"lock\":1", "\"lock\":2,\"resource\":\"a\"");
    for (text, code, word) in [
        (format!("{REQUEST}\n{GRANT}\n"), 0, "clean"),
        (format!("{REQUEST}\n{GRANT}\n{second}\n"), 1, "violated"),
        (format!("{REQUEST}\n{{"), 2, "unreadable"),
    ] {
        fs::write(&path, text).unwrap();
        let outcome = check_file(&path);
        assert_eq!(outcome.exit_code(), code, "{}", outcome.text());
        let json: serde_json::Value = serde_json::from_str(&outcome.json()).unwrap();
        assert_eq!(json["outcome"], word);
        match code {
            1 => {
                assert!(outcome.text().contains("VIOLATED compatible_grants, lines 2, 3: \"a\""));
                assert_eq!(json["report"]["violations"][0]["lines"], serde_json::json!([2, 3]));
            }
            2 => {
                assert_eq!(json["line"], 2);
                assert!(outcome.text().contains("line 2: the last line breaks off"));
            }
            _ => assert!(outcome.text().ends_with("clean\n")),
        }
    }
    let absent = check_file(dir.path().join("absent"));
    assert_eq!(absent.exit_code(), 2);
    assert!(absent.text().contains("cannot open the history"), "{}", absent.text());
    let directory = check_file(dir.path());
    assert_eq!(directory.exit_code(), 2, "{}", directory.text());
}

#[test]
fn what_is_written_is_read() {
    let event = Event {
        incarnation: Some(3),
        client: Some("c".into()),
        flags: Flags::VALBLK | Flags::FORCE,
        status: Some(-11),
        token: Some(u64::MAX),
        provisional: true,
        claim_id: Some(4),
        master: Some(2),
        gained: Some(false),
        waits: Some(true),
        view: Some(8),
        members: Some(vec![Member { node: 1, incarnation: None }]),
        lvb: Some(Lvb::new([0, 255])),
        sb_flags: SbFlags::VALNOTVALID,
        freed: true,
        ordered: Some(false),
        writes: Some(vec!["claim".into()]),
        note: Some("\"\n".into()),
        ..Event::new(1, 2, Kind::Request).lock(1).resource(b"\xff%").mode(Mode::CW).op(5)
    };
    let mut writer = Writer::new(Vec::new());
    writer.write(&event).unwrap();
    writer.end(9).unwrap();
    assert_eq!(writer.written(), 2);
    let read = read(writer.into_inner().unwrap()).unwrap();
    assert_eq!(read, [event, Event::anywhere(9, Kind::End)]);
}

#[test]
fn an_incomplete_event_is_not_written() {
    let mut writer = Writer::new(Vec::new());
    let error = writer.write(&Event::new(1, 1, Kind::Grant)).unwrap_err();
    assert_eq!(error.to_string(), "cannot write an event: a `grant` event needs `lock`");
    assert!(writer.into_inner().unwrap().is_empty());
}

/// A disk with room for so many bytes.
#[derive(Default)]
struct Disk {
    content: Vec<u8>,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(self.room - self.content.len());
        self.content.extend_from_slice(&buf[..n]);
        if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for &mut Disk {
    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.content.truncate(len as usize);
        Ok(())
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_whole_lines() {
    let event = Event::new(1, 1, Kind::Crash);
    let line = serde_json::to_string(&event).unwrap().len() + 1;
    for room in 0..4 * line {
        let mut disk = Disk { content: Vec::new(), room };
        let mut writer = Writer::new(&mut disk);
        // One flush that succeeds if there is room, and one that cannot.
        let first = writer.write(&event).and_then(|()| writer.flush());
        assert_eq!(first.is_ok(), room >= line);
        let rest = (0..3).try_for_each(|_| writer.write(&event)).and_then(|()| writer.flush());
        let error = rest.unwrap_err();
        assert!(matches!(error, WriteError::DiskFull { .. }), "{error}");
        assert!(error.to_string().contains("free some space"), "{error}");
        let written = writer.written();
        drop(writer);
        assert_eq!(written, (room / line) as u64);
        assert_eq!(read(&disk.content).unwrap().len() as u64, written);
    }
}

#[test]
fn a_device_without_room_is_named() {
    let Ok(mut writer) = Writer::create("/dev/full") else {
        return; // Not everywhere there is such a device.
    };
    writer.write(&Event::new(1, 1, Kind::Crash)).unwrap();
    let error = writer.flush().unwrap_err();
    assert!(matches!(error, WriteError::DiskFull { written: 0 }), "{error}");
}

#[test]
fn a_file_that_cannot_be_created_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Writer::create(dir.path().join("no/where")).unwrap_err();
    assert!(error.to_string().contains("cannot create the history"), "{error}");
}

#[test]
fn memory_is_bounded_by_what_is_live() {
    let mut checker = Checker::new(Options { remembered_tokens: 100, ..Options::whole() });
    for i in 0..20_000u64 {
        let event = |kind| Event::new(i, 1, kind).lock(i).op(1);
        let name = i.to_string();
        let claim = Event::new(i, 1, Kind::Claim).resource(&name).claim(i);
        checker.observe(&event(Kind::Request).resource(&name).mode(Mode::EX)).unwrap();
        checker.observe(&claim).unwrap();
        checker.observe(&Event { kind: Kind::Master, ..claim.clone() }).unwrap();
        let grant = Event { token: Some(i + 1), ..event(Kind::Grant).mode(Mode::EX) };
        checker.observe(&grant).unwrap();
        checker.observe(&Event { kind: Kind::Confirm, ..claim.clone() }).unwrap();
        checker.observe(&event(Kind::Unlock)).unwrap();
        let done = Event { status: Some(lockify_check::EUNLOCK), ..event(Kind::Complete) };
        checker.observe(&done).unwrap();
        let gone = Event { kind: Kind::Master, gained: Some(false), ..claim };
        checker.observe(&gone).unwrap();
    }
    // All tables print; what two rules keep are up to 200 tokens each, not 20,000 of anything.
    let text = format!("{checker:?}");
    assert!(text.len() < 60_000, "{} bytes", text.len());
    let report = checker.finish();
    assert!(report.is_clean(), "{report}");
    assert!(report.counts.tokens_forgotten >= 19_000, "{report}");
}

#[test]
fn a_malformed_event_is_reported_by_an_online_checker() {
    let mut checker = Checker::new(Options::whole());
    let violation = checker.observe(&Event::new(1, 1, Kind::Grant)).unwrap_err();
    assert_eq!(violation.rule, "well_formed");
}

#[test]
fn a_checker_keeps_the_first_violations_and_counts_the_rest() {
    let mut checker = Checker::new(Options { most_violations: 2, ..Options::whole() });
    for i in 0..5 {
        checker.observe(&Event::new(i, 1, Kind::Grant)).unwrap_err();
    }
    let report = checker.finish();
    assert_eq!((report.violated, report.violations.len()), (5, 2));
    assert!(report.to_string().contains("… and 3 more violations"));
}

/// Events whose fields are drawn at random, from few values so that they meet.
fn any_event() -> impl Strategy<Value = Event> {
    let kinds: Vec<Kind> = [
        "begin", "end", "request", "grant", "complete", "convert", "unlock", "cancel", "bast",
        "lost", "settled", "gone", "claim", "confirm", "refuse", "merge", "conflict", "drop",
        "resend", "master", "dir", "barrier", "view", "recover", "crash", "leave", "fault",
    ]
    .iter()
    .map(|name| serde_json::from_value(serde_json::json!(name)).unwrap())
    .collect();
    let modes = proptest::sample::select(Mode::ALL.to_vec());
    let what = (proptest::sample::select(kinds), modes, 0..3u32, 0..3u64, 0..3u8);
    let how = (any::<u32>(), 0..3u64, proptest::option::of(0..3u64), any::<[bool; 4]>(), 0..8u8);
    (what, how).prop_map(|((kind, mode, node, lock, name), (flags, small, op, b, sb))| Event {
        flags: Flags::from_bits_truncate(flags),
        sb_flags: SbFlags::from_bits_truncate(sb),
        client: (b[0] || kind == Kind::Gone).then(|| "c".to_owned()),
        status: Some(if b[1] { lockify_check::EUNLOCK } else { 11 }),
        token: op,
        op,
        claim_id: Some(small),
        master: Some(node),
        gained: Some(b[2]),
        waits: Some(b[3]),
        view: op,
        members: b[0].then(|| vec![Member { node, incarnation: op }]),
        lvb: b[1].then(|| Lvb::new([name])),
        provisional: b[2],
        incarnation: op,
        ..Event::new(0, node, kind).lock(lock).resource([name]).mode(mode)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_input_makes_the_reader_panic(bytes: Vec<u8>) {
        let _ = read(bytes);
    }

    #[test]
    fn no_damaged_line_makes_the_reader_panic(at in 0..REQUEST.len(), byte: u8, cut in 0..REQUEST.len()) {
        let mut line = REQUEST.as_bytes().to_vec();
        line[at] = byte;
        let _ = read(&line);
        let _ = read(&line[..cut]);
    }

    #[test]
    fn no_history_makes_the_rules_panic(events in proptest::collection::vec(any_event(), 0..200)) {
        let mut checker = Checker::new(Options::whole());
        for event in &events {
            let _ = checker.observe(event);
        }
        let report = checker.finish();
        prop_assert!(report.violated as usize >= report.violations.len());
        let _ = (report.to_string(), report.json());
    }

    #[test]
    fn every_event_survives_its_line(event in any_event()) {
        let line = serde_json::to_string(&event).unwrap();
        prop_assert_eq!(&read(line).unwrap(), &[event]);
    }
}
