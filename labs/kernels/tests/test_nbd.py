"""Linux's own NBD on an array: ext4 and XFS on one host, whose export is restarted under load.

The kernel is the client. With `nbd-client` of Debian 12 its device is dead when the export has ended. A client that
gives the kernel time to wait (`inside/nbd.py`) lets the file system go on as if nothing had been.
"""

from __future__ import annotations

import pytest

from lockify_lab import Lab, one_host

BUILT = ("kernels", "lockify")


def nbd_client(options: str) -> str:
    command = f"nbd-client -unix {one_host.SOCKET} {one_host.DEVICE} -block-size 4096 {options}"
    return one_host.attach(command)


@pytest.fixture
def array(lab: Lab) -> Lab:
    """A lab of one node, which exports an array of three devices."""
    one_host.up(lab, one_host.NBD)
    return lab


@pytest.mark.parametrize("fs", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def test_a_file_system_outlives_restarts_of_the_export(array: Lab, fs: str) -> None:
    """In order, killed, and away for longer than the kernel waits for an answer."""
    array.sh(one_host.attach(), timeout=60)
    one_host.make(array, fs, one_host.DEVICE)
    load = one_host.restart_under_load(array, fs, one_host.NBD)
    one_host.check(array, fs, load, one_host.DEVICE)


@pytest.mark.long
@pytest.mark.parametrize(("fs", "options"), [("ext4", ""), ("xfs", "-persist")])
def test_an_ended_export_is_the_end_of_nbd_clients_device(array: Lab, fs: str, options: str) -> None:
    """Also with -persist, which this nbd-client has no use for. The file system has lost nothing, when it is mounted
    again."""
    array.sh(nbd_client(options), timeout=60)
    one_host.make(array, fs, one_host.DEVICE)
    load = one_host.load_on(array)
    array.sh(one_host.end_export("KILL"), timeout=60)
    array.sh(one_host.export(), timeout=90)
    array.sh("! dd if=/dev/nbd0 of=/dev/null bs=4096 count=1 iflag=direct", timeout=60)
    # What was sent and not answered waits for ever, without -timeout; then it is an error as well.
    array.sh("nbd-client -d /dev/nbd0", timeout=60)
    load.wait()
    assert load.result is not None and "OSError" in load.result.err
    array.sh("umount $MNT", timeout=60)
    array.sh(nbd_client(options), timeout=60)
    one_host.check(array, fs, load, one_host.DEVICE)
