//! Crash, pause, restart, and hooks.

use crate::recorder::*;
use lockify_sim::*;

fn crash(node: NodeId) -> Fault {
    Fault::Crash { node, power_loss: false }
}

#[test]
fn timers_die_with_their_incarnation() {
    let mut sim = cluster(1, plain());
    sim.with(A, |_, cx| cx.set_timer(50 * MILLISECOND, 1)).expect("running");
    sim.inject(crash(A));
    assert_eq!(sim.status(A), Some(NodeStatus::Crashed));
    assert!(sim.machine(A).is_none() && sim.with(A, |_, _| ()).is_none());
    assert!(!sim.inject(crash(A)), "it is down already");
    sim.inject(Fault::Restart(A));
    assert_eq!(run(&mut sim, 100), [(A, Seen::Start)]);
    assert_eq!(sim.incarnation(A), 2);
    assert_eq!(
        sim.machine(A).map(|machine| machine.starts),
        Some(2),
        "the host salvages from the previous machine"
    );
}

#[test]
fn a_paused_node_gets_everything_in_order_when_it_resumes() {
    let mut sim = connected(1, plain());
    sim.inject(Fault::Pause(B));
    let cancelled = sim.with(A, |_, cx| cx.set_timer(0, 0)).expect("running");
    sim.with(A, |_, cx| assert!(cx.cancel_timer(cancelled) && !cx.cancel_timer(cancelled)));
    send(&mut sim, A, B, 0..3);
    assert!(run(&mut sim, 300).is_empty());
    // Due at the very moment of resuming, but behind what waits.
    sim.inject_at(301 * MILLISECOND, Fault::Resume(B));
    send(&mut sim, A, B, 3..5);
    let seen = timed(&mut sim, 400);
    let expected: Vec<_> =
        (0..5).map(|number| (301 * MILLISECOND, B, Seen::Message(A, number))).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_timer_that_waits_for_a_paused_node_can_still_be_cancelled() {
    struct Canceller(Option<TimerId>);
    impl Machine for Canceller {
        type Msg = ();
        type Timer = u8;
        type Note = u8;
        fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
            match input {
                Input::Start => {
                    cx.set_timer(10, 1);
                    self.0 = Some(cx.set_timer(20, 2));
                    cx.set_timer(30, 3);
                }
                Input::Timer(timer) => {
                    if let Some(second) = self.0.take() {
                        assert!(cx.cancel_timer(second));
                    }
                    cx.note(timer);
                }
                _ => {}
            }
        }
    }
    let mut sim = Sim::new(1, Config::default(), |_| Canceller(None));
    let node = sim.join();
    sim.inject_at(5, Fault::Pause(node));
    sim.inject_at(100, Fault::Resume(node));
    let (reports, stop) = sim.run_until(SECOND);
    assert_eq!(stop, Stop::Idle);
    let notes = reports.iter().filter_map(|report| match report.event {
        ReportEvent::Note { note, .. } => Some((report.at, note)),
        _ => None,
    });
    assert!(notes.eq([(100, 1), (100, 3)]));
}

#[test]
fn a_crash_empties_the_backlog() {
    let mut sim = connected(1, plain());
    sim.inject(Fault::Pause(B));
    send(&mut sim, A, B, 0..3);
    run(&mut sim, 200);
    sim.inject(crash(B));
    sim.inject(Fault::Restart(B));
    let seen = run(&mut sim, 300);
    assert!(numbers(&seen, A, B).is_empty() && seen.contains(&(B, Seen::Start)));
}

