//! Local clocks and timers.

use crate::recorder::*;
use lockify_sim::*;

/// Sets a timer of one second at once, injects a fault at 500 ms; returns virtual and local time of its expiry.
fn expiry(fault: Fault) -> (Nanos, Nanos) {
    let mut sim = cluster(1, plain());
    sim.with(A, |_, cx| cx.set_timer(SECOND, 1)).expect("running");
    sim.inject_at(500 * MILLISECOND, fault);
    let seen = timed(&mut sim, 100_000);
    let [(at, A, Seen::Timer(1, local))] = seen[..] else { panic!("one expiry: {seen:?}") };
    (at, local)
}

#[test]
fn timers_follow_a_clock_that_is_changed_while_they_run() {
    let ms = MILLISECOND;
    assert_eq!(
        expiry(Fault::ClockStep { node: B, by: 1 }),
        (SECOND, SECOND),
        "somebody else's clock"
    );
    let forwards = expiry(Fault::ClockStep { node: A, by: 200 * ms as i64 });
    assert_eq!(forwards, (800 * ms, SECOND));
    let beyond = expiry(Fault::ClockStep { node: A, by: 700 * ms as i64 });
    assert_eq!(beyond, (500 * ms, 1_200 * ms), "due at once");
    let backwards = expiry(Fault::ClockStep { node: A, by: -(300 * ms as i64) });
    assert_eq!(backwards, (1_300 * ms, SECOND));
    let fast = expiry(Fault::ClockRate { node: A, ppm: 1_000_000 });
    assert_eq!(fast, (750 * ms, SECOND));
    let slow = expiry(Fault::ClockRate { node: A, ppm: -500_000 });
    assert_eq!(slow, (1_500 * ms, SECOND));
}

#[test]
fn a_moved_timer_can_be_cancelled() {
    let mut sim = cluster(1, plain());
    let timer = sim.with(A, |_, cx| cx.set_timer(SECOND, 1)).expect("running");
    sim.inject(Fault::ClockStep { node: A, by: 1_000 });
    assert_eq!(sim.with(A, |_, cx| cx.cancel_timer(timer)), Some(true));
    assert!(run(&mut sim, 5_000).is_empty());
}

#[test]
fn clocks_survive_a_restart_and_rates_heal() {
    let mut sim = cluster(1, plain());
    sim.inject(Fault::ClockStep { node: A, by: 5_000 });
    sim.inject(Fault::ClockRate { node: A, ppm: 100 });
    sim.inject(Fault::Crash { node: A, power_loss: true });
    sim.inject_at(SECOND, Fault::HealAll);
    run(&mut sim, 2_000);
    assert_eq!(sim.with(A, |_, cx| cx.now()), Some(2 * SECOND + 5_000 + 100_000));
}
