"""An array of one node's own disks, exported to that node's kernel: for file systems of one host (ext4, XFS).

Most of this is scripts for the agent. What has to outlive the node is in the lab's folder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from . import programs
from .durable import Load, verify
from .lab import Lab

DEVICE = "/dev/nbd0"
SOCKET = "/run/array.sock"
# The export's options: where clients reach it, and which block device of the node it is.
NBD = f"--socket {SOCKET}"
UBLK = "--ublk 0"
UBLK_DEVICE = "/dev/ublkb0"
CLIENT_LOG = "/run/nbd.log"
# Seconds that requests wait for an export that has ended.
_PATIENCE = 60
_CLIENT = f"python3 -B /run/lab/inside/nbd.py {SOCKET} 0 {_PATIENCE}"
# The same, for devices of gibibytes: one request may have all of it zeroed.
PATIENT_CLIENT = f"{_CLIENT} 120"

MKFS = {"ext4": "mkfs.ext4 -q -F -E nodiscard", "xfs": "mkfs.xfs -q -f -K"}
# Both replay the journal when they mount. Afterwards a check that repairs nothing has to find nothing.
FSCK = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n"}

DISKS = ("/dev/ubdb", "/dev/ubdc", "/dev/ubdd")

# Seconds. An array's processes share the node's one processor with the tests and with each other. While zeroes of hundreds of
# mebibytes were written on a busy machine, the export was silent for more than four, and was fenced.
_LEASE = 20
_FILE = "/run/lab/one_host.toml"
_PORT = 7100


def create(devices: int, size: str) -> str:
    """The script that describes an array of devices of this size."""
    words = " ".join(f"--device 127.0.0.1:{_PORT + index}" for index in range(devices))
    return f"lockify array create {_FILE} --device-size {size} --lease {_LEASE}s {words}"


def start(disks: Sequence[str], new: bool = False) -> str:
    """The script that serves the array's devices on these disks, until all of them are good."""
    create = "--create " if new else ""
    devices = "".join(
        f"setsid lockify array device {disk} {create}--array {_FILE} --id {index} "
        f">/run/lab/one_host.device{index}.log 2>&1 </dev/null &\n"
        for index, disk in enumerate(disks)
    )
    return f"""
{devices}
while ((SECONDS < 60)); do lockify array status --array {_FILE} >/run/status && exit; sleep 0.1; done
cat /run/status /run/lab/one_host.device*.log >&2
exit 1
"""


def export_command(door: str, file: str = _FILE, state: str = "/run/lab/one_host.state") -> str:
    """The command that serves the array, in the foreground."""
    return f"lockify array export {file} --exclusive --state {state} --patience 60s {door}"


def export(door: str = NBD) -> str:
    """The script that serves the array by a door. It fences whom the export was before."""
    return f"""
log=/run/lab/one_host.export.log
setsid {export_command(door)} >$log 2>&1 </dev/null &
echo $! >/run/export.pid
while ((SECONDS < 60)); do grep -q "serves the array" $log && exit; sleep 0.1; done
cat $log >&2
exit 1
"""


def end_export(signal: str) -> str:
    """The script that ends the export with a signal."""
    return f"""
kill -{signal} $(cat /run/export.pid)
while ((SECONDS < 30)); do kill -0 $(cat /run/export.pid) 2>/dev/null || exit 0; sleep 0.1; done
echo "the export does not end" >&2
exit 1
"""


def attach(client: str = _CLIENT) -> str:
    """The script that makes the export the node's block device, by a client that stays. That one connects again."""
    return f"""
setsid {client} >{CLIENT_LOG} 2>&1 </dev/null &
while ((SECONDS < 30)); do [ "$(blockdev --getsize64 {DEVICE})" -gt 0 ] && exit; sleep 0.1; done
cat {CLIENT_LOG} >&2
exit 1
"""


def scrub() -> str:
    """The script that looks whether all stripes fit."""
    return f"lockify array scrub --array {_FILE}"


def up(lab: Lab, door: str) -> None:
    """Boots a node, which serves an array of three devices to itself."""
    for text in ("EXT4-fs", "XFS"):
        lab.expect(text)
    tools = (str(programs.need("lockify").parent),)
    lab.up(nodes=1, fs="none", stack="none", scratch="200M", scratches=len(DISKS), tools=tools)
    lab.sh(create(len(DISKS), "200MiB"))
    lab.sh(start(DISKS, new=True), timeout=90)
    lab.sh(export(door), timeout=90)


def make(lab: Lab, fs: str, device: str) -> None:
    """Makes and mounts a file system."""
    lab.sh(f"{MKFS[fs]} {device} && mount {device} $MNT", timeout=120)


def load_on(lab: Lab) -> Load:
    """Changes files from now on, and remembers what fsync acknowledged."""
    load = Load(lab, 1, "load", "1", 600)
    load.start()
    load.await_progress(60, changes=10)
    return load


def check(lab: Lab, fs: str, load: Load, device: str) -> None:
    """The file system replays its journal; then nothing is wrong with it, and it has all that it acknowledged."""
    lab.sh(f"mount {device} $MNT", timeout=120)
    assert verify(lab, [load], 1) > 0
    lab.sh(f"umount $MNT && {FSCK[fs]} {device} >&2", timeout=120)
    lab.sh(scrub(), timeout=120)


def restart_under_load(lab: Lab, fs: str, door: str) -> Load:
    """Ends the export in order, killed, and away for longer than NBD's client waits for an answer."""
    load = load_on(lab)
    for signal, away in (("TERM", 0.0), ("KILL", 0.0), ("KILL", 8.0)):
        begin = time.monotonic()
        lab.sh(end_export(signal), timeout=60)
        time.sleep(away)
        lab.sh(export(door), timeout=90)
        load.await_progress(90)
        pause = load.longest_pause(begin)
        print(f"{fs}, {door}: SIG{signal}, away for {away:g} s: longest pause {pause:.1f} s", flush=True)
    load.stop()
    lab.sh("umount $MNT", timeout=60)
    print(f"{fs}, {door}: {len(load.times)} changes were kept", flush=True)
    return load
