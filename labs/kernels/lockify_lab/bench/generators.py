"""Programs of others that make load: what they are told, and what they say about it.

lockify-load runs them, counts nothing and adds the final barrier. Operations and seconds are the program's own:
starting MPI, or filling a set of files, is no part of a load.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import LabError
from .effort import BRANCH, DEPTH, TREE_FOLDERS

# Operations and seconds from what a program printed.
Said = Callable[[str], tuple[int, float]]

# mdtest on one node without mpirun
_ALONE = "env OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_btl=self OMPI_MCA_plm=isolated"


def mdtest_words(program: str, at: str, kind: str, items: int) -> str:
    """Creates one kind in a new tree, and nothing else."""
    letter = {"directories": "-D", "files": "-F"}[kind]
    return f"{_ALONE} {program} -d {at} -C {letter} -z {DEPTH} -b {BRANCH} -I {items}"


def mdtest_said(kind: str, items: int) -> Said:
    """Of its summary, in which all columns but the last are equal with one process and one iteration."""
    heading = {"directories": "Directory", "files": "File"}[kind]
    line = re.compile(rf"^\s*{heading} creation\s*:?\s+([0-9.]+)", re.MULTILINE)

    def said(output: str) -> tuple[int, float]:
        found = line.search(output)
        if not found or not float(found[1]):
            raise LabError(f"mdtest did not tell a rate of `{heading} creation`:\n{output[-2000:]}")
        operations = items * TREE_FOLDERS
        return operations, operations / float(found[1])

    return said


@dataclass(frozen=True)
class Personality:
    """Which files one of Filebench's loads uses, and what each of its threads does, over and over."""

    threads: int
    width: int  # entries of a directory
    mean_size: str
    steps: tuple[str, ...]


FEWEST_SECONDS = 10  # of Filebench's loads
_SET = "filesetname=big"
_CLOSE = "closefile fd=1"
_READ = (f"openfile {_SET},fd=1", "readwholefile fd=1,iosize=1m", _CLOSE)
# As `lockify-load` has them (crates/measure/load/src/profile.rs).
PERSONALITIES = {
    "fileserver": Personality(
        50, 20, "128k",
        (
            f"createfile {_SET},fd=1", "writewholefile srcfd=1,fd=1,iosize=1m", _CLOSE,
            f"openfile {_SET},fd=1", "appendfilerand iosize=16k,fd=1", _CLOSE,
            *_READ,
            f"deletefile {_SET}", f"statfile {_SET}",
        ),
    ),
    "webproxy": Personality(
        100, 1_000_000, "16k",
        (
            f"deletefile {_SET}", f"createfile {_SET},fd=1", "appendfilerand iosize=16k,fd=1", _CLOSE,
            *(_READ * 5),
            "appendfilerand filesetname=small,iosize=16k,fd=2",
        ),
    ),
}  # fmt: skip


def filebench_file(profile: str, at: str, files: int, seconds: float) -> str:
    """The load in Filebench's own language (of 1.5), which counts whole seconds.

    A thread's memory is as much as one read needs, and not the usual 10 MiB: all threads fill theirs first, and
    for a node that took longer than a load runs. Not all of the first seconds is load even so.
    """
    load = PERSONALITIES[profile]
    size = f"cvar(type=cvar-gamma,parameters=mean:{_bytes(load.mean_size)};gamma:1.5)"
    lines = [
        f"set $size={size}",
        f"define fileset name=big,path={at},size=$size,entries={files},dirwidth={load.width},prealloc=80",
        f"define fileset name=small,path={at},size=0,entries=1,dirwidth=1,prealloc",
        "define process name=load,instances=1 {",
        f"  thread name=load,memsize=1m,instances={load.threads} {{",
    ]
    for number, step in enumerate(load.steps, 1):
        what, _, rest = step.partition(" ")
        lines.append(f"    flowop {what} name={what}{number},{rest}")
    return "\n".join([*lines, "  }", "}", f"run {max(FEWEST_SECONDS, round(seconds))}", ""])


def _bytes(size: str) -> int:
    return int(size.removesuffix("k")) * 1024


def filebench_said(output: str) -> tuple[int, float]:
    """`IO Summary: 155483 ops 15547.188 ops/s ...`; earlier versions have commas."""
    found = re.search(r"IO Summary:\s*(\d+) ops,? +([0-9.]+) ops/s", output)
    if not found or not float(found[2]):
        raise LabError(f"filebench did not tell its `IO Summary`:\n{output[-2000:]}")
    return int(found[1]), int(found[1]) / float(found[2])
