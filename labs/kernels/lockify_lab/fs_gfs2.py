"""GFS2: making it on the host, mounting it in a node."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from .cluster import MOUNTED, NAME
from .errors import Exit, LabError
from .host import command, say
from .options import Options

LOCKSPACE = "fs"

# The output of fsck.gfs2 for a file system without errors.
_USUAL = re.compile(
    r"$|Initializing fsck|Validating resource group index|Level 1|\(level 1 passed\)|jid=\d+: Replayed"
    r"|Recovering journals|Journal recovery complete|Starting |Reconciling bitmaps|\w+ completed in"
    r"|The statfs file (is wrong|was fixed)|(Current|Calculated) statfs values|(blocks|free|dinodes): +\d"
    r"|Writing changes to disk|fsck.gfs2 complete|\d+ percent complete"  # (the last if it takes long)
)

# And of dinodes that have no name any more and that no node has deleted: it reclaims them, in resource groups without
# any other error.
_CLEANED = re.compile(r"RGs: Consistent: \d+ +Cleaned: \d+ +Inconsistent: 0 +Fixed: 0 ")
_RECLAIMED = re.compile(r"RG #\d+ \(0x[0-9a-f]+\) Inode count inconsistent|Resource group counts updated")
# And of a dinode that looks as if its creator had crashed between the allocation and the content. It was seen on an array
# only, and is not explained (README.md, "Limits").
_HALF_MADE = re.compile(
    r"Found invalid inode at block (\d+) \(0x[0-9a-f]+\)\n"
    r"Block \1 \(0x[0-9a-f]+\) was 'inode', should be free\.\nThe bitmap was fixed\.\n"
)


def make(disk: Path, options: Options, limit: float) -> None:
    command([*_mkfs(options), disk], limit)


def make_inside(options: Options) -> str:
    """The script that makes it in a node, where the node has its device."""
    return f"{shlex.join(_mkfs(options))} {options.device}"


def _mkfs(options: Options) -> list[str]:
    journal = options.journal_size or 32
    words = ["mkfs.gfs2", "-O", "-q", "-K", "-p", "lock_dlm", "-t", f"{NAME}:{LOCKSPACE}"]
    words += ["-j", str(options.journal_count), "-J", str(journal), *options.mkfs]
    return words


def check(disk: Path, limit: float, unlinked: bool = False) -> str:
    """Replays the journals of nodes that died, and fails if anything else was to repair, but for unlinked dinodes that
    may be left if `unlinked` says so.

    fsck.gfs2 replays them only if it may repair, too, so what it tells decides. The file of free space
    (statfs) is written now and then only, and is never right after a crash.
    """
    return judge(command(["fsck.gfs2", "-y", disk], limit, accept=(0, 1), merge=True), unlinked)


def check_inside(options: Options) -> str:
    """The script that does it in a node. `judge` judges its output."""
    return f"fsck.gfs2 -y {options.device} 2>&1 || [ $? = 1 ]"


def judge(told: str, unlinked: bool = False, half_made: bool = False) -> str:
    """Raises if fsck.gfs2 tells of errors; else returns all of it. `half_made` lets dinodes pass that seem to be allocated
    and no more, and says so."""
    for found in _HALF_MADE.finditer(told) if half_made else ():
        say(f"fsck.gfs2, not explained, let pass: {' '.join(found.group().split())}")
        told = told.replace(found.group(), "")
    repaired = [line for line in told.splitlines() if not _USUAL.match(line)]
    if repaired and unlinked and _CLEANED.match(repaired[0]):
        repaired = [line for line in repaired[1:] if not _RECLAIMED.match(line)]
    if repaired:
        raise LabError("fsck.gfs2 found errors:\n" + "\n".join(repaired[:40]), Exit.SCRIPT)
    return told


def mount(options: Options) -> str:
    return f"mount -t gfs2 -o {options.mount_options} {options.device} {MOUNTED}"
