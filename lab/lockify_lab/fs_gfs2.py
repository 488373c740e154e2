"""GFS2: making it on the host, mounting it in a node."""

from __future__ import annotations

from pathlib import Path

from .cluster import MOUNTED, NAME
from .host import command
from .options import Options

LOCKSPACE = "fs"


def make(disk: Path, options: Options, limit: float) -> None:
    journal = options.journal_size or 32
    words = ["mkfs.gfs2", "-O", "-q", "-K", "-p", "lock_dlm", "-t", f"{NAME}:{LOCKSPACE}"]
    words += ["-j", str(options.journal_count), "-J", str(journal), *options.mkfs]
    command([*words, disk], limit)


def mount(options: Options) -> str:
    return f"mount -t gfs2 -o {options.mount_options} /dev/ubda {MOUNTED}"
