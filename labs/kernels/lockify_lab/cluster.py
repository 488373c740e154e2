"""Cluster membership in the nodes: corosync with dlm_controld, or O2CB's own.

Everything here is a script for the agent with a time limit of its own; it waits by looking, never
by sleeping for a fixed time.
"""

from __future__ import annotations

from pathlib import Path

from . import net
from .options import Options

NAME = "lab"
MOUNTED = "/mnt/fs"

LOOK = """
look() {  # look SECONDS WHAT COMMAND...: until the command succeeds
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "gave up waiting until $what" >&2; exit 1; }
        sleep 0.1
    done
}
"""


def write_configuration(folder: Path, options: Options) -> None:
    """Both stacks' files; the nodes see the folder as /run/lab."""
    (folder / "corosync.conf").write_text(_corosync_conf(options), encoding="utf-8")
    (folder / "o2cb.conf").write_text(_o2cb_conf(options), encoding="utf-8")


def start_membership(stack: str, members: int, seconds: int) -> str:
    """The script that makes a node a member, and ends when it sees `members` of them."""
    return {"dlm": _start_corosync, "o2cb": _start_o2cb}[stack](members, seconds)


def start_controld(options: Options, members: int, seconds: int) -> str:
    """dlm_controld tells the kernel's DLM who the members are. It can fence nobody on a shared disk: a node that is
    declared dead was killed, or is cut off by a test that knows what it does. Fencing off, quorum decides
    who goes on. An array has its own fencing (array.py). It need not wait for nodes that are about to join: one
    that is cut off too early has no export yet."""
    fencing = "--enable_fencing 1 --post_join_delay 2" if options.on_array else "--enable_fencing 0"
    arguments = f"{fencing} --enable_quorum_lockspace {int(options.quorum)}"
    return (
        LOOK
        + f"""
mkdir -p /var/log/dlm_controld
pidof -q dlm_controld || dlm_controld {arguments} || exit 1
comms() {{ [ "$(ls /sys/kernel/config/dlm/cluster/comms 2>/dev/null | wc -l)" -ge {members} ]; }}
look {seconds} "the DLM knows {members} nodes" comms
"""
    )


def stop_membership(stack: str, seconds: int) -> str:
    if stack == "o2cb":
        return f"o2cb --config-file=/run/lab/o2cb.conf unregister-cluster {NAME}"
    return (
        LOOK
        + f"""
# Asked again and again: dlm_controld looks whether it was asked only when that interrupts its waiting, and forgets it
# as long as it knows a lockspace.
ended() {{ pidof -q "$1" || return 0; pkill -TERM -x "$1"; return 1; }}
for daemon in dlm_controld corosync; do look {seconds} "$daemon ends" ended "$daemon"; done
"""
    )


def has_token(token: int, seconds: int) -> str:
    """The script that ends when corosync has read that token, after its file has changed."""
    return (
        LOOK
        + f"""
has() {{ corosync-cmapctl -g totem.token | grep -q "= {token}$"; }}
look {seconds} "corosync has a token of {token} ms" has
"""
    )


def _start_corosync(members: int, seconds: int) -> str:
    return (
        LOOK
        + f"""
export COROSYNC_MAIN_CONFIG_FILE=/run/lab/corosync.conf
pidof -q corosync || corosync -c /run/lab/corosync.conf || {{ tail /var/log/corosync.log >&2; exit 1; }}
all() {{ corosync-quorumtool -s 2>/dev/null | grep -q "^Total votes: *{members}$"; }}
look {seconds} "corosync sees {members} nodes" all
"""
    )


def _start_o2cb(members: int, seconds: int) -> str:
    """A loaded machine must not fence: thresholds far beyond any stall."""
    del members, seconds  # O2CB's members appear with the heartbeat, when the file system is mounted
    heart = f"/sys/kernel/config/cluster/{NAME}/heartbeat/dead_threshold"
    idle = f"/sys/kernel/config/cluster/{NAME}/idle_timeout_ms"
    return f"""
set -e
echo o2cb >/sys/fs/ocfs2/cluster_stack
o2cb --config-file=/run/lab/o2cb.conf register-cluster {NAME}
echo 61 >{heart}
echo 60000 >{idle}
"""


def _corosync_conf(options: Options) -> str:
    nodes = "".join(
        f"  node {{\n    ring0_addr: {net.cluster_address(node)}\n    nodeid: {node}\n"
        f"    name: node{node}\n  }}\n"
        for node in options.all_nodes
    )
    # Of two nodes either one goes on alone; with more it takes a majority.
    two_node = "  two_node: 1\n" if options.nodes == 2 else ""
    return f"""totem {{
  version: 2
  cluster_name: {NAME}
  transport: udpu
  crypto_cipher: none
  crypto_hash: none
  token: {options.token}
}}
quorum {{
  provider: corosync_votequorum
{two_node}}}
logging {{
  to_syslog: no
  to_stderr: no
  to_logfile: yes
  logfile: /var/log/corosync.log
}}
nodelist {{
{nodes}}}
"""


def _o2cb_conf(options: Options) -> str:
    nodes = "".join(
        f"node:\n\tip_port = 7777\n\tip_address = {net.cluster_address(node)}\n\tnumber = {node}\n"
        f"\tname = node{node}\n\tcluster = {NAME}\n\n"
        for node in options.all_nodes
    )
    return f"cluster:\n\tnode_count = {options.nodes}\n\tname = {NAME}\n\n{nodes}"
