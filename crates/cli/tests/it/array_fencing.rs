//! Hosts that are cut off at the word of a cluster manager: `fence_lockify` and `lockify array fence`, with real processes.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::array::{Array, Blocks, Export};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, array, content, device, judge, pile, work};
use crate::common::{Process, all_of, code, stderr, stdout, wait_for};

/// The fence agent: the command by its other name.
fn agent(array: &Array) -> Command {
    let path = array.user.dir().join("fence_lockify");
    if !path.exists() {
        symlink(env!("CARGO_BIN_EXE_lockify"), &path).unwrap();
    }
    Command::new(path)
}

/// Runs it as a cluster manager does.
fn by_input(array: &Array, text: &str) -> Output {
    let mut command = agent(array);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(piped.spawn().unwrap());
    process.0.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let (stdout, stderr) = (process.0.stdout.take().unwrap(), process.0.stderr.take().unwrap());
    let (stdout, stderr) = (all_of(stdout), all_of(stderr));
    Output { status: process.ended(), stdout, stderr }
}

fn input(array: &Array, action: &str, more: &str) -> Output {
    let file = array.file();
    by_input(
        array,
        &format!("# from a manager\nagent=fence_lockify\naction={action}\narray={file}\n{more}\n"),
    )
}

fn by_options(array: &Array, options: &[&str]) -> Output {
    let mut command = agent(array);
    command.args(options).args(["--array", &array.file()]);
    crate::common::output(&mut command)
}

/// All requests are answered with errors, or the connection ends.
fn answers_without_error(blocks: &mut Blocks, writes: u64) -> u64 {
    let replies = (0..writes).map_while(|_| blocks.0.reply_unless_over().ok());
    replies.filter(|(error, _)| *error == 0).count() as u64
}

/// A node with requests everywhere stands still: unread ones are in its own sockets, and in those of a device. It is cut off,
/// and moves again.
fn a_node_is_cut_off(scheme: &str) {
    let mut array = array(scheme);
    let host = array.export_with(1, &["--node-name", "alpha"]);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let mut lost = array.export_with(2, &["--node-name", "beta"]);
    work(&lost, 5, 5);
    let mut theirs = lost.connect();
    let stopped = array.devices[1].as_ref().unwrap();
    stopped.signal(Signal::STOP);
    pile(&mut theirs, 6, 24);
    std::thread::sleep(Duration::from_millis(100));
    lost.process.signal(Signal::STOP);
    let mut unread = lost.connect_unanswered();
    unread.write_all(&[1; 64]).unwrap();
    pile(&mut theirs, 7, 8);
    let off = std::thread::scope(|scope| {
        let off = scope.spawn(|| input(&array, "off", "nodename=other\nplug=beta"));
        // Within its lease.
        std::thread::sleep(Duration::from_millis(300));
        stopped.signal(Signal::CONT);
        off.join().unwrap()
    });
    assert_eq!(code(&off), 0, "{}{}", stdout(&off), stderr(&off));
    assert!(stdout(&off).contains("Success: OFF (cut off: host 2"), "{}", stdout(&off));
    assert_eq!(code(&input(&array, "status", "plug=beta")), 2);
    assert_eq!(code(&by_options(&array, &["-o", "status", "-n", "alpha"])), 0);
    let before = blocks.read(0, SHARED);
    // The devices keep no connection of it, so that nobody reads what it has sent.
    wait_for(|| (0..3).all(|id| device(&array, id)["hosts"].as_array().unwrap().len() == 1));
    lost.process.signal(Signal::CONT);
    assert!(answers_without_error(&mut theirs, 32) <= 24);
    assert_eq!(lost.process.ended().code(), Some(3));
    let log = array.log(Place::Host(2));
    assert!(log.contains("taken for dead and fenced; start it again"), "{log}");
    assert!(blocks.read(0, SHARED) == before, "what is fenced has written");
    // A new start is let in, without any word.
    let again = array.export_with(3, &["--node-name", "beta"]);
    again.connect().write(2, &content(3));
    assert_eq!(code(&input(&array, "status", "plug=beta")), 0);
    array.wait_until_healthy();
    judge(array, vec![host, again]);
}

