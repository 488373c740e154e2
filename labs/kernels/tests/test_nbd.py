"""Linux's own NBD on an array: ext4 and XFS on one host, whose export is restarted under load.

The kernel is the client. With `nbd-client` of Debian 12 its device is dead when the export has ended. A client that
gives the kernel time to wait (`inside/nbd.py`) lets the file system go on as if nothing had been.
"""

from __future__ import annotations

import time

import pytest

from lockify_lab import Lab, one_host, programs
from lockify_lab.durable import Load, verify

BUILT = ("kernels", "lockify")

DISKS = ("/dev/ubdb", "/dev/ubdc", "/dev/ubdd")


def nbd_client(options: str) -> str:
    command = f"nbd-client -unix {one_host.SOCKET} {one_host.DEVICE} -block-size 4096 {options}"
    return one_host.attach(command)


@pytest.fixture
def array(lab: Lab) -> Lab:
    """A lab of one node, which exports an array of three devices."""
    for text in ("EXT4-fs", "XFS"):
        lab.expect(text)
    tools = (str(programs.need("lockify").parent),)
    lab.up(nodes=1, fs="none", stack="none", scratch="200M", scratches=len(DISKS), tools=tools)
    lab.sh(one_host.create(len(DISKS), "200MiB"))
    lab.sh(one_host.start(DISKS, new=True), timeout=90)
    lab.sh(one_host.export(), timeout=90)
    return lab


def make(lab: Lab, fs: str) -> None:
    lab.sh(f"{one_host.MKFS[fs]} /dev/nbd0 && mount /dev/nbd0 $MNT", timeout=120)


def load_on(lab: Lab) -> Load:
    load = Load(lab, 1, "load", "1", 600)
    load.start()
    load.await_progress(60, changes=10)
    return load


def check(lab: Lab, fs: str, load: Load) -> None:
    """The file system replays its journal; then nothing is wrong with it, and it has all that it acknowledged."""
    lab.sh("mount /dev/nbd0 $MNT", timeout=120)
    assert verify(lab, [load], 1) > 0
    lab.sh(f"umount $MNT && {one_host.FSCK[fs]} /dev/nbd0 >&2", timeout=120)
    lab.sh(one_host.scrub(), timeout=120)


@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_a_file_system_outlives_restarts_of_the_export(array: Lab, fs: str) -> None:
    """In order, killed, and away for longer than the kernel waits for an answer."""
    array.sh(one_host.attach(), timeout=60)
    make(array, fs)
    load = load_on(array)
    for signal, away in (("TERM", 0.0), ("KILL", 0.0), ("KILL", 8.0)):
        begin = time.monotonic()
        array.sh(one_host.end_export(signal), timeout=60)
        time.sleep(away)
        array.sh(one_host.export(), timeout=90)
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
    array.sh(nbd_client(options), timeout=60)
    make(array, fs)
    load = load_on(array)
    array.sh(one_host.end_export("KILL"), timeout=60)
    array.sh(one_host.export(), timeout=90)
    array.sh("! dd if=/dev/nbd0 of=/dev/null bs=4096 count=1 iflag=direct", timeout=60)
    # What was sent and not answered waits for ever, without -timeout; then it is an error as well.
    array.sh("nbd-client -d /dev/nbd0", timeout=60)
    load.wait()
    assert load.result is not None and "OSError" in load.result.err
    array.sh("umount $MNT", timeout=60)
    array.sh(nbd_client(options), timeout=60)
    check(array, fs, load)
