"""OCFS2 on the kernel's DLM or on O2CB: making it on the host, mounting it in a node."""

from __future__ import annotations

import re
from pathlib import Path

from .cluster import MOUNTED, NAME
from .errors import Exit, LabError
from .host import command
from .options import Options

# The kernel's name for a stack that runs on fs/dlm; which daemon is above it does not matter.
STACK_NAMES = {"dlm": "pcmk", "o2cb": "o2cb"}

_ERROR = re.compile(r"\[[A-Z0-9_]+\]")  # every kind of error has a code


def make(disk: Path, options: Options, limit: float) -> None:
    journal = options.journal_size or 64
    words = ["mkfs.ocfs2", "-q", "-F", "--nodiscard", "-b", "4K", "-C", "4K"]
    words += ["-N", str(options.journal_count), "-J", f"size={journal}M"]
    words += [f"--cluster-stack={STACK_NAMES[options.stack]}", f"--cluster-name={NAME}"]
    command([*words, *options.mkfs, disk], limit, stdin="y\n" * 8)


def check(disk: Path, limit: float) -> str:
    """Replays the journals of nodes that died, and fails if anything else was to repair."""
    # -F: it cannot ask a cluster that exists in nodes only, so the lab did.
    words = ["fsck.ocfs2", "-F", "-f", "-y", str(disk)]
    told = command(words, limit, stdin="y\n" * 8, accept=(0, 1), merge=True)
    repaired = [line for line in told.splitlines() if _ERROR.match(line)]
    if repaired:
        raise LabError("fsck.ocfs2 found errors:\n" + "\n".join(repaired[:40]), Exit.SCRIPT)
    return told


def mount(options: Options) -> str:
    select = f"echo {STACK_NAMES[options.stack]} >/sys/fs/ocfs2/cluster_stack"
    return f"{select} && mount -t ocfs2 -o {options.mount_options} /dev/ubda {MOUNTED}"
