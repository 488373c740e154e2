//! Seeds of hosts that share an array.

use lockify_array::Scheme;
use lockify_array_trials::scenario::Faults;
use lockify_array_trials::seeds::{CONTROLLED, Run, Summary, run, run_one};
use lockify_array_trials::setting::Variants;

fn clean(scheme: Scheme, faults: Faults, seeds: u64) -> Summary {
    clean_run(&Run { faults, ..Run::new(scheme, 0..seeds) }, seeds)
}

fn clean_run(all: &Run, seeds: u64) -> Summary {
    let summary = run(all, |_| {});
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.total.operations > seeds * 20, "hardly anything happened: {summary}");
    summary
}

#[test]
fn without_faults_every_scheme_is_clean() {
    for scheme in CONTROLLED {
        let summary = clean(scheme, Faults::None, 60);
        assert_eq!((summary.total.failed, summary.total.lost), (0, 0), "{summary}");
    }
}

#[test]
fn interruptions_leave_nothing_to_repair() {
    for scheme in CONTROLLED {
        let summary = clean(scheme, Faults::Interruptions, 100);
        assert!(summary.total.faults > 100 * 3, "hardly anything failed: {summary}");
    }
}

#[test]
fn devices_that_restart_lose_nothing() {
    for scheme in CONTROLLED {
        let durable = Run { faults: Faults::Restarts, caches: false, ..Run::new(scheme, 0..150) };
        let summary = clean_run(&durable, 150);
        assert_eq!((summary.total.failed, summary.total.lost), (0, 0), "{summary}");
        assert!(summary.total.faults > 150 * 5, "hardly anything failed: {summary}");
    }
}

/// In some of these seeds, only flushes make writes durable.
#[test]
fn devices_that_lose_their_caches_lose_nothing_that_was_flushed() {
    for scheme in CONTROLLED {
        let summary = clean(scheme, Faults::Restarts, 150);
        assert!(summary.total.unflushed > 0, "no flush has failed: {summary}");
    }
}

#[test]
fn dead_hosts_are_repaired_and_devices_rebuilt() {
    for scheme in CONTROLLED {
        let summary = clean(scheme, Faults::All, 160);
        assert!(summary.total.repairs > 150, "hardly anything was repaired: {summary}");
    }
}

/// Lock servers fail, one or all, and another one serves.
#[test]
fn another_lock_server_goes_on_with_every_lock() {
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        let summary = clean(scheme, Faults::LockServers, 150);
        assert!(summary.total.successions > 100, "hardly any other one has served: {summary}");
    }
}

#[test]
fn an_array_grows_in_the_midst_of_faults() {
    for scheme in CONTROLLED {
        let summary = clean(scheme, Faults::Growth, 80);
        assert!(summary.total.repairs > 100, "{summary}");
    }
}

/// Writes that wait for older reads, and writes of half a stripe that read the replaced blocks.
#[test]
fn variants_of_the_schemes_are_as_clean() {
    let half = Variants { delta_at_half: true, basic: false };
    let basic = Variants { delta_at_half: true, basic: true };
    let all = CONTROLLED.map(|scheme| (scheme, half));
    for (scheme, variants) in all.into_iter().chain([(Scheme::TimestampOrdering, basic)]) {
        for faults in [Faults::Restarts, Faults::All] {
            let run_of = Run { faults, variants, ..Run::new(scheme, 0..60) };
            let summary = run(&run_of, |_| {});
            assert!(summary.failures.is_empty(), "{variants:?}: {summary}");
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for scheme in CONTROLLED {
        let run = Run { faults: Faults::Restarts, ..Run::new(scheme, 0..1) };
        let [first, second] = [(); 2].map(|()| run_one(&run, 3, false).map_err(|f| f.message));
        assert_eq!(first, second, "{scheme}");
    }
}
