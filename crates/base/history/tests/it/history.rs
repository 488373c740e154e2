//! Reading and writing: bad input, full disks, and files as a whole.

use std::io::{self, Write};

use lockify_history::{
    Event, Flags, Kind, LONGEST_LINE, Lvb, Member, Mode, ReadError, Reader, SbFlags, Sink,
    WriteError, Writer,
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
fn a_full_disk_takes_back_nothing_that_another_writer_wrote() {
    let event = Event::new(1, 1, Kind::Crash);
    let line = serde_json::to_string(&event).unwrap().len() + 1;
    for room in 2 * line..5 * line {
        let mut disk = Disk { content: Vec::new(), room };
        let mut first = Writer::new(&mut disk);
        (0..2).try_for_each(|_| first.write(&event)).and_then(|()| first.flush()).unwrap();
        drop(first);
        let mut second = Writer::behind(&mut disk, 2 * line as u64);
        (0..3).try_for_each(|_| second.write(&event)).and_then(|()| second.flush()).unwrap_err();
        drop(second);
        assert_eq!(read(&disk.content).unwrap().len(), room / line);
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
}
