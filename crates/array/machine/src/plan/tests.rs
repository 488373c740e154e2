use super::*;
use crate::{Condition, Redundancy};

fn raid5() -> Layout {
    Layout {
        redundancy: Redundancy::Raid5,
        data: 4,
        groups: 1,
        unit: 8,
        block_size: 16,
        stripes: 10,
        added: Default::default(),
    }
}

fn mirror() -> Layout {
    Layout { redundancy: Redundancy::Mirror, data: 1, ..raid5() }
}

fn span(start: u64, count: u64) -> Span {
    Span { start, count }
}

fn without(layout: &Layout, devices: &[DeviceId]) -> ArrayState {
    let mut state = ArrayState::new(layout.devices());
    for device in devices {
        state.devices[usize::from(device.0)] = Condition::Failed;
    }
    state
}

fn ios(plan: &Plan) -> (usize, usize) {
    let reads = plan.accesses.iter().filter(|a| a.read.is_some()).count();
    (reads, plan.accesses.iter().filter(|a| a.write.is_some()).count())
}

fn plan(units: u64, rules: &WriteRules) -> Plan {
    let layout = raid5();
    write(&layout, &without(&layout, &[]), span(0, units * 8), rules).unwrap()
}

#[test]
fn ios_of_whole_units_are_those_of_the_table() {
    let reconstruct = WriteRules::default();
    let delta = WriteRules { delta_at_half: true, ..WriteRules::default() };
    assert_eq!(ios(&plan(1, &reconstruct)), (2, 2));
    assert_eq!(ios(&plan(2, &delta)), (3, 3));
    assert_eq!(ios(&plan(2, &reconstruct)), (2, 3));
    assert_eq!(ios(&plan(3, &reconstruct)), (1, 4));
    assert_eq!(ios(&plan(4, &reconstruct)), (0, 5));
    let layout = raid5();
    for m in 1..=4 {
        let read = read(&layout, &without(&layout, &[]), span(0, m * 8)).unwrap();
        assert_eq!(ios(&read), (m as usize, 0));
    }
}

#[test]
fn methods_are_those_of_the_table() {
    let rules = WriteRules::default();
    let delta = WriteRules { delta_at_half: true, ..WriteRules::default() };
    assert_eq!(plan(1, &rules).stripes[0].method, Method::Delta);
    assert_eq!(plan(2, &rules).stripes[0].method, Method::Sum);
    assert_eq!(plan(2, &delta).stripes[0].method, Method::Delta);
    assert_eq!(plan(3, &delta).stripes[0].method, Method::Sum);
    assert_eq!(plan(4, &delta).stripes[0].method, Method::Sum);
}

#[test]
fn a_mirror_is_written_without_reading_whatever_the_switch() {
    let layout = mirror();
    for delta_at_half in [false, true] {
        let rules = WriteRules { delta_at_half, ..WriteRules::default() };
        let plan = write(&layout, &without(&layout, &[]), span(3, 2), &rules).unwrap();
        assert_eq!(ios(&plan), (0, 2));
        assert!(plan.accesses.iter().all(|a| a.write == Some(3..5)));
    }
}

#[test]
fn a_partial_unit_touches_only_its_columns() {
    let layout = raid5();
    let state = without(&layout, &[]);
    let one = write(&layout, &state, span(2, 3), &WriteRules::default()).unwrap();
    for access in &one.accesses {
        assert_eq!((access.read.clone(), access.write.clone()), (Some(2..5), Some(2..5)));
    }
    // The end of one unit and the start of the next, reconstructed. Their rests are read, and so are the two other
    // units.
    let two = write(&layout, &state, span(6, 4), &WriteRules::default()).unwrap();
    let of = |unit| two.accesses.iter().find(|a| a.unit == unit).unwrap();
    assert_eq!(of(Unit::Data(0)).read, Some(0..6));
    assert_eq!(of(Unit::Data(0)).write, Some(6..8));
    assert_eq!(of(Unit::Data(1)).read, Some(2..8));
    assert_eq!(of(Unit::Data(1)).write, Some(0..2));
    assert_eq!(of(Unit::Data(2)).read, Some(0..8));
    assert_eq!(of(Unit::Data(2)).write, None);
    assert_eq!(of(Unit::Parity).write, Some(0..8));
    assert_eq!(of(Unit::Parity).read, None);
}

/// The rules of a write whose first or last block is partial.
fn partial(partial_start: bool, partial_end: bool) -> WriteRules {
    WriteRules { partial_start, partial_end, ..WriteRules::default() }
}

