"""A lab's shared disk as a shared array of Lockify: each node has a disk of its own, and nobody a shared one.

Each node runs a device of the array on its disk, and an export of the whole array, which is its /dev/nbd0. Both run
inside the node, so that a crash takes them with it. Disks and the exports' numbers are files of the lab's folder: they
outlive the node. Everything here is a script for the agent, as in cluster.py, and waits by looking.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from . import net, programs
from .cluster import LOOK
from .host import PACKAGE, command
from .options import Options

BIN = "/run/lab/bin"  # `array`, `lockify` and `fence_lockify`, as nodes see them

_PORT = 7100
_LEAST_LEASE = 4000  # ms
# Leases until the kernel takes a request for lost. An export answers all within sixteen; without a limit, what an
# export had not answered when it ended waits for ever.
_PATIENCE = 30
_MEDIUM = "/dev/ubda"
_FILE, _KEY, _DLM_CONF = "array.toml", "array.key", "dlm.conf"
# A device keeps a sector of 512 bytes behind each block of 4096, and 2 MiB for itself. Stripes are whole.
_OF_BLOCKS, _OWN, _STRIPE = 9 / 8, 2 << 20, 64 << 10

# The processes of a node: their numbers are in /run, and their last words in the lab's folder.
_PROCESSES = """
pid_of() { echo /run/array.$1.pid; }
log_of() { echo /run/lab/array.$1.$NODE.log; }
runs() { [ -e "$(pid_of $1)" ] && kill -0 "$(cat "$(pid_of $1)")" 2>/dev/null; }
start() {  # start KIND OPTION...: the process goes on when the script has ended
    local log=$(log_of $1)
    [ ! -e "$log" ] || mv -f "$log" "$log.old"
    setsid array "$@" >"$log" 2>&1 </dev/null &
    echo $! >"$(pid_of $1)"
}
serves() {  # serves KIND TEXT: until it says so; it may end before
    grep -q "$2" "$(log_of $1)" && return
    runs $1 || { cat "$(log_of $1)" >&2; exit 1; }
    return 1
}
"""


def medium(number: int) -> str:
    """The file with a node's own disk, in the lab's folder."""
    return f"medium{number}.img"


def medium_size(options: Options) -> int:
    """Bytes of each node's disk, so that the array has the wanted size. One disk's worth is parity."""
    content = -(-options.disk_bytes // (options.nodes - 1) // _STRIPE) * _STRIPE
    return int((content + _STRIPE) * _OF_BLOCKS) + _OWN


def prepare(folder: Path, options: Options, limit: float) -> None:
    """What nodes find in the lab's folder: programs, the array's file, its key, and the configuration of fencing."""
    programs_of = folder / "bin"
    programs_of.mkdir()
    # A copy: the program may be built anew while the lab runs.
    lockify = programs_of / "lockify"
    shutil.copy2(programs.need("lockify"), lockify)
    (programs_of / "fence_lockify").symlink_to("lockify")
    shutil.copy2(PACKAGE / "inside" / "array", programs_of / "array")
    command([lockify, "cluster", "key", folder / _KEY], limit)
    devices = [f"{net.cluster_address(node)}:{_PORT}@{node}" for node in options.all_nodes]
    words = [word for device in devices for word in ("--device", device)]
    words += ["--lease", f"{_lease(options)}ms", "--device-size", f"{medium_size(options)}B"]
    command([lockify, "array", "create", folder / _FILE, *words], limit)
    (folder / _DLM_CONF).write_text(_dlm_conf(options), encoding="utf-8")


def _lease(options: Options) -> int:
    """Milliseconds. Nodes that share few processors are paused by each other: a short token is no reason for a short
    lease."""
    return max(options.token, _LEAST_LEASE)


def _dlm_conf(options: Options) -> str:
    """dlm_controld gives the agent these words. `node` is whom the agent is: each node puts its own number there."""
    words = f"array=/run/lab/{_FILE} cluster_key=/run/lab/{_KEY} node=SELF missing_as_off=1"
    connected = "".join(f"connect array node={node} plug=node{node}\n" for node in options.all_nodes)
    return f"device array {BIN}/fence_lockify {words}\n{connected}"


def configure_fencing() -> str:
    """The script that puts dlm.conf where dlm_controld looks for it: /etc is the host's, and gets a copy in memory."""
    return f"""
[ -e /etc/dlm/dlm.conf ] || {{
    mkdir /run/etc && cp -a /etc/. /run/etc && mkdir -p /run/etc/dlm || exit 1
    sed "s/node=SELF/node=$NODE/" /run/lab/{_DLM_CONF} >/run/etc/dlm/dlm.conf
    mount --bind /run/etc /etc || exit 1
}}
"""


