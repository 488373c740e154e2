"""An array as a ublk device of a node's kernel: ext4 and XFS on it, whose export is restarted under load; and who gets no device.

The kernel keeps requests while no export serves the device.
"""

from __future__ import annotations

import pytest

from lockify_lab import Lab, one_host

BUILT = ("kernels", "lockify")
DEVICE = one_host.UBLK_DEVICE
LOG = "/run/lab/one_host.export.log"
FENCE = "lockify array fence --array /run/lab/one_host.toml --node-name $(uname -n)"
READ = f"timeout 60 dd if={DEVICE} of=/dev/null bs=4096 count=1 iflag=direct"
CHECK = f"umount $MNT && {one_host.FSCK['ext4']} {DEVICE} >&2"
# Nobody has read the file's inode since.
FORGET = "echo 3 >/proc/sys/vm/drop_caches"


@pytest.fixture
def array(lab: Lab) -> Lab:
    """A lab of one node, which has an array of three devices as a ublk device."""
    lab.expect("ublkb0")
    one_host.up(lab, one_host.UBLK)
    return lab


def until(condition: str) -> str:
    """The script that waits half a minute for a condition."""
    return f"for i in $(seq 300); do {condition} && exit; sleep 0.1; done; exit 1"


def refused(lab: Lab, command: str) -> str:
    """The words of an export that is not to begin."""
    return lab.sh(f"timeout 60 {command} 2>&1 && exit 99; [ $? = 3 ]", timeout=90)


def make_ext4(lab: Lab) -> None:
    one_host.make(lab, "ext4", DEVICE)
    lab.sh("echo kept >$MNT/file && sync", timeout=60)


