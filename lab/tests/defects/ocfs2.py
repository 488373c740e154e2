"""What the tests of OCFS2 share."""

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


def expect_double_lock(lab: Lab) -> None:
    """The stock kernel takes the inode locks of two directories with one class of lockdep, when a link or a rename
    needs both. lockdep takes that for a deadlock, and switches itself off: it watches only until then."""
    lab.expect("possible recursive locking detected")
    lab.expect("lockdep has switched itself off")


def check_double_lock(lab: Lab) -> None:
    """It was that and no other lock, where there was a report."""
    for console in (lab.folder / "nodes").glob("*.console"):
        _, *reports = console.read_text(errors="replace").split("possible recursive locking detected")
        for report in reports:
            assert "ocfs2_double_lock" in report[:8000], f"{console.name}: {report[:8000]}"


def counters(lab: Lab, node: int) -> dict[str, int]:
    """Of one node: others may be stalled. The only lockspace is the file system's."""
    lines = lab.sh("cat /sys/kernel/debug/dlm/*_claim", node).splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