def start_device(seconds: int, new: bool = False) -> str:
    """The script that serves the node's disk as its device of the array, unless it is served."""
    create = " --create" if new else ""
    return (
        LOOK
        + _PROCESSES
        + f"""
runs device || start device {_MEDIUM} --id $((NODE - 1)){create}
look {seconds} "the node's device of the array is served" serves device "^device "
"""
    )


def stop_device(signal: str = "KILL") -> str:
    """The script that ends the node's device; what it has acknowledged is on the node's disk."""
    return (
        LOOK
        + _PROCESSES
        + f"""
gone() {{ ! runs device; }}
! runs device || kill -{signal} "$(cat "$(pid_of device)")"
look 30 "the node's device of the array ends" gone
"""
    )


def wipe() -> str:
    """The script that makes the node's disk a new one."""
    return f"blkdiscard -z {_MEDIUM}"


def attach(options: Options, seconds: int) -> str:
    """The script that exports the array on the node, and makes it the block device. The export remembers whom it was
    before, so that it fences what is left of that."""
    socket, patience = "/run/array.sock", _PATIENCE * _lease(options) // 1000
    return (
        LOOK
        + _PROCESSES
        + f"""
runs export || {{
    rm -f {socket}
    start export --state /run/lab/array.host.$NODE --node-name node$NODE --socket {socket} --patience {seconds}s
}}
look {seconds} "the array is exported" serves export "serves the array"
attached() {{ [ "$(blockdev --getsize64 /dev/nbd0 2>/dev/null)" -gt 0 ]; }}
attached || nbd-client -unix {socket} /dev/nbd0 -block-size 4096 -timeout {patience} >/run/nbd.log 2>&1 ||
    {{ cat /run/nbd.log >&2; exit 1; }}
look {seconds} "/dev/nbd0 is there" attached
"""
    )


def detach(seconds: int) -> str:
    """The script that undoes `attach`: the export leaves the array in order."""
    return (
        LOOK
        + _PROCESSES
        + f"""
[ ! -e /sys/block/nbd0/pid ] || nbd-client -d /dev/nbd0 >/run/nbd.log 2>&1 ||
    {{ cat /run/nbd.log >&2; exit 1; }}
gone() {{ ! runs export; }}
! runs export || kill -TERM "$(cat "$(pid_of export)")"
look {seconds} "the array's export ends" gone
"""
    )


def export_ends(seconds: int) -> str:
    """The script that waits until the node's export ends because the array has fenced it."""
    return (
        LOOK
        + _PROCESSES
        + f"""
gone() {{ ! runs export; }}
look {seconds} "the export finds out that it is fenced" gone
grep fenced "$(log_of export)"
"""
    )


def lockspaces_without(node: int, seconds: int) -> str:
    """The script that waits until the DLM has gone on without a node: it is fenced, as dlm_controld knows, and recovered from."""
    return (
        LOOK
        + f"""
recovered() {{
    ! dlm_tool ls >/run/lockspaces 2>&1 && return 1
    ! grep -q '^new ' /run/lockspaces && ! grep '^members ' /run/lockspaces | grep -qw {node}
}}
look {seconds} "the DLM goes on without node {node}" recovered
"""
    )


def heal(seconds: float) -> str:
    """The script that ends when the array is whole, and bears the loss of any device. A device that it went on without
    is rebuilt; one that is just back is let in by itself. A rebuild that fails is tried again, as long as it is needed.
    """
    return (
        LOOK
        + f"""
whole() {{
    array status >/run/array.status 2>&1 && ! array status --json | grep -q '"unsettled":true' && return
    for id in $(awk '$3 ~ /^(failed|rebuilding)/ && / serves/ {{print $1}}' /run/array.status); do
        array rebuild --id "$id" >&2
    done
    return 1
}}
( look {max(1, int(seconds) - 5)} "the array is whole" whole ) 2>/run/array.heal ||
    {{ tail /run/array.heal >&2; cat /run/array.status >&2; exit 1; }}
"""
    )
