//! Histories of arrays: each rule has one that keeps it and one that breaks it.

use lockify_check::array::{Counts, Report, check_reader};
use lockify_check::{Judged, Outcome, check_any};
use lockify_history::array::{Event, Kind, Life, Reader, Writer};

/// Three devices with two stripes of one block per unit. Stripe 0: blocks 0 and 1 of the array on devices 0 and 1, parity on 2.
/// Stripe 1: parity on device 1, blocks 2 and 3 on devices 2 and 0.
fn begin(scheme: &str) -> String {
    format!(
        r#"{{"t":0,"event":"begin","array":{{"redundancy":"raid5","data":2,"groups":1,"unit":1,"block_size":1,"stripes":2}},"scheme":"{scheme}"}}"#
    )
}

/// A history in short: words become events.
///
/// `w HOST OP START TAG..`, `r HOST OP START COUNT`, `try HOST OP SEQ TIME`, `ok HOST OP TAG..`, `no HOST OP`,
/// `R DEVICE HOST SEQ BLOCK`, `W DEVICE HOST SEQ BLOCK TIME`, `D` (dropped) the same; `crash HOST`, `down DEVICE`,
/// `fenced DEVICE HOST`, `dump DEVICE HEX..`, `left COUNT`, `end`.
fn history(scheme: &str, lines: &[impl AsRef<str>]) -> String {
    let mut text = begin(scheme) + "\n";
    for (t, line) in (1..).zip(lines) {
        let words: Vec<&str> = line.as_ref().split(' ').collect();
        let n = |i: usize| -> u64 { words[i].parse().unwrap() };
        let list = |from: usize| -> Vec<u64> { (from..words.len()).map(n).collect() };
        let by = |i: usize| Life { host: n(i) as u32, incarnation: 1 };
        let stamp = |i: usize, host: u64| Some((n(i), host as u32));
        let kind = match words[0] {
            "w" => Kind::Write { by: by(1), op: n(2), start: n(3), tags: list(4), partial: vec![] },
            "r" => Kind::Read { by: by(1), op: n(2), start: n(3), count: n(4) },
            "flush" => Kind::Flush { by: by(1), op: n(2) },
            "repair" => Kind::Repair { by: by(1), op: n(2), note: None },
            "try" => Kind::Try { by: by(1), op: n(2), seq: n(3), stamp: stamp(4, n(1)) },
            "ok" => Kind::Done { by: by(1), op: n(2), tags: list(3), error: None },
            "no" => {
                Kind::Done { by: by(1), op: n(2), tags: vec![], error: Some("lost".to_owned()) }
            }
            "R" => {
                Kind::DevRead { device: n(1) as u16, by: by(2), seq: n(3), start: n(4), count: 1 }
            }
            "W" | "D" => Kind::DevWrite {
                device: n(1) as u16,
                by: by(2),
                seq: n(3),
                start: n(4),
                count: 1,
                stamp: stamp(5, n(2)),
                dropped: words[0] == "D",
            },
            "crash" => Kind::Crash { by: by(1) },
            "down" => Kind::Down { device: n(1) as u16 },
            "fenced" => Kind::Fenced { device: n(1) as u16, by: by(2) },
            "dump" => Kind::Dump {
                device: n(1) as u16,
                start: 0,
                blocks: words[2..].iter().map(ToString::to_string).collect(),
                lost: vec![],
            },
            "left" => {
                Kind::Left { at: "device 1".to_owned(), what: "prewrites".to_owned(), count: n(1) }
            }
            "end" => Kind::End {},
            other => panic!("{other}?"),
        };
        text += &serde_json::to_string(&Event::new(t, kind)).unwrap();
        text.push('\n');
    }
    text
}

fn judge_text(text: &str) -> Report {
    match check_reader(Reader::new(text.as_bytes())) {
        Outcome::Checked(report) => report,
        Outcome::Unreadable { error, .. } => panic!("{error}\n{text}"),
    }
}