#[test]
fn a_block_that_is_written_in_part_is_read() {
    let layout = raid5();
    let whole = without(&layout, &[]);
    let read_of = |plan: &Plan, unit| {
        plan.accesses.iter().find(|a| a.unit == unit).and_then(|a| a.read.clone())
    };
    // A read-modify-write reads it anyway.
    let one = write(&layout, &whole, span(2, 1), &partial(true, false)).unwrap();
    assert_eq!((one.stripes[0].method, ios(&one)), (Method::Delta, (2, 2)));
    // A large write reads the partial blocks only.
    let large = write(&layout, &whole, span(0, 32), &partial(true, true)).unwrap();
    assert_eq!((large.stripes[0].method, ios(&large)), (Method::Sum, (2, 5)));
    assert_eq!(read_of(&large, Unit::Data(0)), Some(0..1));
    assert_eq!(read_of(&large, Unit::Data(3)), Some(7..8));
    // Of a mirror, one copy.
    let copies = mirror();
    let state = without(&copies, &[]);
    for rules in [partial(true, false), partial(false, true), partial(true, true)] {
        let plan = write(&copies, &state, span(3, 1), &rules).unwrap();
        assert_eq!(ios(&plan), (1, 2), "{rules:?}");
        assert_eq!(read_of(&plan, Unit::Data(0)), Some(3..4));
    }
    let ends = write(&copies, &state, span(3, 4), &partial(true, true)).unwrap();
    assert_eq!(read_of(&ends, Unit::Data(0)), Some(3..7));
    // Without parity's device, and without the block's own.
    let bare = without(&layout, &[layout.parity(0)]);
    let plan = write(&layout, &bare, span(2, 1), &partial(true, false)).unwrap();
    assert_eq!((plan.stripes[0].method, ios(&plan)), (Method::NoParity, (1, 1)));
    let missing = without(&layout, &[layout.data(0, 1)]);
    let plan = write(&layout, &missing, span(8, 1), &partial(false, true)).unwrap();
    assert_eq!((plan.stripes[0].method, ios(&plan)), (Method::SumMissing(1), (4, 1)));
    // Parity that does not fit does not tell what was there.
    let unfit = WriteRules { parity_unfit: BTreeSet::from([0]), ..partial(true, false) };
    let lost = write(&layout, &missing, span(8, 8), &unfit);
    assert_eq!(lost, Err(OpError::Lost { block: layout.logical(0, 1) }));
}

#[test]
fn an_operation_over_stripes_is_one_plan() {
    let layout = raid5();
    let plan =
        write(&layout, &without(&layout, &[]), span(24, 48), &WriteRules::default()).unwrap();
    let methods: Vec<_> = plan.stripes.iter().map(|s| s.method).collect();
    assert_eq!(methods, [Method::Delta, Method::Sum, Method::Delta]);
    let parts: Vec<_> = plan.stripes.iter().map(|s| s.accesses.clone()).collect();
    assert_eq!(parts, [0..2, 2..7, 7..9]);
}

#[test]
fn a_missing_unit_is_read_from_all_others() {
    let layout = raid5();
    let state = without(&layout, &[layout.data(0, 1)]);
    // Units 0 and 1, each in part.
    let plan = read(&layout, &state, span(6, 4)).unwrap();
    assert_eq!(plan.stripes[0].method, Method::ReadMissing(1));
    let of = |unit| plan.accesses.iter().find(|a| a.unit == unit).unwrap().read.clone();
    assert_eq!(of(Unit::Data(0)), Some(0..8));
    assert_eq!(of(Unit::Data(2)), Some(0..2));
    assert_eq!(of(Unit::Parity), Some(0..2));
    assert_eq!(ios(&plan), (4, 0));
    // Units that are not missing are read as before.
    let plan = read(&layout, &state, span(16, 8)).unwrap();
    assert_eq!((plan.stripes[0].method, ios(&plan)), (Method::Read, (1, 0)));
}

#[test]
fn a_write_to_a_missing_unit_reads_the_untouched_ones() {
    let layout = raid5();
    let state = without(&layout, &[layout.data(0, 1)]);
    let rules = WriteRules::default();
    for (units, expected) in [(1, (3, 1)), (2, (2, 2)), (3, (1, 3))] {
        let plan = write(&layout, &state, span(8, units * 8), &rules).unwrap();
        assert_eq!(plan.stripes[0].method, Method::Sum);
        assert_eq!(ios(&plan), expected, "{units} units");
        assert!(plan.stripes[0].skipped.devices().eq([layout.data(0, 1)]));
    }
    // Units 1 and 2, of 1 only the end: its old bytes are the sum of all others, parity included.
    let plan = write(&layout, &state, span(12, 12), &rules).unwrap();
    assert_eq!(plan.stripes[0].method, Method::SumMissing(1));
    assert_eq!(ios(&plan), (4, 2));
    assert!(plan.accesses.iter().all(|a| a.read == Some(0..8)));
}