#[test]
fn a_node_is_cut_off_under_timestamp_ordering() {
    a_node_is_cut_off("timestamp-ordering");
}

#[test]
fn a_node_is_cut_off_under_device_locking() {
    a_node_is_cut_off("device-locking");
}

#[test]
fn a_node_is_cut_off_under_server_locking() {
    a_node_is_cut_off("server-locking");
}

#[test]
fn a_node_is_cut_off_under_callback_locking() {
    a_node_is_cut_off("callback-locking");
}

/// All of its hosts, also one that no device has heard of for long, and one that does nothing. Those of others stay.
#[test]
fn all_hosts_of_a_node_are_cut_off_and_no_other() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let on = |array: &mut Array, number, node| array.export_with(number, &["--node-name", node]);
    let alpha = on(&mut array, 1, "alpha");
    let mut idle = on(&mut array, 2, "beta");
    let mut killed = on(&mut array, 3, "beta");
    let mut ended = on(&mut array, 4, "beta");
    killed.process.kill();
    assert_eq!(ended.process.end(), Some(0));
    let listed = by_options(&array, &["-o", "list-status"]);
    assert_eq!(code(&listed), 0, "{}", stderr(&listed));
    assert!(stdout(&listed).contains("alpha,,ON\n") && stdout(&listed).contains("beta,,ON\n"));
    let status = stdout(&array.lockify("status", &["--json"]));
    assert!(status.contains(r#"{"name":"alpha","hosts":[1]}"#), "{status}");
    let fenced = array.lockify("fence", &["--node-name", "beta"]);
    assert_eq!(code(&fenced), 0, "{}", stderr(&fenced));
    assert!(stdout(&fenced).contains("hosts 2, 3 are cut off"), "{}", stdout(&fenced));
    // It ends although no client has asked for anything.
    assert_eq!(idle.process.ended().code(), Some(3));
    alpha.connect().write(0, &content(4));
    assert_eq!(code(&by_options(&array, &["--action=monitor"])), 0);
    assert!(stdout(&by_options(&array, &["-o", "list"])).contains("beta,\n"));
    assert_eq!(code(&by_options(&array, &["-o", "on", "-n", "beta"])), 0);
    assert_eq!(code(&by_options(&array, &["-o", "reboot", "--port", "beta"])), 0);
    // By number, and again.
    for _ in 0..2 {
        assert_eq!(code(&by_options(&array, &["-o", "off", "--host", "1"])), 0);
    }
    assert_eq!(code(&by_options(&array, &["-o", "status", "--host", "1"])), 2);
    let mut alpha: Export = alpha;
    assert_eq!(alpha.process.ended().code(), Some(3));
}

/// One that a device has fenced since it was silent, and one that its successor has fenced, are on their nodes no more.
#[test]
fn fences_of_others_count_as_well() {
    let mut array = array("timestamp-ordering");
    let host = array.export_with(1, &["--node-name", "alpha"]);
    let mut silent = array.export_with(2, &["--node-name", "beta"]);
    pile(&mut silent.connect(), 3, 24);
    silent.process.kill();
    host.connect().write(0, &content(SHARED));
    let state = array.user.dir().join("state");
    let state = state.to_str().unwrap();
    let mut former = array.export_with(3, &["--node-name", "gamma", "--state", state]);
    former.process.kill();
    let mut successor = array.export_with(4, &["--node-name", "delta", "--state", state]);
    for node in ["beta", "gamma"] {
        let is_off = || code(&by_options(&array, &["-o", "status", "-n", node])) == 2;
        // The silent one may have held nothing when it was killed.
        wait_for(|| is_off() || node == "beta" && code(&input(&array, "off", "plug=beta")) == 0);
    }
    assert_eq!(code(&by_options(&array, &["-o", "status", "-n", "delta"])), 0);
    assert_eq!(successor.process.end(), Some(0));
    assert_eq!(code(&by_options(&array, &["-o", "status", "-n", "delta"])), 2);
    host.connect().read(0, SHARED);
    judge(array, vec![host]);
}

#[test]
fn parameters_that_make_no_sense_are_refused_with_a_reason() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let _host = array.export_with(1, &["--node-name", "alpha"]);
    let says = |output: &Output, words: &str| {
        assert_eq!(code(output), 1, "{output:?}");
        assert!(stderr(output).contains(words), "{words:?} is not in {}", stderr(output));
    };
    for action in ["off", "status", "reboot"] {
        says(&input(&array, action, "plug=alhpa"), "no host of node alhpa has attached");
        says(&input(&array, action, ""), "give the node: --plug");
        says(&input(&array, action, "plug=a b"), "is no node's name");
        says(&input(&array, action, "host=99"), "no host 99");
    }
    assert!(stderr(&input(&array, "off", "plug=alhpa")).contains("have: alpha"));
    assert_eq!(code(&input(&array, "status", "plug=new\nmissing_as_off=1")), 2);
    assert_eq!(code(&input(&array, "off", "plug=new\nmissing_as_off=yes\nunknown=x")), 0);
    says(&input(&array, "explode", "plug=alpha"), "there is no action \"explode\"");
    says(&input(&array, "off", "plug=alpha\npower_timeout=soon"), "no number of seconds");
    says(&by_input(&array, "action=off\nplug=alpha\n"), "give the array's file");
    says(&by_input(&array, "action=monitor\narray=/does/not/exist\n"), "cannot read");
    says(&by_input(&array, "nonsense\n"), "NAME=VALUE");
    says(&by_options(&array, &["--nonsense"]), "--nonsense");
    assert_eq!(code(&by_options(&array, &["-o", "validate-all"])), 0);
    assert_eq!(code(&by_options(&array, &["-o", "status", "-n", "alpha"])), 0);
    // Nobody can tell what a majority knows.
    array.devices[0].take().unwrap().kill();
    array.devices[1].take().unwrap().kill();
    for action in ["status", "monitor", "list"] {
        says(&input(&array, action, "plug=alpha"), "more than half have to");
    }
    says(&input(&array, "off", "plug=alpha\nlogin_timeout=1"), "cannot open the array");
}