fn judge(scheme: &str, lines: &[impl AsRef<str>]) -> Report {
    judge_text(&history(scheme, lines))
}

fn rules(report: &Report) -> Vec<&'static str> {
    let mut rules: Vec<_> = report.violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

const TSO: &str = "timestamp-ordering";
const LOCKS: &str = "device-locking";

/// Host 1 writes stripe 0, host 2 reads both blocks of it.
const WRITE_THEN_READ: [&str; 12] = [
    "w 1 1 0 7 8",
    "try 1 1 1 100",
    "W 0 1 1 0 100",
    "W 1 1 1 0 100",
    "W 2 1 1 0 100",
    "ok 1 1",
    "r 2 1 0 2",
    "try 2 1 1 200",
    "R 0 2 1 0",
    "R 1 2 1 0",
    "ok 2 1 7 8",
    "end",
];

/// The same with something else in it.
fn write_then_read_but(old: &str, new: &str) -> Vec<String> {
    WRITE_THEN_READ.map(|line| line.replace(old, new)).into()
}

/// Lines, separated by commas, and more of them.
fn lines(begin: &str, then: &[&str]) -> Vec<String> {
    begin.split(", ").chain(then.iter().copied()).map(str::to_owned).collect()
}

/// Host 2 reads both blocks when host 1 has written one of them: by a try at `time`. Goes on so.
fn half_seen_at(time: u64, then: &[&str]) -> Vec<String> {
    let begin = format!(
        "w 1 1 0 7 8, r 2 1 0 2, try 1 1 1 100, try 2 1 1 {time}, W 0 1 1 0 100, R 0 2 1 0, R 1 2 1 0, W 1 1 1 0 100"
    );
    lines(&begin, then)
}

/// Two writes, of which the later one comes first at device 1; `last` is the other one's event there. `then` follows.
fn crossed(last: &str, then: &[&str]) -> Vec<String> {
    let begin = format!(
        "w 1 1 0 7 8, w 2 1 0 9 10, try 1 1 1 100, try 2 1 1 101, W 0 1 1 0 100, W 0 2 1 0 101, W 1 2 1 0 101, {last}, \
         ok 1 1, ok 2 1"
    );
    lines(&begin, then)
}

#[test]
fn a_write_and_a_read_after_it_are_clean() {
    for scheme in [TSO, LOCKS] {
        let report = judge(scheme, &WRITE_THEN_READ);
        assert!(report.is_clean(), "{report}");
        assert_eq!((report.counts.writes, report.counts.reads), (1, 1));
        assert_eq!(report.counts.sectors_read, 2);
    }
    let report = judge(LOCKS, &WRITE_THEN_READ);
    let off: Vec<_> = report.off.iter().map(|off| off.rule).collect();
    assert_eq!(off, ["timestamp_order", "parity"]);
}

#[test]
fn two_writes_in_different_orders_at_two_devices_have_no_serial_order() {
    let report = judge(LOCKS, &crossed("W 1 1 1 0 100", &[]));
    assert_eq!(rules(&report), ["serializable"], "{report}");
    assert_eq!(report.violations[0].lines, [6, 7, 8, 9]);
}

#[test]
fn a_read_of_half_a_write_has_no_serial_order() {
    let report = judge(LOCKS, &half_seen_at(101, &["ok 1 1", "ok 2 1 7 0"]));
    assert_eq!(rules(&report), ["serializable"], "{report}");
}

#[test]
fn half_of_a_write_that_is_never_answered_may_be_seen() {
    let report = judge(LOCKS, &half_seen_at(101, &["crash 1", "ok 2 1 7 0", "end"]));
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.unanswered, 1);
}

#[test]
fn a_given_up_try_reads_nothing_and_binds_nobody() {
    // The first try of the read saw half of the write; nobody got to know.
    let again = ["ok 1 1", "try 2 1 2 110", "R 0 2 2 0", "R 1 2 2 0", "ok 2 1 7 8", "end"];
    let report = judge(TSO, &half_seen_at(90, &again));
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.restarts, 1);
}