#[test]
fn status_changes_and_faults_are_reported() {
    let mut sim = cluster(1, plain());
    for fault in [Fault::Pause(A), Fault::Resume(A), Fault::Leave(A), Fault::Restart(A)] {
        assert!(sim.inject(fault));
    }
    assert!(!sim.inject(Fault::Pause(NodeId(77))), "no such node");
    let (reports, _) = sim.run_until(0);
    let statuses = reports.iter().filter_map(|report| match report.event {
        ReportEvent::Node { node: A, incarnation, status } => Some((incarnation, status)),
        _ => None,
    });
    use NodeStatus::*;
    assert!(statuses.eq([(1, Paused), (1, Running), (1, Left), (2, Running)]));
    let faults = reports.iter().filter(|report| matches!(report.event, ReportEvent::Fault(_)));
    assert_eq!(faults.count(), 4);
    let counted = sim.fault_counts().iter().filter(|(_, count)| *count > 0);
    assert!(
        counted.eq([(FaultKind::Pause, 1), (FaultKind::Leave, 1)]),
        "ends of faults are not counted"
    );
}

#[test]
fn hooks_hit_the_step_they_aim_at() {
    let is_message = |observed: &Observed<'_, Recorder>| {
        matches!(observed.step, Step::Input(Input::Message { .. }))
    };
    let arrived = |before: bool| {
        let mut sim = connected(1, plain());
        let inject = move |observed: &Observed<'_, Recorder>| {
            let fault = crash(observed.node);
            if before { Inject::Before(fault) } else { Inject::After(fault) }
        };
        sim.add_hook(at_nth(3, is_message, inject));
        send(&mut sim, A, B, 0..10);
        let seen = run(&mut sim, 1_000);
        assert_eq!(sim.fault_counts().get(FaultKind::Crash), 1);
        numbers(&seen, A, B)
    };
    assert_eq!(arrived(true), [0, 1]);
    assert_eq!(arrived(false), [0, 1, 2]);
}

#[test]
fn hooks_see_sends_and_notes() {
    let mut sim = connected(1, plain());
    let sends_seven = |observed: &Observed<'_, Recorder>| matches!(observed.step, Step::Send { to: B, msg } if msg.0 == 7);
    sim.add_hook(at_nth(1, sends_seven, |observed| Inject::After(Fault::Pause(observed.node))));
    let notes_seven = |observed: &Observed<'_, Recorder>| {
        matches!(observed.step, Step::Note(Seen::Message(_, 7)))
    };
    sim.add_hook(at_nth(1, notes_seven, |observed| Inject::After(crash(observed.node))));
    send(&mut sim, A, B, [6]);
    assert_eq!(sim.status(A), Some(NodeStatus::Running));
    send(&mut sim, A, B, [7]);
    assert_eq!(sim.status(A), Some(NodeStatus::Paused), "at once, not at the next event");
    let seen = run(&mut sim, 1_000);
    assert_eq!(numbers(&seen, A, B), [6, 7]);
    assert_eq!(sim.status(B), Some(NodeStatus::Crashed));
}

#[test]
fn a_hook_that_pauses_delays_the_input_it_saw() {
    let mut sim = connected(1, plain());
    let second = |observed: &Observed<'_, Recorder>| {
        matches!(observed.step, Step::Input(Input::Message { .. }))
    };
    sim.add_hook(at_nth(2, second, |observed| Inject::Before(Fault::Pause(observed.node))));
    send(&mut sim, A, B, 0..4);
    assert_eq!(numbers(&run(&mut sim, 200), A, B), [0]);
    sim.inject(Fault::Resume(B));
    assert_eq!(numbers(&run(&mut sim, 200), A, B), [1, 2, 3]);
}

#[test]
fn wakes_come_at_their_time_and_the_event_limit_stops_a_run() {
    let mut sim = Sim::new(1, Config { event_limit: 3, ..plain() }, |_| Recorder::default());
    for (at, token) in [(5, 50), (3, 30), (4, 40), (9, 90)] {
        sim.wake_at(at, token);
    }
    let wake = |at, token| Ok(Report { at, event: ReportEvent::Wake(token) });
    assert_eq!(sim.next_report(3), wake(3, 30));
    assert_eq!(sim.next_report(3), Err(Stop::Time));
    assert_eq!(sim.next_report(10), wake(4, 40));
    assert_eq!(sim.next_report(10), wake(5, 50));
    assert_eq!(sim.next_report(10), Err(Stop::EventLimit));
}