/// Every tag is closed, and nothing is outside of them.
fn assert_well_formed(xml: &str) {
    let body = xml.strip_prefix("<?xml version=\"1.0\" ?>\n").unwrap();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body.trim_end();
    while let Some(at) = rest.find('<') {
        assert!(!open.is_empty() || rest[..at].trim().is_empty(), "{:?}", &rest[..at]);
        assert!(!rest[..at].contains(['>', '&']), "{:?}", &rest[..at]);
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name)),
            (None, true) => {}
            (None, false) => open.push(tag.split(' ').next().unwrap()),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest:?}");
}

#[test]
fn metadata_has_what_a_cluster_manager_asks_for() {
    let array = Array::create(3, &[]);
    let metadata = by_input(&array, "action=metadata\n");
    assert_eq!(code(&metadata), 0, "{}", stderr(&metadata));
    let text = stdout(&metadata);
    assert_well_formed(&text);
    let actions = [
        "on",
        "off",
        "reboot",
        "status",
        "monitor",
        "list",
        "list-status",
        "validate-all",
        "metadata",
    ];
    for action in actions {
        assert!(text.contains(&format!("<action name=\"{action}\"")), "{action}");
    }
    for parameter in ["action", "plug", "port", "array", "power_timeout", "missing_as_off"] {
        assert!(text.contains(&format!("<parameter name=\"{parameter}\"")), "{parameter}");
    }
    let mut command = agent(&array);
    assert_eq!(stdout(&crate::common::output(command.args(["-o", "metadata"]))), text);
    let mut command = agent(&array);
    let version = crate::common::output(command.arg("--version"));
    assert!(stdout(&version).starts_with("fence_lockify "), "{version:?}");
}