#[test]
fn timestamps_that_devices_do_not_follow_are_found() {
    let lines = write_then_read_but("try 2 1 1 200", "try 2 1 1 50");
    assert!(judge(LOCKS, &lines).is_clean());
    let report = judge(TSO, &lines);
    assert_eq!(rules(&report), ["timestamp_order"], "{report}");
}

/// Crossed writes, and a read after them: at device 1 the older one is dropped, or not.
fn overtaken(last: &str) -> Report {
    let read = ["r 1 2 0 2", "try 1 2 2 200", "R 0 1 2 0", "R 1 1 2 0", "ok 1 2 9 10"];
    judge(TSO, &crossed(last, &read))
}

#[test]
fn a_write_is_dropped_where_a_newer_one_is() {
    let report = overtaken("D 1 1 1 0 100");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.dropped, 1);
    assert_eq!(rules(&overtaken("W 1 1 1 0 100")), ["serializable", "timestamp_order"]);
}

#[test]
fn a_write_is_not_dropped_where_nothing_newer_is() {
    let report = judge(TSO, &["w 1 1 0 7", "try 1 1 1 100", "D 0 1 1 0 100", "ok 1 1"]);
    assert_eq!(rules(&report), ["timestamp_order"], "{report}");
}

/// Host 1 reads block 1 at device 1, and host 2 writes it, after that by timestamps and by locks. The write does not
/// reach device 1.
fn missed(then: &[&str]) -> Vec<String> {
    let begin = "w 2 1 1 7, try 2 1 1 100, W 1 2 1 0 100, W 2 2 1 0 100, ok 2 1, r 1 1 1 1, w 2 2 1 8, try 2 2 2 300, \
         try 1 1 1 200, R 0 2 2 0, R 1 1 1 0, W 2 2 2 0 300";
    lines(begin, then)
}

#[test]
fn a_write_that_did_not_get_to_a_device_follows_what_was_read_there() {
    for scheme in [TSO, LOCKS] {
        let report = judge(scheme, &missed(&["ok 1 1 7", "ok 2 2", "end"]));
        assert!(report.is_clean(), "{scheme}: {report}");
    }
    // That is no excuse for who reads later.
    let old = ["ok 2 2", "r 1 2 1 1", "try 1 2 2 400", "R 1 1 2 0", "ok 1 2 7", "ok 1 1 7", "end"];
    for scheme in [TSO, LOCKS] {
        let report = judge(scheme, &missed(&old));
        assert!(rules(&report).contains(&"durability"), "{scheme}: {report}");
    }
}

#[test]
fn a_write_that_did_not_get_to_a_device_is_not_read_in_half() {
    // Block 0 as it was after, block 1 as it was before.
    let half = "w 1 1 0 7 8, r 2 1 0 2, try 1 1 1 100, try 2 1 1 200, W 0 1 1 0 100, W 2 1 1 0 100, R 0 2 1 0, R 1 2 1 0, W 1 3 1 1 90";
    let report = judge(LOCKS, &lines(half, &["ok 1 1", "ok 2 1 7 0", "end"]));
    assert_eq!(rules(&report), ["serializable"], "{report}");
    let report = judge(TSO, &lines(half, &["ok 1 1", "ok 2 1 7 0", "end"]));
    assert_eq!(rules(&report), ["reads"], "{report}");
}

#[test]
fn what_a_device_reads_for_a_request_that_came_twice_goes_to_nobody() {
    let twice = |last: &'static str| {
        let begin = "r 2 1 0 2, try 2 1 1 100, R 0 2 1 0, R 1 2 1 0";
        let write = ["w 1 1 0 7 8", "try 1 1 1 200", "W 0 1 1 0 200", "R 0 2 1 0", last];
        let end = ["W 1 1 1 0 200", "W 2 1 1 0 200", "ok 1 1", "end"];
        (begin.to_owned(), [write.as_slice(), &end].concat())
    };
    let (begin, then) = twice("left 0");
    let report = judge(LOCKS, &lines(&(begin.clone() + ", ok 2 1 0 0"), &then));
    assert!(report.is_clean(), "{report}");
    // Before the answer it may be the answer's value.
    let (_, then) = twice("ok 2 1 7 0");
    let report = judge(LOCKS, &lines(&begin, &then));
    assert_eq!(rules(&report), ["serializable"], "{report}");
}

