"""The common parts of the tests of OCFS2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockify_lab.lab import Lab

LOCKS = 4  # of a new inode: rw, inode, open, and the dentry lock of its name
TOKEN = 30000  # ms; a cluster must not fall apart because the machine has much else to do


@contextmanager
def ocfs2(name: str, nodes: int, token: int = TOKEN, **options: object) -> Iterator[Lab]:
    with Lab(f"ocfs2-{name}") as lab:
        lab.up(nodes=nodes, fs="ocfs2", memory="512M", token=token, **options)
        yield lab


# Lockdep's reports about the stock kernel, and the function that it is about: OCFS2 takes the inode locks of two
# directories with one class when a link or a rename needs both; O2CB's heartbeat flushes the queue whose work waits
# for the heartbeat's callbacks.
_STOCK_REPORTS = {
    "possible recursive locking detected": "ocfs2_double_lock",
    "possible circular locking dependency detected": "o2net_disconnect_node",
}


def expect_stock_reports(lab: Lab) -> None:
    """lockdep switches itself off with its first report: it watches only until then."""
    for report in (*_STOCK_REPORTS, "lockdep has switched itself off"):
        lab.expect(report)


def check_stock_reports(lab: Lab) -> None:
    """They were about nothing else, where there were any."""
    for console in (lab.folder / "nodes").glob("*.console"):
        for told, function in _STOCK_REPORTS.items():
            _, *reports = console.read_text(errors="replace").split(told)
            for report in reports:
                assert function in report[:8000], f"{console.name}: {report[:8000]}"


def counters(lab: Lab, node: int) -> dict[str, int]:
    """Of one node: others may be stalled. The only lockspace is the file system's."""
    lines = lab.sh("cat /sys/kernel/debug/dlm/*_claim", node).splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
