//! The simulated array: its counts are those of the model of messages (docs/design/array.md 5.5), and a seed repeats it.

use lockify_array::Scheme;
use lockify_array_trials::measure::{Case, MeasureError, Measured, measure};
use lockify_array_trials::paper;
use lockify_array_trials::profile::{Calibration, Profile};
use lockify_array_trials::workload::{Alignment, Mix};
use lockify_sim::SECOND;

fn case(scheme: Scheme, hosts: u32, reads: f64) -> Case {
    let profile = Profile::table_1(Calibration::Peak.positioning(Alignment::Stripe));
    let mix = Mix { reads, ..Mix::table_1(Alignment::Stripe) };
    Case { length: 4 * SECOND, ..Case::table_1(scheme, hosts, mix, profile) }
}

fn found(case: &Case) -> Measured {
    measure(case, 1).expect("nothing is broken")
}

/// Messages of a read of m units, by scheme, and of a write of m of the four units of a stripe, 1 to 4, without restarts
/// (docs/design/array.md 5.5). Halves of a stripe are read, modified and written.
#[test]
fn messages_are_those_of_the_model() {
    let read = |per_unit: f64| 2.5 * per_unit;
    // Devices read and written, only written, only read.
    let writes = [(2.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, 4.0, 1.0), (0.0, 5.0, 0.0)];
    let write = |cost: fn(f64, f64, f64) -> f64| {
        writes.iter().map(|(both, written, read)| cost(*both, *written, *read)).sum::<f64>() / 4.0
    };
    let zero = write(|both, written, read| 4.0 * both + 2.0 * written + 2.0 * read);
    let expected = [
        (Scheme::ZeroOverhead, read(2.0), zero),
        (Scheme::DeviceLocking, read(4.0), write(|b, w, r| 4.0 * b + 4.0 * w + 4.0 * r)),
        (Scheme::TimestampOrdering, read(2.0), write(|b, w, r| 4.0 * b + 4.0 * w + 2.0 * r)),
    ];
    for (scheme, reads, writes) in expected {
        for (share, model) in [(1.0, reads), (0.0, writes)] {
            let messages = found(&case(scheme, 4, share)).messages;
            let off = messages / model - 1.0;
            assert!(off.abs() < 0.03, "{scheme}, reads {share}: {messages:.2}, not {model:.2}");
        }
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let case = case(Scheme::TimestampOrdering, 8, 0.7);
    let [a, b, other] = [1, 1, 2].map(|seed| measure(&case, seed).expect("nothing is broken"));
    assert_eq!(a.latencies, b.latencies);
    assert_ne!(a.latencies, other.latencies);
}

#[test]
fn what_is_asked_for_is_done_up_to_what_disks_can_do() {
    let moderate = case(Scheme::ZeroOverhead, 16, 0.7);
    let found_moderate = found(&moderate);
    assert!(!found_moderate.swamped);
    assert!((found_moderate.per_s / moderate.offered() - 1.0).abs() < 0.05);
    let too_much = found(&case(Scheme::ZeroOverhead, 60, 0.7));
    assert!(too_much.swamped && too_much.per_s < 1_600.0, "{}", too_much.per_s);
}

#[test]
fn devices_that_make_no_groups_are_an_error() {
    let case = Case { devices: 21, ..case(Scheme::ZeroOverhead, 4, 0.7) };
    assert_eq!(measure(&case, 1).err(), Some(MeasureError::Devices(21)));
}

/// LOCK, GRANT, UNLOCK and its answer; callback locking saves some of them, and waits for callbacks.
#[test]
fn a_lock_server_costs_four_messages_an_operation_and_callbacks_fewer() {
    let found = |scheme| measure(&case(scheme, 4, 0.7), 1).expect("nothing is broken");
    let zero = found(Scheme::ZeroOverhead);
    let server = found(Scheme::ServerLocking);
    assert!((server.messages - zero.messages - 4.0).abs() < 0.1, "{}", server.messages);
    let callback = found(Scheme::CallbackLocking);
    assert!(callback.messages < server.messages, "{}", callback.messages);
    assert!(callback.delayed > server.delayed);
}

#[test]
fn nothing_is_taken_for_met_without_rows() {
    assert!(paper::criteria(&[]).iter().all(|criterion| !criterion.met));
}