#[test]
fn a_drop_has_its_place_behind_what_was_lost_with_the_device() {
    // The write at 500 was under way when the device went down. Hosts that take up earlier writes finish those.
    let begin = "w 1 1 0 5 5, w 2 1 0 7 7, w 3 1 0 9 9, w 4 1 0 3 3, try 1 1 1 500, try 2 1 1 300, try 3 1 1 400, try 4 1 1 600, W 0 1 1 0 500, down 0, \
                 W 0 2 1 0 300, W 0 4 1 0 600, D 0 3 1 0 400, D 0 1 1 0 500, ok 1 1, ok 2 1, ok 3 1, ok 4 1, end";
    let report = judge(TSO, &lines(begin, &[]));
    assert!(report.is_clean(), "{report}");
}

#[test]
fn a_read_returns_the_last_write_before_it() {
    // The devices were read in a good order, but the answer differs from their content.
    let lines = write_then_read_but("ok 2 1 7 8", "ok 2 1 7 0");
    let report = judge(LOCKS, &lines);
    assert_eq!(rules(&report), ["reads", "durability"], "{report}");
}

#[test]
fn what_nobody_wrote_is_not_read() {
    let lines = write_then_read_but("ok 2 1 7 8", "ok 2 1 8 7");
    let report = judge(LOCKS, &lines);
    assert_eq!(rules(&report), ["reads"], "{report}");
    assert!(report.violations[0].what.contains("nobody had written"), "{report}");
}

#[test]
fn what_was_seen_of_a_crashed_write_stays() {
    let seen = |third: &str| {
        let last = format!("ok 2 3 {third}");
        judge(
            LOCKS,
            &[
                "w 1 1 0 5",
                "ok 1 1",
                "w 1 2 0 7",
                "r 2 1 0 1",
                "ok 2 1 5",
                "r 2 2 0 1",
                "ok 2 2 7",
                "crash 1",
                "r 2 3 0 1",
                &last,
                "end",
            ],
        )
    };
    assert!(seen("7").is_clean(), "{}", seen("7"));
    assert_eq!(rules(&seen("5")), ["oscillation"], "{}", seen("5"));
}

#[test]
fn a_crashed_write_that_came_and_went_between_two_sights_of_the_old_is_found() {
    let report = judge(
        LOCKS,
        &[
            "w 1 1 0 5",
            "ok 1 1",
            "r 3 1 0 1",
            "ok 3 1 5",
            "w 1 2 0 7",
            "r 2 1 0 1",
            "ok 2 1 7",
            "crash 1",
            "r 2 2 0 1",
            "ok 2 2 5",
        ],
    );
    assert_eq!(rules(&report), ["oscillation"], "{report}");
}

#[test]
fn an_answered_write_is_not_undone_by_a_crash() {
    let read = |tag: &str| {
        let answer = format!("ok 2 1 {tag}");
        judge(
            LOCKS,
            &["w 1 1 0 5", "ok 1 1", "w 1 2 0 7", "ok 1 2", "down 0", "r 2 1 0 1", &answer],
        )
    };
    assert!(read("7").is_clean());
    assert_eq!(rules(&read("5")), ["durability"], "{}", read("5"));
    assert_eq!(rules(&read("0")), ["durability"], "{}", read("0"));
}

#[test]
fn a_write_under_way_when_its_device_went_down_may_be_there_or_not() {
    for tag in [0, 7] {
        let answer = format!("ok 2 1 {tag}");
        let report = judge(
            LOCKS,
            &[
                "w 1 1 0 7",
                "try 1 1 1 100",
                "W 0 1 1 0 100",
                "down 0",
                "no 1 1",
                "r 2 1 0 1",
                "try 2 1 1 200",
                "R 0 2 1 0",
                &answer,
            ],
        );
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.failed, 1);
    }
}

