"""An array of one node's own disks, exported to that node's kernel: for file systems of one host (ext4, XFS).

Everything here is a script for the agent. What has to outlive the node is in the lab's folder.
"""

from __future__ import annotations

from collections.abc import Sequence

DEVICE = "/dev/nbd0"
SOCKET = "/run/array.sock"
CLIENT_LOG = "/run/nbd.log"
# Seconds that requests wait for an export that has ended.
_PATIENCE = 60
_CLIENT = f"python3 -B /run/lab/inside/nbd.py {SOCKET} 0 {_PATIENCE}"
# The same, for devices of gibibytes: one request may have all of it zeroed.
PATIENT_CLIENT = f"{_CLIENT} 120"

MKFS = {"ext4": "mkfs.ext4 -q -F -E nodiscard", "xfs": "mkfs.xfs -q -f -K"}
# Both replay the journal when they mount. Afterwards a check that repairs nothing has to find nothing.
FSCK = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n"}

_FILE = "/run/lab/one_host.toml"
_PORT = 7100


def create(devices: int, size: str) -> str:
    """The script that describes an array of devices of this size."""
    words = " ".join(f"--device 127.0.0.1:{_PORT + index}" for index in range(devices))
    return f"lockify array create {_FILE} --device-size {size} {words}"


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
for i in $(seq 600); do lockify array status --array {_FILE} >/run/status && exit; sleep 0.1; done
cat /run/status /run/lab/one_host.device*.log >&2
exit 1
"""


def export() -> str:
    """The script that exports the array on `SOCKET`. It fences whom the export was before."""
    return f"""
log=/run/lab/one_host.export.log
setsid lockify array export {_FILE} --exclusive --state /run/lab/one_host.state --patience 60s --socket {SOCKET} \
    >$log 2>&1 </dev/null &
echo $! >/run/export.pid
for i in $(seq 600); do grep -q "serves the array" $log && exit; sleep 0.1; done
cat $log >&2
exit 1
"""


def end_export(signal: str) -> str:
    """The script that ends the export with a signal."""
    return f"""
kill -{signal} $(cat /run/export.pid)
for i in $(seq 300); do kill -0 $(cat /run/export.pid) 2>/dev/null || exit 0; sleep 0.1; done
echo "the export does not end" >&2
exit 1
"""


def attach(client: str = _CLIENT) -> str:
    """The script that makes the export the node's block device, by a client that stays. That one connects again."""
    return f"""
setsid {client} >{CLIENT_LOG} 2>&1 </dev/null &
for i in $(seq 100); do [ "$(blockdev --getsize64 {DEVICE})" -gt 0 ] && exit; sleep 0.1; done
cat {CLIENT_LOG} >&2
exit 1
"""


def scrub() -> str:
    """The script that looks whether all stripes fit."""
    return f"lockify array scrub --array {_FILE}"
