"""`lab/lab bench relock`: a local re-lock on the kernel's lock manager and on Lockify's, in one node, by one program.

`relock.c` is linked with libdlm and run in a node with Debian's library, whose lock manager is the kernel's, and with
Lockify's, whose lock manager is a daemon in the same node, in alternating order. `lockify bench relock` is the same
with Lockify's node inside the process. All of it runs on the same user-mode kernel, on which a system call and a
switch between processes cost far more than on a machine: only ratios mean anything, and they are worse for whoever
needs more of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

from ..devices import DEVICES
from ..errors import LabError, UsageError
from ..host import need_root, say
from ..lab import Lab
from .rows import Rows

_SOURCE = Path(__file__).with_suffix(".c")
# The library that a program is linked with, and what has it use the library's thread.
_LINKED = {"dlm_lt": [], "dlm": ["-DWITH_THREAD", "-D_REENTRANT", "-pthread"]}

# Lockify's daemon, and the end of what runs beside the programs.
_BEGIN = """
ip link set lo up
/run/lab/lockify serve --config /run/lab/relock.toml >/run/lab/relock.log 2>&1 & daemon=$!
trap 'kill $devices $daemon' EXIT
export LOCKIFY_SOCKET=/run/relock.sock
for i in $(seq 100); do [ -S $LOCKIFY_SOCKET ] && break; sleep 0.1; done
"""
_CONFIG = """node = 1
socket = "/run/relock.sock"
nodes = [{ id = 1, address = "127.0.0.1:7430" }]
"""


def arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--lockify", type=Path, default=Path("target/release/lockify"), metavar="PROGRAM")
    sub.add_argument(
        "--libraries", type=Path, default=Path("target/release/lib"), metavar="DIR", help="made by `make lib`"
    )
    sub.add_argument("--rounds", type=int, default=5, metavar="N")
    sub.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each program in each round")
    sub.add_argument("--out", type=Path, default=Path("target/relock.jsonl"), metavar="FILE")
    sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    sub.add_argument("--timeout", type=float, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    sub.set_defaults(bench=run, limit=lambda _: 4 * 3600.0)


def run(given: argparse.Namespace) -> int:
    need_root()
    if given.rounds < 1 or not 0 < given.seconds <= 60:
        raise UsageError("--rounds is at least 1, --seconds more than 0 and at most 60")
    libraries = [given.libraries / f"lib{library}.so.3" for library in _LINKED]
    for path, made in [(given.lockify, "make release"), *((path, "make lib") for path in libraries)]:
        if not path.is_file():
            raise UsageError(f"{path} is missing: `{made}`")
    if not Path("/usr/include/libdlm.h").exists() or not shutil.which("cc"):
        raise LabError("libdlm.h or a C compiler is missing: run `lab/lab setup`")
    rows = Rows(given.out)
    with Lab("relock") as lab:
        say("a node with the kernel's lock manager")
        lab.up(nodes=1, fs="none", stack="dlm")
        _put(lab.folder, given.lockify, libraries)
        limit = 60 + given.rounds * (5 * given.seconds + 10)
        said = lab.sh(_script(given.rounds, given.seconds), timeout=limit)
    for name, rounds in _read(said).items():
        service, library = name.split("/")
        case: dict[str, str | int] = {"service": service, "by": library}
        rows.add("relock", case, "locks_per_s", [per_second for per_second, _, _ in rounds])
        rows.add("relock", {**case, "percentile": 50}, "latency_us", [median for _, median, _ in rounds])
        rows.add("relock", {**case, "percentile": 99}, "latency_us", [tail for _, _, tail in rounds])
        say(f"{service} by {library}: {sorted(p for p, _, _ in rounds)[len(rounds) // 2]:.0f} pairs/s")
    rows.close()
    if given.json:
        print(json.dumps({"out": str(given.out), "rows": [asdict(row) for row in rows.all]}))
    return 0


def _put(folder: Path, lockify: Path, libraries: list[Path]) -> None:
    """What the node runs; it sees this folder as /run/lab."""
    for library, flags in _LINKED.items():
        output: list[str | Path] = ["-o", folder / f"relock.{library}", _SOURCE, f"-l{library}"]
        subprocess.run(["cc", "-std=gnu11", "-O2", *flags, *output], check=True, timeout=60)
    (folder / "lib").mkdir()
    for path in libraries:
        shutil.copy(path, folder / "lib")
    shutil.copy(lockify, folder / "lockify")
    (folder / "relock.toml").write_text(_CONFIG, "utf-8")


def _script(rounds: int, seconds: float) -> str:
    limited = f"timeout {seconds + 9:g}"
    programs = {}
    for library in _LINKED:
        programs[f"kernel/{library}"] = f"{limited} /run/lab/relock.{library} {seconds}"
        ours = f"{limited} env LD_LIBRARY_PATH=/run/lab/lib /run/lab/relock.{library} {seconds}"
        programs[f"lockify/{library}"] = ours
    programs["lockify/embedded"] = f"{limited} /run/lab/lockify bench relock {seconds}"
    lines = [DEVICES, _BEGIN, "set -e"]
    for round_ in range(rounds):
        order = list(programs.items())
        first = round_ % len(order)
        lines += [f"echo {name} $({words})" for name, words in order[first:] + order[:first]]
    return "\n".join(lines)


def _read(said: str) -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for line in said.splitlines():
        name, *numbers = line.split()
        if len(numbers) != 3:
            raise LabError(f"{name} printed no figures: {line!r}")
        per_second, median, tail = map(float, numbers)
        found.setdefault(name, []).append((per_second, median, tail))
    return found