#[test]
fn units_of_a_stripe_make_zero() {
    let report = judge(LOCKS, &["dump 0 05 00", "dump 1 03 00", "dump 2 06 00", "end"]);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.columns, 2);
    let report = judge(LOCKS, &["dump 0 05 00", "dump 1 03 01", "dump 2 06 00", "end"]);
    assert_eq!(rules(&report), ["parity"], "{report}");
    assert!(report.violations[0].what.contains("stripe 1"), "{report}");
    let report = judge(LOCKS, &["dump 0 05 00", "dump 1 03 01", "end"]);
    assert_eq!((report.violated, report.counts.columns_not_judged), (0, 2));
    let lost = history(LOCKS, &["dump 0 05 00", "dump 1 03 00", "dump 2 07 00", "end"]);
    let lost = lost.replacen(r#""blocks":["05","00"]"#, r#""blocks":["05","00"],"lost":[0]"#, 1);
    assert_eq!(judge_text(&lost).counts.columns_lost, 1);
    assert!(judge_text(&lost).is_clean());
}

/// Stripe 0: the parities on devices 3 and 0. Stripe 1: on 2 and 3.
#[test]
fn each_of_two_parities_fits_by_itself() {
    let of = |dumps: &[&str]| {
        let text = history(LOCKS, dumps).replacen("raid5", "raid6", 1);
        judge_text(&text)
    };
    // 5 + 3 = 6, and 5 + 2 * 3 = 3; 0x80 + 0x40 = 0xc0, and 0x80 + 2 * 0x40 = 0; 1 + 2 * 0x80 = 0x1c.
    let fitting = ["dump 0 03 80", "dump 1 05 40", "dump 2 03 c0", "dump 3 06 00", "end"];
    let report = of(&fitting);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.columns, 2);
    let reduced = ["dump 0 1c 00", "dump 1 01 00", "dump 2 80 00", "dump 3 81 00", "end"];
    assert!(of(&reduced).is_clean(), "{}", of(&reduced));
    for (device, wrong, stripe, what) in [
        (0, "dump 0 02 80", 0, ": the second parity does not fit"),
        (3, "dump 3 07 00", 0, ": parity does not fit"),
        (2, "dump 2 03 c1", 1, ": parity does not fit"),
        (3, "dump 3 06 01", 1, ": the second parity does not fit"),
    ] {
        let mut dumps = fitting;
        dumps[device] = wrong;
        let report = of(&dumps);
        assert_eq!(rules(&report), ["parity"], "{wrong}: {report}");
        let found = &report.violations[0].what;
        assert!(found.contains(&format!("stripe {stripe}")) && found.ends_with(what), "{found}");
    }
    // A wrong data block fits neither.
    let report = of(&["dump 0 03 80", "dump 1 04 40", "dump 2 03 c0", "dump 3 06 00", "end"]);
    assert_eq!((rules(&report), report.violations.len()), (vec!["parity"], 2), "{report}");
}

#[test]
fn a_fenced_life_writes_nothing() {
    let report = judge(LOCKS, &["fenced 1 1", "W 0 1 1 0 100"]);
    assert!(report.is_clean(), "it is not fenced at that device");
    let report = judge(LOCKS, &["fenced 0 1", "W 0 1 1 0 100"]);
    assert_eq!(rules(&report), ["fencing"], "{report}");
}

#[test]
fn every_operation_is_answered_and_nothing_is_left() {
    assert!(judge(LOCKS, &["r 1 1 0 1"]).is_clean(), "the history breaks off");
    assert_eq!(rules(&judge(LOCKS, &["r 1 1 0 1", "end"])), ["liveness"]);
    assert!(judge(LOCKS, &["r 1 1 0 1", "crash 1", "end"]).is_clean());
    assert!(judge(LOCKS, &["left 0", "end"]).is_clean());
    assert_eq!(rules(&judge(LOCKS, &["left 1", "end"])), ["liveness"]);
}

