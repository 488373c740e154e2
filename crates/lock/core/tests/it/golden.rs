//! The tables of the lock semantics, as text in `golden/`, compared with clients' views: on one
//! node, with a remote master, and with locks on several nodes.

use crate::common::place::{At, Place, Stage};
use lockify_core::*;

/// A table of `golden/`: its section's name, then rows of (row, column, cell).
struct Table {
    title: String,
    cells: Vec<(String, String, String)>,
}

/// Reads a golden file: sections in brackets, a line of columns, lines of rows, `#` comments.
fn tables(text: &str) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with('[') {
            let title = line.trim_matches(['[', ']']).to_string();
            tables.push(Table { title, cells: Vec::new() });
        } else if line.starts_with(' ') {
            columns = words;
        } else {
            if tables.is_empty() {
                tables.push(Table { title: String::new(), cells: Vec::new() });
            }
            assert_eq!(words.len(), columns.len() + 1, "{line}");
            let cells = columns.iter().zip(&words[1..]);
            let cells = cells.map(|(c, cell)| (words[0].into(), c.to_string(), cell.to_string()));
            tables.last_mut().unwrap().cells.extend(cells);
        }
    }
    assert!(tables.iter().all(|t| !t.cells.is_empty()));
    tables
}

fn mode(text: &str) -> Mode {
    text.parse().unwrap()
}

/// Flags by name among the words of a section's title.
fn flags(title: &str) -> LockFlags {
    title.split_whitespace().filter_map(LockFlags::from_name).collect()
}

/// The letter for the result of a call on `at`, given its request.
fn outcome(stage: &mut Stage, at: At, asked: Mode) -> String {
    let all = stage.completions(at);
    match &all[..] {
        [] => "W".to_string(),
        [c] => match (c.status, c.status_flags.contains(SbFlags::ALTMODE)) {
            (Status::Granted, false) if c.mode == Some(asked) => "G".into(),
            (Status::Granted, true) if c.mode == Some(Mode::PR) => "P".into(),
            (Status::Granted, true) if c.mode == Some(Mode::CW) => "C".into(),
            (Status::Again, false) => "A".into(),
            (Status::Deadlock, false) => "D".into(),
            other => format!("{other:?}"),
        },
        more => format!("{more:?}"),
    }
}

#[test]
fn compatibility() {
    let table = tables(include_str!("../golden/compatibility.txt")).remove(0);
    assert_eq!(table.cells.len(), 36);
    for (a, b, cell) in table.cells {
        assert_eq!(mode(&a).compatible(mode(&b)), cell == "y", "{a} {b}");
    }
}

/// docs/design/semantics.md 1: D down, M between CW and PR, neither up nor down.
#[test]
fn directions() {
    let table = tables(include_str!("../golden/direction.txt")).remove(0);
    assert_eq!(table.cells.len(), 36);
    for (from, to, cell) in table.cells {
        let (from, to) = (mode(&from), mode(&to));
        assert_eq!(from.is_down(to), cell == "D", "{from} {to}");
        assert_eq!(from.is_middle(to), cell == "M", "{from} {to}");
    }
}

#[test]
fn request_against_a_holder() {
    let tables = tables(include_str!("../golden/request.txt"));
    assert_eq!(tables.len(), 7);
    for place in Place::ALL {
        for table in &tables {
            assert_eq!(table.cells.len(), 36);
            for (holder, asked, expected) in &table.cells {
                let mut stage = Stage::new(place);
                stage.hold(mode(holder));
                let at = stage.request(mode(asked), flags(&table.title));
                let got = outcome(&mut stage, at, mode(asked));
                assert_eq!(&got, expected, "{place:?} {} {holder} {asked}", table.title);
            }
        }
    }
}

#[test]
fn conversion_against_others() {
    let tables = tables(include_str!("../golden/convert.txt"));
    assert_eq!(tables.len(), 14);
    for place in Place::ALL {
        for table in &tables {
            for (from, to, expected) in &table.cells {
                let (mut stage, at) = convert_stage(place, &table.title, mode(from));
                let got = match stage.convert(at, mode(to), flags(&table.title)) {
                    Ok(()) => outcome(&mut stage, at, mode(to)),
                    Err(Error::Invalid(_)) => "E".into(),
                    Err(other) => format!("{other:?}"),
                };
                assert_eq!(&got, expected, "{place:?} {} {from} {to}", table.title);
                if ["A", "D", "E", "W"].contains(&expected.as_str()) {
                    let locks = stage.info().locks;
                    let kept = locks.iter().find(|l| (l.node, l.lock) == (at.node, at.lock));
                    assert_eq!(kept.unwrap().granted, Some(mode(from)), "{place:?} {from} {to}");
                }
            }
        }
    }
}

