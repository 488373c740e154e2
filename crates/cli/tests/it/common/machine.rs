//! A machine of its own for a test: namespaces with nothing in /run, /tmp, /var/tmp and root's home.

use std::path::Path;
use std::process::{Command, Output};

/// The tools of scripts: a folder `$W`, and a check that only one is inside.
///
/// `lockify run NAME -- inside COMMAND` fails with 9 if somebody else is. The kernel's lock (flock(1)) is
/// with the command, so it ends exactly when the last process of that does.
const PRELUDE: &str = r#"
set -eu
mount -t proc proc /proc
for place in /run /var/tmp /root; do mount -t tmpfs tmpfs $place; done
mkdir $W/bin
# Users may write to it everywhere but in some sandboxes.
mknod -m 666 $W/null c 1 3; mount --bind $W/null /dev/null
cat >$W/bin/inside <<'END'
#!/bin/sh
exec flock --no-fork -n -E 9 $W/judge "$@"
END
chmod 755 $W/bin/inside
PATH=$W/bin:$PATH
fail() { echo "FAILED: $*"; exit 1; }
# The user's daemon. The pattern is not to fit the script itself.
daemon() { pgrep -f '[s]erve --user --idle'; }
expect() { local want=$1 c=0; shift; "$@" >$W/out 2>&1 || c=$?; [ $c = $want ] || { cat $W/out; fail "exit code $c, not $want: $*"; }; }
says() { grep -q -- "$1" $W/out || { cat $W/out; fail "it does not say: $1"; }; }
until_so() { local n=0; until "$@"; do n=$((n + 1)); [ $n -lt 3000 ] || fail "waited for nothing: $*"; sleep 0.01; done; }
"#;

/// Runs a script on such a machine; `None` if the kernel forbids to make one.
pub fn run(dir: &Path, script: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        let must = std::env::var_os("LOCKIFY_TEST_AS_ROOT").is_some();
        assert!(!must, "LOCKIFY_TEST_AS_ROOT is set: run this as root");
        eprintln!("not run: only root can make namespaces; LOCKIFY_TEST_AS_ROOT=1 insists");
        return None;
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_lockify")).parent().unwrap();
    // Scripts hide folders of the machine, and the programs may be in one of these.
    let path = format!("/mnt:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["--kill-after=5", "300", "unshare", "--mount", "--net", "--pid", "--fork"])
        .args(["--kill-child", "--propagation=private", "sh", "-c"])
        .arg(format!("mount --bind \"$PROGRAMS\" /mnt\n{PRELUDE}{script}"))
        .current_dir(dir)
        .env("PATH", path)
        .env("PROGRAMS", programs)
        .env("W", dir)
        .env("LOCKIFY_IDLE", "1h")
        .env_remove("LOCKIFY_SOCKET")
        .env_remove("LOCKIFY_SPACE")
        .output()
        .unwrap();
    Some(output)
}

/// Runs a script that has to end well.
pub fn assert_runs(script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    // Other users come, too.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let judge = dir.path().join("judge");
    std::fs::write(&judge, "").unwrap();
    std::fs::set_permissions(&judge, std::fs::Permissions::from_mode(0o666)).unwrap();
    let Some(output) = run(dir.path(), script) else { return };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
}