#[test]
fn a_write_beside_a_missing_unit_is_always_a_read_modify_write() {
    let layout = raid5();
    let state = without(&layout, &[layout.data(0, 3)]);
    for units in 1..=3 {
        let plan = write(&layout, &state, span(0, units * 8), &WriteRules::default()).unwrap();
        assert_eq!(plan.stripes[0].method, Method::Delta);
        let count = units as usize + 1;
        assert_eq!(ios(&plan), (count, count));
    }
}

#[test]
fn without_parity_only_data_is_written() {
    let layout = raid5();
    let state = without(&layout, &[layout.parity(0)]);
    for units in 1..=4 {
        let plan = write(&layout, &state, span(0, units * 8), &WriteRules::default()).unwrap();
        assert_eq!(plan.stripes[0].method, Method::NoParity);
        assert_eq!(ios(&plan), (0, units as usize));
        assert!(plan.stripes[0].skipped.devices().eq([layout.parity(0)]));
    }
}

#[test]
fn half_a_mirror_is_enough() {
    let layout = mirror();
    for gone in [layout.data(0, 0), layout.parity(0)] {
        let state = without(&layout, &[gone]);
        let plan = write(&layout, &state, span(2, 3), &WriteRules::default()).unwrap();
        assert_eq!(ios(&plan), (0, 1));
        assert_ne!(plan.accesses[0].device, gone);
        let plan = read(&layout, &state, span(2, 3)).unwrap();
        assert_eq!(ios(&plan), (1, 0));
        assert_ne!(plan.accesses[0].device, gone);
    }
}

#[test]
fn what_two_missing_units_leave() {
    let layout = raid5();
    let state = without(&layout, &[layout.data(0, 0), layout.data(0, 1)]);
    assert!(matches!(read(&layout, &state, span(0, 1)), Err(OpError::Unavailable(_))));
    assert!(read(&layout, &state, span(16, 16)).is_ok());
    let rules = WriteRules::default();
    assert!(matches!(write(&layout, &state, span(16, 1), &rules), Err(OpError::Unavailable(_))));
}

#[test]
fn a_stripe_that_is_rebuilt_is_whole() {
    let layout = raid5();
    let mut state = ArrayState::new(layout.devices());
    state.devices[usize::from(layout.data(0, 0).0)] = Condition::Rebuilding { done: 1 };
    assert_eq!(ios(&read(&layout, &state, span(0, 8)).unwrap()), (1, 0));
    let second = (0..4).find(|u| layout.data(1, *u) == layout.data(0, 0)).unwrap();
    let plan = read(&layout, &state, span(layout.logical(1, second), 8)).unwrap();
    assert_eq!(plan.stripes[0].method, Method::ReadMissing(second));
}

#[test]
fn unfit_parity_is_not_built_upon() {
    let layout = raid5();
    let rules = WriteRules {
        parity_unfit: BTreeSet::from([0]),
        delta_at_half: true,
        ..WriteRules::default()
    };
    let whole = without(&layout, &[]);
    let plan = write(&layout, &whole, span(2, 3), &rules).unwrap();
    assert_eq!(plan.stripes[0].method, Method::Sum);
    assert!(plan.accesses.iter().all(|a| a.unit != Unit::Parity || a.read.is_none()));
    let missing = without(&layout, &[layout.data(0, 1)]);
    let lost = write(&layout, &missing, span(0, 8), &rules);
    assert_eq!(lost, Err(OpError::Lost { block: layout.logical(0, 1) }));
    assert!(write(&layout, &missing, span(8, 8), &rules).is_ok());
    // In another stripe it fits.
    let next = layout.logical(1, 0);
    let plan = write(&layout, &missing, span(next, 1), &rules).unwrap();
    assert_eq!(plan.stripes[0].method, Method::Delta);
}

#[test]
fn a_span_beyond_the_array_is_refused() {
    let layout = raid5();
    let state = without(&layout, &[]);
    let end = layout.blocks();
    for bad in [span(end, 1), span(0, end + 1), span(u64::MAX, 2), span(0, 0)] {
        assert_eq!(read(&layout, &state, bad), Err(OpError::Range));
    }
}
