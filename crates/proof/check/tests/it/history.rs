//! The checker as a whole: files, memory, and events that mean nothing.

use std::fs;

use lockify_check::{Checker, Options, check_file};
use lockify_history::{EUNLOCK, Event, Flags, Kind, Lvb, Member, Mode, Reader, SbFlags};
use proptest::prelude::*;

const REQUEST: &str = r#"{"t":5,"node":1,"lock":1,"resource":"a","event":"request","mode":"EX"}"#;
const GRANT: &str = r#"{"t":6,"node":1,"lock":1,"event":"grant","mode":"EX"}"#;

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
        let done = Event { status: Some(EUNLOCK), ..event(Kind::Complete) };
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
        status: Some(if b[1] { EUNLOCK } else { 11 }),
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
        let read: Result<Vec<Event>, _> = Reader::new(line.as_bytes()).collect();
        prop_assert_eq!(&read.unwrap(), &[event]);
    }
}