@pytest.mark.parametrize("fs", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def test_a_file_system_outlives_restarts_of_the_export(array: Lab, fs: str) -> None:
    """In order, killed, and away for seconds."""
    one_host.make(array, fs, DEVICE)
    load = one_host.restart_under_load(array, fs, one_host.UBLK)
    array.sh(f"grep -q 'serves the array: {DEVICE}, taken over' {LOG}")
    one_host.check(array, fs, load, DEVICE)
    # Nobody has it open, so that it goes with its export.
    array.sh(one_host.end_export("TERM"), timeout=60)
    array.sh(f"[ ! -e {DEVICE} ]")
    array.sh(one_host.export(one_host.UBLK), timeout=90)
    array.sh(f"! grep -q 'taken over' {LOG}")
    array.sh(READ, timeout=90)


def test_a_device_is_its_own_exports(array: Lab) -> None:
    """Not another process's, another array's, or that of an export without its state."""
    again = one_host.export_command(one_host.UBLK)
    assert f"{DEVICE} is served by process" in refused(array, again)
    make_ext4(array)
    array.sh(one_host.end_export("KILL"), timeout=60)
    words = " ".join(f"--device 127.0.0.1:{7200 + index}" for index in range(3))
    array.sh(f"lockify array create /run/other.toml --device-size 200MiB {words}")
    other = one_host.export_command(one_host.UBLK, "/run/other.toml", "/run/other.state")
    assert "was left by another program, or another array's export" in refused(array, other)
    lost = one_host.export_command(one_host.UBLK, state="/run/new.state")
    assert "uses the array, which is to be exclusive" in refused(array, lost)
    read_only = one_host.export_command(f"{one_host.UBLK} --read-only")
    assert "it was made with other options" in refused(array, read_only)
    # It waits all the same.
    array.sh(one_host.export(one_host.UBLK), timeout=90)
    array.sh(f"{FORGET}; grep kept $MNT/file && {CHECK}", timeout=120)


def test_a_fenced_hosts_device_ends_with_errors(array: Lab) -> None:
    """It may be fenced while it serves, or before its successor comes."""
    make_ext4(array)
    gone = until("! kill -0 $pid 2>/dev/null")
    array.sh(f"pid=$(cat /run/export.pid); {FENCE} && {gone}", timeout=90)
    array.sh(f"grep -q 'taken for dead and fenced' {LOG}")
    array.sh(f"[ ! -e {DEVICE} ] && {FORGET}; ! timeout 60 cat $MNT/file", timeout=90)
    again = one_host.export_command(one_host.UBLK)
    assert "somebody still has it open" in refused(array, again)
    array.sh("umount $MNT", timeout=60)
    array.sh(one_host.export(one_host.UBLK), timeout=90)
    array.sh(f"mount {DEVICE} $MNT && grep kept $MNT/file", timeout=120)
    # The requests of a file system that others may have replaced are never repeated.
    array.sh(one_host.end_export("KILL"), timeout=60)
    array.sh(f"(echo late >$MNT/late; sync $MNT/late) >/dev/null 2>&1 & {FENCE}", timeout=90)
    said = refused(array, again)
    assert "does not have the array any more" in said
    assert "somebody still has it open" in said
    array.sh(until("umount $MNT"), timeout=60)
    array.sh(one_host.export(one_host.UBLK), timeout=90)
    array.sh(f"mount {DEVICE} $MNT && grep kept $MNT/file && [ ! -s $MNT/late ] && {CHECK}", timeout=120)
    array.sh(one_host.scrub(), timeout=120)


def test_a_device_of_a_shared_array_ends_with_its_export(array: Lab) -> None:
    """Others may have written in the meantime."""
    array.sh(one_host.end_export("TERM"), timeout=60)
    shared = f"lockify array export /run/lab/one_host.toml --patience 60s {one_host.UBLK}"
    start = f"""
setsid {shared} >/run/shared.log 2>&1 </dev/null &
echo $! >/run/export.pid
{until('grep -q "serves the array" /run/shared.log')}
"""
    array.sh(start, timeout=90)
    array.sh(READ, timeout=90)
    array.sh(one_host.end_export("KILL"), timeout=60)
    array.sh(until(f"[ ! -e {DEVICE} ]"), timeout=60)
    # What is left of it is in nobody's way.
    array.sh(start, timeout=90)
    array.sh(READ, timeout=90)


def test_a_kernel_that_refuses_says_why(array: Lab) -> None:
    """No permission, no io_uring, no driver."""
    array.sh(one_host.end_export("TERM"), timeout=60)
    export = one_host.export_command(one_host.UBLK)
    said = refused(array, f"setpriv --reuid 65534 --clear-groups {export}")
    assert "ublk needs root (CAP_SYS_ADMIN)" in said
    array.sh("sysctl -q kernel.io_uring_disabled=2")
    assert "kernel.io_uring_disabled = 0" in refused(array, export)
    array.sh("sysctl -q kernel.io_uring_disabled=0 && mv /dev/ublk-control /dev/hidden")
    assert "/dev/ublk-control is missing: this kernel has no ublk" in refused(array, export)
    array.sh("mv /dev/hidden /dev/ublk-control")
    array.sh(one_host.export(one_host.UBLK), timeout=90)


def test_what_another_export_has_left_can_be_discarded(array: Lab) -> None:
    """By an export of another array, too: what waits for the device gets an error."""
    array.sh(f"echo kept | dd of={DEVICE} bs=4096 conv=sync oflag=direct status=none", timeout=60)
    array.sh(one_host.end_export("KILL"), timeout=60)
    reads = f"({READ.replace('timeout 60 ', '')} 2>/run/read.err; echo $? >/run/read) </dev/null >/dev/null 2>&1 &"
    array.sh(f"{reads} sleep 1; [ ! -e /run/read ]", timeout=60)
    fence = "lockify array fence --array /run/lab/one_host.toml --node-name $(uname -n) && rm /run/lab/one_host.state"
    array.sh(fence, timeout=90)
    assert "was left by another export of this array" in refused(array, one_host.export_command(one_host.UBLK))
    array.sh(one_host.export(f"{one_host.UBLK} --ublk-discard"), timeout=90)
    array.sh(until("[ -s /run/read ]") + "; grep -q 1 /run/read", timeout=60)
    array.sh(f"dd if={DEVICE} bs=4096 count=1 iflag=direct status=none | grep -aq kept", timeout=60)