/// The surroundings that a section's title asks for, and the lock to convert.
fn convert_stage(place: Place, title: &str, from: Mode) -> (Stage, At) {
    let mut stage = Stage::new(place);
    match title.split_whitespace().next() {
        Some("alone") => {}
        Some("beside") => {
            stage.hold(mode(title.split_whitespace().nth(1).unwrap()));
        }
        Some("behind") => {
            stage.hold(Mode::CR);
            let blocked = stage.hold(Mode::NL);
            let at = stage.hold(from);
            stage.convert(blocked, Mode::EX, LockFlags::empty()).unwrap();
            stage.waits(blocked);
            return (stage, at);
        }
        other => panic!("{other:?} in {title}"),
    }
    let at = stage.hold(from);
    (stage, at)
}

const RESOURCE: [u8; 32] = [7; 32];
const CALLER: [u8; 32] = [9; 32];

/// How the block was before the transition under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    /// Never written.
    Absent,
    Valid,
    Invalid,
}

/// A resource whose block is as said, kept by a lock in NL.
fn lvb_stage(place: Place, before: Before) -> Stage {
    let mut stage = Stage::new(place);
    let keeper = stage.hold(Mode::EX);
    let write = |stage: &mut Stage, to, flags| {
        stage.convert_value(keeper, to, flags, Some(&RESOURCE)).unwrap();
        stage.granted(keeper);
    };
    if before != Before::Absent {
        write(&mut stage, Mode::EX, LockFlags::VALBLK);
    }
    if before == Before::Invalid {
        write(&mut stage, Mode::EX, LockFlags::IVVALBLK);
    }
    write(&mut stage, Mode::NL, LockFlags::empty());
    let invalid = before == Before::Invalid;
    let value = (before != Before::Absent).then(|| (RESOURCE.to_vec(), 1));
    assert_eq!((stage.info().lvb, stage.info().lvb_invalid), (value, invalid));
    stage
}

/// Takes the row's lock through the column's transition; the completion.
fn transition(
    stage: &mut Stage,
    row: &str,
    column: &str,
    flags: LockFlags,
) -> (Completion, NodeId) {
    let lvb = flags.contains(LockFlags::VALBLK).then_some(&CALLER[..]);
    if row == "no" {
        let at = stage.call(mode(column), flags, |a| a.lvb = lvb.map(Into::into)).unwrap();
        stage.cluster.run();
        return (stage.completion(at), at.node);
    }
    let at = stage.hold(mode(row));
    if column == "unlock" {
        let flags = UnlockFlags::from_bits_truncate(flags.bits());
        stage.cluster.unlock_with(at.node, at.lock, flags, lvb).unwrap();
        stage.cluster.run();
    } else {
        stage.convert_value(at, mode(column), flags, lvb).unwrap();
    }
    (stage.completion(at), at.node)
}

/// Calls `check` for every cell of the table, in every place.
fn every_lvb_cell(check: impl Fn(Place, &str, &str, &str)) {
    let table = tables(include_str!("../golden/lvb.txt")).remove(0);
    assert_eq!(table.cells.len(), 49);
    for place in Place::ALL {
        for (row, column, cell) in &table.cells {
            if cell != "." {
                check(place, row, column, cell);
            }
        }
    }
}

/// With VALBLK on a valid block: R reads, W writes, - does neither.
#[test]
fn lvb_with_valblk() {
    every_lvb_cell(|place, row, column, cell| {
        let mut stage = lvb_stage(place, Before::Valid);
        let (done, _) = transition(&mut stage, row, column, LockFlags::VALBLK);
        let context = format!("{place:?} {row} {column} {done:?}");
        let read = (cell == "R").then(|| RESOURCE.into());
        assert_eq!(
            (done.ended.lvb, done.ended.status_flags),
            (read, SbFlags::empty()),
            "{context}"
        );
        let value = if cell == "W" { (CALLER.to_vec(), 2) } else { (RESOURCE.to_vec(), 1) };
        assert_eq!(stage.info().lvb, Some(value), "{context}");
        assert!(!stage.info().lvb_invalid, "{context}");
    });
}

/// Without VALBLK nothing moves, whatever the table says.
#[test]
fn lvb_without_valblk() {
    every_lvb_cell(|place, row, column, _| {
        let mut stage = lvb_stage(place, Before::Valid);
        let (done, _) = transition(&mut stage, row, column, LockFlags::empty());
        assert_eq!(
            (done.ended.lvb, done.ended.status_flags),
            (None, SbFlags::empty()),
            "{place:?} {row} {column}"
        );
        assert_eq!(stage.info().lvb, Some((RESOURCE.to_vec(), 1)));
        assert!(!stage.info().lvb_invalid);
    });
}

/// R of a block that was never written leaves the caller's buffer alone; W makes one.
#[test]
fn lvb_of_a_resource_without_one() {
    every_lvb_cell(|place, row, column, cell| {
        let mut stage = lvb_stage(place, Before::Absent);
        let (done, _) = transition(&mut stage, row, column, LockFlags::VALBLK);
        assert_eq!(
            (done.ended.lvb, done.ended.status_flags),
            (None, SbFlags::empty()),
            "{place:?} {row} {column}"
        );
        let written = (cell == "W").then(|| (CALLER.to_vec(), 1));
        assert_eq!(stage.info().lvb, written, "{place:?} {row} {column}");
    });
}

