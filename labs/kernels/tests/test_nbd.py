"""Linux's own NBD on an array: ext4 and XFS on one host, whose export is restarted under load.

The kernel is the client. With `nbd-client` of Debian 12 its device is dead when the export has ended. A client that
gives the kernel time to wait (`inside/nbd.py`) lets the file system go on as if nothing had been.
"""

from __future__ import annotations

import time

import pytest

from lockify_lab import Lab, programs
from lockify_lab.durable import Load, verify

BUILT = ("kernels", "lockify")

MKFS = {"ext4": "mkfs.ext4 -q -F -E nodiscard", "xfs": "mkfs.xfs -q -f -K"}
# Both replay the journal when they mount. Afterwards a check that repairs nothing has to find nothing.
FSCK = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n"}
DEVICES = 3

START = """
lockify array create /run/array.toml --device-size 200MiB {devices}
for id in {ids}; do
    disk=/dev/ubd$(echo bcd | cut -c $((id + 1)))
    setsid lockify array device $disk --create --array /run/array.toml --id $id >/run/device$id.log 2>&1 </dev/null &
done
for i in $(seq 300); do lockify array status --array /run/array.toml >/run/status && exit; sleep 0.1; done
cat /run/status /run/device*.log >&2
exit 1
"""

EXPORT = """
setsid lockify array export /run/array.toml --exclusive --state /run/host --socket /run/nbd.sock \
    >/run/export.log 2>&1 </dev/null &
echo $! >/run/export.pid
for i in $(seq 600); do grep -q "serves the array" /run/export.log && exit; sleep 0.1; done
cat /run/export.log >&2
exit 1
"""

END = """
kill -{signal} $(cat /run/export.pid)
for i in $(seq 300); do kill -0 $(cat /run/export.pid) 2>/dev/null || exit 0; sleep 0.1; done
echo "the export does not end" >&2
exit 1
"""

ATTACHED = """
for i in $(seq 100); do [ "$(blockdev --getsize64 /dev/nbd0)" -gt 0 ] && exit; sleep 0.1; done
cat /run/client.log >&2
exit 1
"""

CLIENT = "setsid {command} >/run/client.log 2>&1 </dev/null &" + ATTACHED
NBD_CLIENT = CLIENT.format(command="nbd-client -unix /run/nbd.sock /dev/nbd0 -block-size 4096 {options}")
PATIENT_CLIENT = CLIENT.format(command="python3 -B /run/lab/inside/nbd.py /run/nbd.sock 0 60")


@pytest.fixture
def array(lab: Lab) -> Lab:
    """A lab of one node, which exports an array of three devices."""
    for text in ("EXT4-fs", "XFS"):
        lab.expect(text)
    tools = (str(programs.need("lockify").parent),)
    lab.up(nodes=1, fs="none", stack="none", scratch="200M", scratches=DEVICES, tools=tools)
    devices = " ".join(f"--device 127.0.0.1:{7100 + index}" for index in range(DEVICES))
    lab.sh(START.format(devices=devices, ids=" ".join(map(str, range(DEVICES)))), timeout=90)
    lab.sh(EXPORT, timeout=90)
    return lab


def make(lab: Lab, fs: str) -> None:
    lab.sh(f"{MKFS[fs]} /dev/nbd0 && mount /dev/nbd0 $MNT", timeout=120)


def load_on(lab: Lab) -> Load:
    load = Load(lab, 1, "load", "1", 600)
    load.start()
    load.await_progress(60, changes=10)
    return load


def check(lab: Lab, fs: str, load: Load) -> None:
    """The file system replays its journal; then nothing is wrong with it, and it has all that it acknowledged."""
    lab.sh("mount /dev/nbd0 $MNT", timeout=120)
    assert verify(lab, [load], 1) > 0
    lab.sh(f"umount $MNT && {FSCK[fs]} /dev/nbd0 >&2", timeout=120)
    lab.sh("lockify array scrub --array /run/array.toml", timeout=120)


@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_a_file_system_outlives_restarts_of_the_export(array: Lab, fs: str) -> None:
    """In order, killed, and away for longer than the kernel waits for an answer."""
    array.sh(PATIENT_CLIENT, timeout=60)
    make(array, fs)
    load = load_on(array)
    for signal, away in (("TERM", 0.0), ("KILL", 0.0), ("KILL", 8.0)):
        begin = time.monotonic()
        array.sh(END.format(signal=signal), timeout=60)
        time.sleep(away)
        array.sh(EXPORT, timeout=90)
        load.await_progress(90)
        print(f"{fs}: SIG{signal}, away for {away:g} s: longest pause {load.longest_pause(begin):.1f} s", flush=True)
    load.stop()
    array.sh("umount $MNT", timeout=60)
    check(array, fs, load)
    print(f"{fs}: {len(load.times)} changes were kept", flush=True)


@pytest.mark.parametrize(("fs", "options"), [("ext4", ""), ("xfs", "-persist")])
def test_an_ended_export_is_the_end_of_nbd_clients_device(array: Lab, fs: str, options: str) -> None:
    """Also with -persist, which this nbd-client has no use for. The file system has lost nothing, when it is mounted
    again."""
    array.sh(NBD_CLIENT.format(options=options), timeout=60)
    make(array, fs)
    load = load_on(array)
    array.sh(END.format(signal="KILL"), timeout=60)
    array.sh(EXPORT, timeout=90)
    array.sh("! dd if=/dev/nbd0 of=/dev/null bs=4096 count=1 iflag=direct", timeout=60)
    # What was sent and not answered waits for ever, without -timeout; then it is an error as well.
    array.sh("nbd-client -d /dev/nbd0", timeout=60)
    load.wait()
    assert load.result is not None and "OSError" in load.result.err
    array.sh("umount $MNT", timeout=60)
    array.sh(NBD_CLIENT.format(options=options), timeout=60)
    check(array, fs, load)
