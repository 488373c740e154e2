//! What a monitor hears of an array: changes, and metrics.

use std::process::Stdio;

use crate::common::array::Array;
use crate::common::traffic::device;
use crate::common::{Process, code, first_line, programs, stderr, stdout, wait_for};

#[test]
fn each_change_is_told_to_a_program() {
    let mut array = Array::create(3, &["--scheme", "server-locking"]);
    array.start_all();
    let (program, heard) = (array.user.dir().join("program"), array.user.dir().join("heard"));
    // One that fails is no reason to stop.
    let script = format!("#!/bin/sh\necho \"$1|$2|$3|$4\" >>{}\nexit 7\n", heard.display());
    std::fs::write(&program, &script).unwrap();
    let args = ["--interval", "200ms", "--on-event", program.to_str().unwrap()];
    let refused = array.lockify("watch", &args);
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("no file that can be run"), "{}", stderr(&refused));
    programs::script(&program, &script, 0o755);
    let all = array.args("watch", &args);
    let mut command = array.user.command(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let mut watch = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    assert!(first_line(watch.0.stdout.take().unwrap()).starts_with("watching array "));
    let hears = |words: &str| {
        let text = || std::fs::read_to_string(&heard).unwrap_or_default();
        wait_for(|| text().lines().any(|line| line.starts_with(words)));
    };
    array.devices[1].take().unwrap().kill();
    hears("device 1|");
    hears("array|healthy|degraded|");
    wait_for(|| device(&array, 1)["condition"] == "failed");
    array.start(1, "disk1", &[]);
    wait_for(|| code(&array.lockify("rebuild", &["--id", "1"])) == 0);
    hears("array|degraded|healthy|");
    array.lock_server.take().unwrap().kill();
    hears("lock server|good|away|");
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn a_status_is_told_as_metrics() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let _host = array.export(1);
    let healthy = array.lockify("status", &["--metrics"]);
    assert_eq!(code(&healthy), 0, "{}", stderr(&healthy));
    let text = stdout(&healthy);
    let value = |text: &str, name: &str, label: &str| {
        let mut lines = text.lines().filter(|line| {
            line.starts_with(&format!("lockify_array_{name}{{array=")) && line.contains(label)
        });
        lines
            .next()
            .unwrap_or_else(|| panic!("{name} in {text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert!(text.ends_with("# EOF\n"), "{text}");
    for (name, label) in [("healthy", ""), ("hosts", ""), ("device_good", "device=\"2\"")] {
        assert_eq!(value(&text, name, label), "1", "{name}");
    }
    array.devices[2].take().unwrap().kill();
    wait_for(|| device(&array, 2)["condition"] == "failed");
    let degraded = array.lockify("status", &["--metrics"]);
    assert_eq!(code(&degraded), 1);
    for (name, label) in [("healthy", ""), ("device_good", "device=\"2\"")] {
        assert_eq!(value(&stdout(&degraded), name, label), "0", "{name}");
    }
}