/// IVVALBLK, with or without VALBLK: invalid where it would be written, and nothing is copied.
#[test]
fn lvb_with_ivvalblk() {
    for flags in [LockFlags::IVVALBLK, LockFlags::IVVALBLK | LockFlags::VALBLK] {
        every_lvb_cell(|place, row, column, cell| {
            if row == "no" {
                return; // IVVALBLK is for conversions and unlocks only.
            }
            let mut stage = lvb_stage(place, Before::Valid);
            let (done, _) = transition(&mut stage, row, column, flags);
            let context = format!("{place:?} {row} {column} {flags:?} {done:?}");
            let reads = cell == "R" && flags.contains(LockFlags::VALBLK);
            assert_eq!(done.lvb, reads.then(|| RESOURCE.into()), "{context}");
            assert_eq!(done.status_flags, SbFlags::empty(), "{context}");
            assert_eq!(stage.info().lvb, Some((RESOURCE.to_vec(), 1)), "{context}");
            assert_eq!(stage.info().lvb_invalid, cell == "W", "{context}");
        });
    }
}

/// While the block is invalid, readers with VALBLK get it with a warning, '-' grants the warning
/// alone; only a writer with VALBLK makes it valid again.
#[test]
fn lvb_that_is_invalid() {
    for valblk in [false, true] {
        let flags = if valblk { LockFlags::VALBLK } else { LockFlags::empty() };
        every_lvb_cell(|place, row, column, cell| {
            let mut stage = lvb_stage(place, Before::Invalid);
            let (done, node) = transition(&mut stage, row, column, flags);
            let context = format!("{place:?} {row} {column} {flags:?} {done:?}");
            // Down-conversions are granted by their owner, who does not know of it unless it is
            // the master (docs/design/semantics.md 4); from PR to CW is not down.
            let asked = node == stage.master() || (row, column) == ("PR", "CW");
            let warned = match cell {
                "R" => valblk,
                "-" => asked && column != "unlock",
                _ => false,
            };
            assert_eq!(done.status_flags.contains(SbFlags::VALNOTVALID), warned, "{context}");
            let read = (cell == "R" && valblk).then(|| RESOURCE.into());
            assert_eq!(done.lvb, read, "{context}");
            assert_eq!(stage.info().lvb_invalid, !(cell == "W" && valblk), "{context}");
        });
    }
}

/// The resource and its block vanish with the last lock, NL included.
#[test]
fn lvb_goes_with_the_last_lock() {
    for place in Place::ALL {
        for before in [Before::Valid, Before::Invalid] {
            let mut stage = lvb_stage(place, before);
            let [keeper] = stage.queue(Queue::Granted)[..] else { panic!("one keeper") };
            stage.unlock(keeper, UnlockFlags::empty()).unwrap();
            let (done, _) = transition(&mut stage, "no", "PR", LockFlags::VALBLK);
            assert_eq!(
                (done.ended.lvb, done.ended.status_flags),
                (None, SbFlags::empty()),
                "{place:?}"
            );
            assert_eq!((stage.info().lvb, stage.info().lvb_invalid), (None, false), "{place:?}");
        }
    }
}

fn notice(notices: Vec<Mode>) -> String {
    match notices[..] {
        [] => "-".into(),
        [mode] => mode.to_string(),
        _ => format!("{notices:?}"),
    }
}

#[test]
fn blocking_notices() {
    let tables = tables(include_str!("../golden/notice.txt"));
    assert_eq!(tables.len(), 6);
    for place in Place::ALL {
        for table in &tables {
            let words: Vec<&str> = table.title.split_whitespace().collect();
            for (row, column, expected) in &table.cells {
                let mut stage = Stage::new(place);
                let held = stage.hold(mode(words.get(1).unwrap_or(&row.as_str())));
                if words[0] == "second" {
                    let first = stage.request(mode(row), LockFlags::empty());
                    stage.waits(first);
                    assert_eq!(stage.notices(held), [mode(row)]);
                }
                stage.request(mode(column), LockFlags::empty());
                let got = notice(stage.notices(held));
                assert_eq!(&got, expected, "{place:?} {} {row} {column}", table.title);
            }
        }
    }
}

/// A refused NOQUEUE call is silent, unless NOQUEUEBAST makes it loud, for converters too.
#[test]
fn blocking_notices_of_refused_calls() {
    let [table, ..] = &tables(include_str!("../golden/notice.txt"))[..] else { panic!("a table") };
    for place in Place::ALL {
        for (row, column, expected) in &table.cells {
            for loud in [LockFlags::empty(), LockFlags::NOQUEUEBAST] {
                let mut stage = Stage::new(place);
                let held = stage.hold(mode(row));
                stage.request(mode(column), LockFlags::NOQUEUE | loud);
                let got = notice(stage.notices(held));
                let expected = if loud.is_empty() { "-" } else { expected };
                assert_eq!(got, expected, "{place:?} {row} {column} {loud:?}");
            }
        }
    }
}
