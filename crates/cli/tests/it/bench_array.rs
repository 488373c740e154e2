//! `lockify bench array` runs to its end with real processes, and has all the rows that it promises. How fast anything was is
//! not judged.

use std::process::{Command, Stdio};

use crate::common::{User, code, output, stderr, stdout};
use lockify_array::Scheme;
use lockify_report::Row;

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok()
}

#[test]
fn every_scheme_is_measured_beside_raw_devices_and_nbdkit() {
    let user = User::new();
    let out = user.dir().join("out");
    // On a disk: files in memory may refuse direct I/O.
    let here = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
    let [out, files] = [&out, folder.path()].map(|path| path.to_str().unwrap().to_owned());
    let run = user.lockify(&["bench", "array", "--smoke", "--folder", &files, "--out", &out]);
    assert_eq!(code(&run), 0, "{}", stderr(&run));
    let left = std::fs::read_dir(&files).unwrap().count();
    assert_eq!(left, 0, "files were left behind");

    let text = stdout(&run);
    let rows = lockify_report::read_file(format!("{out}/report.jsonl")).unwrap();
    let of = |subject: &str, metric: &str| {
        let is = |row: &&Row| {
            row.metric == metric
                && row.case.get("scheme").is_some_and(|name| name.to_string() == subject)
        };
        let found: Vec<f64> = rows.iter().filter(is).map(|row| row.value).collect();
        assert!(text.contains(subject), "{subject:?} is not in {text}");
        found
    };
    let names = Scheme::ALL.map(Scheme::name);
    for subject in names.into_iter().chain(["raw devices"]) {
        assert!(matches!(of(subject, "ops_per_s")[..], [rate] if rate > 0.0), "{subject}");
        let latencies = of(subject, "latency_us");
        assert!(matches!(latencies[..], [half, most] if 0.0 < half && half <= most), "{subject}");
        let to_zero = of(subject, "ratio_to_zero_overhead").len();
        assert_eq!(to_zero, usize::from(subject != "zero-overhead"), "{subject}");
        let (messages, delayed) = (of(subject, "messages_per_op"), of(subject, "delayed_share"));
        if subject == "raw devices" {
            assert_eq!((messages.len(), delayed.len()), (0, 0), "there is nobody to tell");
            continue;
        }
        // A request and its answer for one unit at least; not more than all units, each read, written and locked, many times.
        assert!(matches!(messages[..], [count] if (2.0..200.0).contains(&count)), "{subject}");
        assert!(matches!(delayed[..], [share] if (0.0..=1.0).contains(&share)), "{subject}");
    }
    assert!(text.contains("timestamp-ordering, at least 0.95 of zero-overhead"), "{text}");
    assert!(std::fs::read_to_string(format!("{out}/report.html")).unwrap().contains("<svg"));

    if let Some(lacking) = ["fio", "nbdkit"].into_iter().find(|program| !is_installed(program)) {
        assert!(text.contains(&format!("{lacking} is not installed")), "{text}");
        assert!(std::env::var_os("LOCKIFY_TEST_NBD").is_none(), "{lacking} is not installed");
        return;
    }
    for export in ["lockify array export", "nbdkit nbd, nbdkit file"] {
        assert!(matches!(of(export, "ops_per_s")[..], [rate] if rate > 0.0), "{export}");
    }
    assert!(text.contains("reads by NBD, at least 0.95 of nbdkit's"), "{text}");
}

/// Without fio and nbdkit, all the rest is measured, and the missing parts are named.
#[test]
fn without_nbdkit_the_schemes_are_measured() {
    let user = User::new();
    let out = user.dir().join("out");
    let here = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
    let args = ["bench", "array", "--smoke", "--folder", folder.path().to_str().unwrap()];
    let mut command = user.command(&args);
    command.arg("--out").arg(&out).env("PATH", user.dir());
    let run = output(&mut command);
    assert_eq!(code(&run), 0, "{}", stderr(&run));
    assert!(stdout(&run).contains("apt-get install fio"), "{}", stdout(&run));
    let rows = lockify_report::read_file(out.join("report.jsonl")).unwrap();
    let schemes = Scheme::ALL.len() + 1;
    assert_eq!(rows.iter().filter(|row| row.metric == "ops_per_s").count(), schemes);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let user = User::new();
    let run = user.lockify(&["bench", "array", "--smoke", "--folder", "/nowhere/at/all"]);
    assert_eq!(code(&run), 3);
    assert!(stderr(&run).contains("/nowhere/at/all"), "{}", stderr(&run));
}
