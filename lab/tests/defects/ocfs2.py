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


def counters(lab: Lab, node: int) -> dict[str, int]:
    """Of one node: others may be stalled. The only lockspace is the file system's."""
    lines = lab.sh("cat /sys/kernel/debug/dlm/*_claim", node).splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