#[test]
fn lines_that_make_no_sense_are_reported_and_harm_nothing() {
    for lines in [
        &["ok 1 1"][..],
        &["r 1 1 3 2"],
        &["r 1 1 0 0"],
        &["r 1 1 18446744073709551615 2"],
        &["r 1 1 0 2", "ok 1 1 7"],
        &["r 1 1 0 1", "r 1 1 0 1"],
        &["repair 1 1", "ok 1 1", "ok 1 1"],
        &["try 1 1 1 100"],
        &["R 3 1 1 0"],
        &["R 0 1 1 2"],
        &["R 0 1 1 18446744073709551615"],
        &["dump 0 0x"],
        &["dump 0 123"],
    ] {
        let report = judge(LOCKS, lines);
        assert!(rules(&report).contains(&"well_formed"), "{lines:?}: {report}");
    }
}

#[test]
fn a_file_is_recognised_by_its_first_line() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = dir.path().join("history.jsonl");
        std::fs::write(&file, text).unwrap();
        check_any(file)
    };
    let clean = check(&history(TSO, &WRITE_THEN_READ));
    assert!(matches!(clean, Judged::Array(_)));
    assert_eq!(clean.exit_code(), 0, "{}", clean.text());
    assert!(clean.json().contains(r#""outcome":"clean""#), "{}", clean.json());
    assert_eq!(check(&history(TSO, &["r 1 1 0 1", "end"])).exit_code(), 1);
    let cut = history(TSO, &WRITE_THEN_READ);
    assert_eq!(check(&cut[..cut.len() - 4]).exit_code(), 2);
    let locks = check(r#"{"t":0,"event":"begin"}"#);
    assert!(matches!(locks, Judged::Locks(_)));
    assert_eq!(locks.exit_code(), 0);
    assert_eq!(check("[]").exit_code(), 2);
    let none = check_any(dir.path().join("none"));
    assert_eq!(none.exit_code(), 2);
    assert!(none.text().contains("cannot open the history"), "{}", none.text());
}

#[test]
fn a_field_that_an_event_does_not_have_is_refused() {
    for line in [
        r#"{"t":1,"event":"crash","host":1,"incarnation":1,"when":3}"#,
        r#"{"t":1,"event":"crash","host":1}"#,
        r#"{"t":1,"event":"gone","host":1,"incarnation":1}"#,
        r#"{"t":1,"event":"end","host":1}"#,
        r#"{"event":"end"}"#,
    ] {
        let text = format!("{}\n{line}\n", begin(TSO));
        match check_reader(Reader::new(text.as_bytes())) {
            Outcome::Unreadable { error, .. } => assert_eq!(error.line(), Some(2), "{error}"),
            Outcome::Checked(report) => panic!("{line}: {report}"),
        }
    }
    let nothing = begin(TSO).replace(r#""data":2"#, r#""data":0"#);
    let outcome = check_reader(Reader::new(nothing.as_bytes()));
    assert_eq!(outcome.exit_code(), 2);
    assert!(outcome.text().contains("can be 0"), "{}", outcome.text());
}

#[test]
fn what_is_written_is_read_back() {
    let text = history(TSO, &WRITE_THEN_READ);
    let events: Vec<Event> = Reader::new(text.as_bytes()).map(Result::unwrap).collect();
    let mut writer = Writer::new(Vec::new());
    events.iter().for_each(|event| writer.write(event).unwrap());
    assert_eq!(writer.into_inner().unwrap(), text.as_bytes());
    let report = judge_text(&text);
    assert_eq!(report.counts, Counts { events: 13, ..report.counts });
}

/// A history of an array in which only flushes make writes durable.
fn volatile(lines: &[String]) -> String {
    let scheme = "\"device-locking\"";
    history(LOCKS, lines).replacen(scheme, &format!("{scheme},\"volatile\":true"), 1)
}

/// Host 1 writes block 0 twice. Devices go down, and host 2 then reads the first value. `flush` comes before that.
fn undone(flush: &[&str], downs: &[&str]) -> Vec<&'static str> {
    let writes = "w 1 1 0 7, ok 1 1, w 1 2 0 8, ok 1 2";
    let mut all = lines(writes, flush);
    all.extend(downs.iter().map(ToString::to_string));
    all.extend(["r 2 1 0 1", "ok 2 1 7", "end"].map(str::to_owned));
    rules(&judge_text(&volatile(&all)))
}

const FLUSHED: [&str; 2] = ["flush 1 3", "ok 1 3"];

#[test]
fn only_flushed_writes_outlive_more_lost_caches_than_redundancy_replaces() {
    let two = ["down 0", "down 2"];
    assert_eq!(undone(&[], &two), [] as [&str; 0]);
    assert_eq!(undone(&FLUSHED, &two), ["durability"]);
    // One lost cache is made good by the others, flushed or not.
    assert_eq!(undone(&[], &["down 0"]), ["durability"]);
    assert_eq!(undone(&[], &["down 0", "down 0"]), ["durability"]);
    assert_eq!(undone(&[], &[]), ["durability"]);
    // A flush that failed, that has no answer, or that another host asked for, promises nothing.
    assert_eq!(undone(&["flush 1 3", "no 1 3"], &two), [] as [&str; 0]);
    assert_eq!(undone(&["flush 3 1", "ok 3 1"], &two), [] as [&str; 0]);
    // Nor does one that was asked for before the write was answered.
    let early = "w 1 1 0 7, ok 1 1, w 1 2 0 8, flush 1 3, ok 1 2, ok 1 3";
    let all = lines(early, &["down 0", "down 2", "r 2 1 0 1", "ok 2 1 7", "end"]);
    assert_eq!(rules(&judge_text(&volatile(&all))), [] as [&str; 0]);
    // Without caches nothing may be undone.
    let strict = history(LOCKS, &all);
    assert_eq!(rules(&judge_text(&strict)), ["durability"]);
}

/// Host 2 asks for block 0 and waits. A host reads the second value meanwhile, devices go down, and host 2 gets the first value.
fn undone_for_one_that_waited(flush: &[&str], downs: &[&str]) -> Vec<&'static str> {
    let writes = "w 1 1 0 7, ok 1 1, w 1 2 0 8, ok 1 2, r 2 1 0 1, r 3 1 0 1, ok 3 1 8";
    let mut all = lines(writes, flush);
    all.extend(downs.iter().map(ToString::to_string));
    all.extend(["ok 2 1 7", "end"].map(str::to_owned));
    rules(&judge_text(&volatile(&all)))
}

#[test]
fn a_read_may_wait_over_a_loss_of_caches() {
    let two = ["down 0", "down 2"];
    assert_eq!(undone_for_one_that_waited(&[], &two), [] as [&str; 0]);
    assert_eq!(undone_for_one_that_waited(&FLUSHED, &two), ["durability"]);
    assert_eq!(undone_for_one_that_waited(&[], &["down 0"]), ["durability"]);
}

/// Host 1 writes the first sector of block 0, and host 2 the second one. Host 1 reads the block.
const TWO_SECTORS: [&str; 19] = [
    "w 1 1 0 7",
    "try 1 1 1 100",
    "R 0 1 1 0",
    "R 2 1 1 0",
    "W 0 1 1 0 100",
    "W 2 1 1 0 100",
    "ok 1 1",
    "w 2 1 1 8",
    "try 2 1 1 200",
    "R 0 2 1 0",
    "R 2 2 1 0",
    "W 0 2 1 0 200",
    "W 2 2 1 0 200",
    "ok 2 1",
    "r 1 2 0 2",
    "try 1 2 2 300",
    "R 0 1 2 0",
    "ok 1 2 7 8",
    "end",
];

/// A history of an array whose blocks have two sectors.
fn of_sectors(lines: &[&str]) -> String {
    history(TSO, lines).replace(r#""stripes":2"#, r#""stripes":2,"sectors":2"#)
}

#[test]
fn writes_of_different_sectors_of_a_block_both_stay() {
    let report = judge_text(&of_sectors(&TWO_SECTORS));
    assert_eq!(rules(&report), [""; 0], "{report}");
    assert_eq!((report.counts.sectors_read, report.counts.values), (2, 2));
    // The second write put back what it had read too early.
    let lost = TWO_SECTORS.map(|line| if line == "ok 1 2 7 8" { "ok 1 2 0 8" } else { line });
    let report = judge_text(&of_sectors(&lost));
    assert_eq!(rules(&report), ["reads", "durability"], "{report}");
    assert!(report.violations[0].what.contains("block 0, sector 0"), "{report}");
}

/// Also if nobody reads the block afterwards.
#[test]
fn two_writes_of_sectors_that_read_the_same_block_are_not_serializable() {
    let mut early = TWO_SECTORS.to_vec();
    // Host 2 reads before host 1 writes.
    early.splice(2..2, ["w 2 1 1 8", "try 2 1 1 200", "R 0 2 1 0", "R 2 2 1 0"]);
    early.drain(11..15);
    early.retain(|line| !["r 1 2 0 2", "try 1 2 2 300", "R 0 1 2 0", "ok 1 2 7 8"].contains(line));
    let report = judge_text(&of_sectors(&early));
    assert!(rules(&report).contains(&"serializable"), "{report}");
}

/// The value of a sector that was written in part is not known. Other sectors are judged, and so is the order.
#[test]
fn sectors_that_are_written_in_part_have_any_value() {
    let lost = TWO_SECTORS.map(|line| if line == "ok 1 2 7 8" { "ok 1 2 9 8" } else { line });
    let text = of_sectors(&lost);
    assert_eq!(rules(&judge_text(&text)), ["reads"]);
    let partial = text.replace(r#""tags":[7]"#, r#""tags":[7],"partial":[0]"#);
    assert_ne!(text, partial);
    let report = judge_text(&partial);
    assert_eq!(rules(&report), [""; 0], "{report}");
    assert_eq!(report.counts.sectors_read, 1);
    let wrong = partial.replace(r#""tags":[9,8]"#, r#""tags":[9,6]"#);
    assert_eq!(rules(&judge_text(&wrong)), ["reads"]);
}

/// Host 1 writes all of block 0, and then again, and dies with that write under way. Host 2 reads the block.
fn read_after_cut_write(between: &[&str], answer: &str) -> Report {
    let mut lines = vec!["w 1 1 0 3 4", "ok 1 1", "w 1 2 0 7 8"];
    lines.extend(between);
    lines.extend(["crash 1", "r 2 1 0 2", answer]);
    judge_text(&of_sectors(&lines))
}

#[test]
fn a_block_is_old_or_new_and_no_mix() {
    for whole in ["ok 2 1 3 4", "ok 2 1 7 8"] {
        assert_eq!(rules(&read_after_cut_write(&[], whole)), [""; 0], "{whole}");
    }
    for mix in ["ok 2 1 3 8", "ok 2 1 7 4", "ok 2 1 7 0", "ok 2 1 0 8"] {
        let report = read_after_cut_write(&[], mix);
        assert!(rules(&report).contains(&"reads"), "{mix}: {report}");
        assert!(report.violations[0].what.contains("beside a part"), "{report}");
    }
    // A write of one sector may have come after the other write, unless it was answered before.
    assert_eq!(rules(&read_after_cut_write(&["w 3 1 1 9"], "ok 2 1 7 9")), [""; 0]);
    assert_eq!(rules(&read_after_cut_write(&["w 3 1 1 9", "ok 3 1"], "ok 2 1 7 9")), [""; 0]);
    let early = ["w 3 1 1 9", "ok 3 1", "w 1 2 0 7 8", "crash 1", "r 2 1 0 2", "ok 2 1 7 9"];
    assert_eq!(rules(&judge_text(&of_sectors(&early))), ["reads"]);
}
