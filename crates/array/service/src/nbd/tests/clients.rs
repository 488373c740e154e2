//! Tests with the existing clients: libnbd, nbdkit, QEMU and fio, as Debian has them. They run where `LOCKIFY_TEST_NBD` is
//! set. A missing client fails there.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::door::Export;
use crate::door::testing::export;
use crate::nbd::testing::Running;

const SIZE: u64 = 16 << 20;

/// Returns true if the clients are to be run.
pub(super) fn wanted() -> bool {
    let wanted = std::env::var_os("LOCKIFY_TEST_NBD").is_some();
    if !wanted {
        eprintln!(
            "not run: real clients of block devices are not everywhere; apt-get install libnbd-bin python3-libnbd nbdkit fio \
             qemu-utils, and LOCKIFY_TEST_NBD=1 runs them"
        );
    }
    wanted
}

/// Runs a program that succeeds, for its output.
pub(super) fn run(package: &str, program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|e| {
        panic!("{program} cannot be started ({e}); install it: apt-get install {package}")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}{errors}", output.status);
    text
}

fn random_file(path: &Path, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut bytes)
        .unwrap();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_sees_what_the_export_can_do() {
    if !wanted() {
        return;
    }
    let running = Running::of(export(SIZE));
    let text = run("libnbd-bin", "nbdinfo", &["--json", &running.uri]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "array");
    assert_eq!(export["description"], "a test");
    assert_eq!(export["export-size"], SIZE);
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
    let all = [
        "can_multi_conn",
        "can_flush",
        "can_fua",
        "can_zero",
        "can_trim",
        "can_df",
        "can_cache",
        "can_fast_zero",
    ];
    for can in all {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    let map = run("libnbd-bin", "nbdinfo", &["--map", "--json", &running.uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    assert_eq!((&map[0]["length"], &map[0]["type"]), (&SIZE.into(), &0.into()), "{map}");
    for cannot in ["is_read_only", "is_rotational"] {
        assert_eq!(export[cannot], false, "{cannot}");
    }
    let list = run("libnbd-bin", "nbdinfo", &["--list", "--json", &running.uri]);
    assert!(list.contains("\"export-name\": \"array\""), "{list}");
    assert!(list.contains("\"description\": \"a test\""), "{list}");
    assert_eq!(run("libnbd-bin", "nbdinfo", &["--size", &running.uri]).trim(), SIZE.to_string());
    let read_only = Running::of(Export { read_only: true, ..crate::door::testing::export(SIZE) });
    run("libnbd-bin", "nbdinfo", &["--is", "read-only", &read_only.uri]);
}

#[test]
fn nbdcopy_copies_there_and_back() {
    if !wanted() {
        return;
    }
    let running = Running::of(export(SIZE));
    let dir = tempfile::tempdir().unwrap();
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let bytes = random_file(&there, SIZE);
    let many = ["--connections=4", "--requests=32", "--flush"];
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    run("libnbd-bin", "nbdcopy", &[&many[..], &[&path(&there), &running.uri]].concat());
    assert!(running.memory.bytes(0, SIZE as usize) == bytes);
    assert!(running.memory.flushes() > 0);
    run("libnbd-bin", "nbdcopy", &[&many[..], &[&running.uri, &path(&back)]].concat());
    assert!(std::fs::read(&back).unwrap() == bytes);
}

#[test]
fn qemu_reads_what_it_wrote() {
    if !wanted() {
        return;
    }
    let running = Running::of(Export { volatile: true, ..export(SIZE) });
    let commands = [
        "write -P 1 0 1M",
        "write -f -P 2 1M 2M",
        "read -P 1 0 1M",
        "read -P 2 1M 2M",
        // From any byte, and of any length.
        "write -P 3 1000 5000",
        "read -P 3 1000 5000",
        "read -P 1 0 1000",
        "read -P 1 6000 500",
        "write -z 64k 8M",
        "read -P 0 64k 8M",
        "aio_write -P 4 8M 64k",
        "aio_write -P 5 9M 64k",
        "aio_flush",
        "read -P 4 8M 64k",
        "read -P 5 9M 64k",
        "flush",
    ];
    let mut args = vec!["-f", "raw", "-t", "none"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    args.push(&running.uri);
    let text = run("qemu-utils", "qemu-io", &args);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    // The FUA write, at least, and the flush.
    assert!(running.memory.flushes() >= 2, "{}", running.memory.flushes());
    assert_eq!(running.memory.bytes(1000, 5000), [3; 5000]);
}

#[test]
fn fio_verifies_what_it_wrote_over_several_connections() {
    if !wanted() {
        return;
    }
    let running = Running::of(export(SIZE));
    let uri = format!("--uri={}", running.uri);
    let text = run(
        "fio",
        "fio",
        &[
            "--name=verified",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bsrange=512-256k",
            "--blockalign=512",
            "--iodepth=16",
            "--numjobs=3",
            "--offset_increment=4M",
            "--size=4M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fsync=32",
            "--output-format=json",
        ],
    );
    let from = text.find('{').unwrap();
    let report: serde_json::Value = serde_json::from_str(&text[from..]).unwrap();
    for job in report["jobs"].as_array().unwrap() {
        assert_eq!(job["error"], 0, "{job}");
        assert!(job["read"]["total_ios"].as_u64() > Some(0));
    }
    assert!(running.memory.bytes(0, SIZE as usize).iter().any(|b| *b != 0));
}

/// The handshake in the client's own order, and requests that libnbd sends only if it is told to.
const HANDSHAKE: &str = r#"
import errno, nbd, sys

def fails(number, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == number, (call, args, error)
    else:
        raise AssertionError((call, args))

uri, size = sys.argv[1], int(sys.argv[2])
socket = uri.split("socket=")[1]
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(socket)
exports = []
assert h.opt_list(lambda name, description: exports.append((name, description))) == 1
assert exports == [("array", "a test")], exports
for name in ("other", "array ", "n" * 4096):
    h.set_export_name(name)
    fails(errno.ENOENT, h.opt_info)
    fails(errno.ENOENT, h.opt_go)
h.set_export_name("array")
for query, found in (("base:", ["base:allocation"]), ("q" * 4000, []), ("base:allocation", ["base:allocation"])):
    h.clear_meta_contexts()
    h.add_meta_context(query)
    contexts = []
    h.opt_list_meta_context(contexts.append)
    assert contexts == found, (query, contexts)
h.add_meta_context("qemu:allocation-depth")
h.opt_go()
assert h.can_meta_context("base:allocation") and not h.can_meta_context("qemu:allocation-depth")

def mapped(context, offset, entries, error):
    extents.append((context, offset, entries))
extents = []
h.block_status(size, 0, mapped)
h.block_status(4096, 512, mapped, nbd.CMD_FLAG_REQ_ONE)
assert extents == [("base:allocation", 0, [size, 0]), ("base:allocation", 512, [4096, 0])], extents

data = bytes(range(256)) * 8192
h.pwrite(data, 1000, nbd.CMD_FLAG_FUA)
assert h.pread(len(data), 1000) == data
chunks = []
h.pread_structured(4096, 1001, lambda *chunk: chunks.append(chunk[1:3]), nbd.CMD_FLAG_DF)
assert chunks == [(1001, nbd.READ_DATA)], chunks
h.zero(5000, 2000)
assert h.pread(5002, 1999) == data[999:1000] + bytes(5000) + data[6000:6001]
h.cache(size, 0)
h.trim(size, 0)
h.trim(3, 1001, nbd.CMD_FLAG_FUA)
assert h.pread(1, 1001) == data[1:2]

# The server refuses what a client with manners does not send, and the connection goes on.
h.set_strict_mode(0)
buffer = nbd.Buffer(512)
fails(errno.EINVAL, h.trim, 4096, size)
fails(errno.EINVAL, h.pread, 0, 0)
fails(errno.EINVAL, h.pread, 512, size - 511)
fails(errno.ENOSPC, h.pwrite, bytes(512), size - 511)
fails(errno.ENOSPC, h.zero, 4096, size)
fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_REQ_ONE)
fails(errno.EINVAL, h.pwrite, bytes((32 << 20) + 1), 0)
fails(errno.EOPNOTSUPP, h.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(len(data), 1000)[6000:] == data[6000:]

# Another connection sees what this one wrote, and its flush is for both.
other = nbd.NBD()
other.connect_uri(uri)
assert other.can_multi_conn()
other.flush()
cookies = [(at, buffer := nbd.Buffer(4096), other.aio_pread(buffer, at)) for at in range(0, 1 << 19, 4096)]
while other.aio_in_flight():
    other.poll(-1)
for at, buffer, cookie in cookies:
    assert other.aio_command_completed(cookie)
    assert buffer.to_bytearray() == h.pread(4096, at)
other.shutdown()
h.shutdown()
"#;

#[test]
fn libnbd_is_answered_in_whatever_order_it_asks() {
    if !wanted() {
        return;
    }
    let running = Running::of(Export { volatile: true, ..export(SIZE) });
    let args = ["-c", HANDSHAKE, &running.uri, &SIZE.to_string()];
    // The distribution's, since it has the distribution's library.
    run("python3-libnbd", "/usr/bin/python3", &args);
    assert!(running.memory.flushes() >= 2, "{}", running.memory.flushes());
}

/// nbdkit is a client that asks for what its filters make of its own client's requests.
#[test]
fn nbdkit_passes_an_export_on_through_its_filters() {
    if !wanted() {
        return;
    }
    // Filters, and their parameters.
    let filters: [(&[&str], &[&str]); 8] = [
        (&[], &[]),
        (&["--filter=blocksize"], &["minblock=64k", "maxdata=256k"]),
        (&["--filter=cache"], &["cache=writeback"]),
        (&["--filter=fua"], &["fuamode=force"]),
        (&["--filter=nozero"], &["zeromode=emulate"]),
        (&["--filter=readahead"], &[]),
        (&["--filter=retry"], &["retries=1"]),
        (&["--filter=swab"], &["swab-bits=16"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (there, back) = (path("there"), path("back"));
    let copies = format!("nbdcopy --flush {there} \"$uri\" && nbdcopy \"$uri\" {back}");
    for (filter, parameters) in filters {
        let running = Running::of(Export { volatile: true, ..export(SIZE) });
        let bytes = random_file(Path::new(&there), SIZE);
        let uri = format!("uri={}", running.uri);
        let args = [&["-U", "-"], filter, &["nbd", &uri], parameters, &["--run", &copies]].concat();
        run("nbdkit", "nbdkit", &args);
        assert!(std::fs::read(&back).unwrap() == bytes, "{filter:?}");
        assert!(running.memory.flushes() > 0, "{filter:?}");
        let swapped = filter.contains(&"--filter=swab");
        let stored = running.memory.bytes(0, SIZE as usize);
        assert!(swapped != (stored == bytes), "{filter:?}");
    }
}
