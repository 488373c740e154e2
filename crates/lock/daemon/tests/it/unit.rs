//! The service's unit: systemd's judgement, where there is one, and the unit's own settings.

use std::path::Path;
use std::process::Command;

const UNIT: &str = include_str!("../../../../../packaging/lockifyd.service");

fn says(line: &str) -> bool {
    UNIT.lines().any(|l| l == line)
}

#[test]
fn it_starts_again_however_often_it_failed_and_after_the_clock_is_set() {
    assert!(says("StartLimitIntervalSec=0") && says("Restart=on-failure"));
    let after = UNIT.lines().find_map(|line| line.strip_prefix("After=")).unwrap();
    assert!(after.split(' ').any(|unit| unit == "time-sync.target"), "{after}");
    // A configuration that cannot be used is no reason to try for ever.
    assert!(says("RestartPreventExitStatus=2"));
}

#[test]
fn it_has_a_place_for_its_state_and_a_watchdog() {
    for line in
        ["StateDirectory=lockify", "RuntimeDirectory=lockify", "Type=notify", "WatchdogSec=60"]
    {
        assert!(says(line), "{line}");
    }
}

/// Elsewhere, `packaging/try-debs` asks in a clean Debian.
#[test]
fn systemd_finds_it_closed_enough() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/lockifyd.service");
    let mut command = Command::new("systemd-analyze");
    // The score is 10 times the shown value: 3.0.
    command.args(["security", "--no-pager", "--offline=true", "--threshold=30"]).arg(unit);
    match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not run: there is no systemd-analyze here");
        }
        Err(e) => panic!("systemd-analyze cannot be run: {e}"),
        Ok(out) => assert!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        ),
    }
}
