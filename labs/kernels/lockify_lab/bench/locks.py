"""`labs/kernels/lab bench locks`: the kernel's lock manager and Lockify's, in nodes of a lab, by one program.

The tasks of `lockify bench peers`, done by `locks.c` through libdlm. It runs in nodes with
Debian's library, whose lock manager is the kernel's, and with Lockify's, whose lock manager is a daemon in
the same node, in alternating order: on one node, and on three. `lockify bench relock` is Lockify's node
inside the process. All of it runs on the same user-mode kernels, on which a system call, a switch between
processes and a packet cost far more than on machines: only ratios mean anything, and they are worse for
whoever needs more of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import net
from ..devices import DEVICES
from ..errors import LabError, UsageError
from ..host import need_root, say
from ..lab import Lab
from .rows import Rows

_SOURCE = Path(__file__).with_suffix(".c")
# The library that a program is linked with, and what has it use the library's thread.
_LINKED = {"dlm_lt": [], "dlm": ["-DWITH_THREAD", "-D_REENTRANT", "-pthread"]}
_CLUSTERS = (1, 3)
_NUMBERS = itertools.count()
_PLAIN = "anybody who reaches the network may take and break locks"


@dataclass(frozen=True)
class Task:
    """The task of clients; `crates/measure/peers/src/turn.rs` calls it so, too."""

    title: str
    word: str  # locks.c's
    clients: int = 1
    clusters: tuple[int, ...] = _CLUSTERS


_AGAIN = "local re-lock"
TASKS = (
    Task("uncontended, 1 client", "own"),
    Task("uncontended, 4 clients", "own", clients=4),
    Task(_AGAIN, "again"),
    Task("another node's name", "far", clusters=(3,)),
    Task("hand-over", "wanted", clients=2),
    Task("4 clients, 90 % readers", "mixed90", clients=4),
    Task("4 clients, 0 % readers", "mixed0", clients=4),
    Task("creation with a file", "create"),
)


@dataclass(frozen=True)
class Service:
    """A lock manager and the way to it."""

    name: str
    by: str

    def does(self, task: Task, nodes: int) -> bool:
        """The ways to a lock manager are compared by what depends on nothing else."""
        return self.by == "dlm_lt" or (task.title == _AGAIN and nodes == 1)

    def command(self, task: Task, nodes: int, seconds: float, file: str, client: int) -> str:
        limited = f"timeout {seconds + 40:g}"
        if self.by == "embedded":
            return f"{limited} /run/lab/lockify bench relock {seconds:g}"
        word = "claim" if task.word == "create" and self.name == "lockify" else task.word
        words = f"{word} {_space(nodes)} {seconds:g} {file} {client} {task.clients}"
        return f"{limited} {self.environment(nodes)} /run/lab/locks.{self.by} {words}"

    def environment(self, nodes: int) -> str:
        if self.name == "kernel":
            return ""
        return f"env LD_LIBRARY_PATH=/run/lab/lib LOCKIFY_SOCKET={_socket(nodes)}"


_SERVICES = (
    Service("kernel", "dlm_lt"),
    Service("lockify", "dlm_lt"),
    Service("kernel", "dlm"),
    Service("lockify", "dlm"),
    Service("lockify", "embedded"),
)


@dataclass(frozen=True)
class Turn:
    """The findings of one service's clients in one round."""

    per_second: float
    median_us: float
    tail_us: float


def arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--lockify", type=Path, default=Path("target/release/lockify"), metavar="PROGRAM")
    sub.add_argument(
        "--libraries", type=Path, default=Path("target/release/lib"), metavar="DIR", help="made by `make lib`"
    )
    sub.add_argument("--rounds", type=int, default=5, metavar="N")
    sub.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each task of each service")
    sub.add_argument("--out", type=Path, default=Path("target/locks.jsonl"), metavar="FILE")
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
        raise LabError("libdlm.h or a C compiler is missing: run `labs/kernels/lab setup`")
    rows = Rows(given.out)
    with Lab("locks") as lab:
        say("three nodes with the kernel's lock manager, and Lockify's daemons in them")
        lab.up(nodes=max(_CLUSTERS), fs="none", stack="dlm")
        _put(lab.folder, given.lockify, libraries)
        _start(lab)
        for nodes in _CLUSTERS:
            for task in TASKS:
                if nodes in task.clusters:
                    _measure(lab, nodes, task, given.rounds, given.seconds, rows)
    rows.close()
    if given.json:
        print(json.dumps({"out": str(given.out), "rows": [asdict(row) for row in rows.all]}))
    return 0


def _space(nodes: int) -> str:
    return f"locks{nodes}"


def _socket(nodes: int) -> str:
    return f"/run/lockify{nodes}.sock"


def _put(folder: Path, lockify: Path, libraries: list[Path]) -> None:
    """The program of the nodes; they see this folder as /run/lab."""
    for library, flags in _LINKED.items():
        output: list[str | Path] = ["-o", folder / f"locks.{library}", _SOURCE, f"-l{library}"]
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", *flags, *output]
        subprocess.run(command, check=True, timeout=60)
    for name in ("lib", "out"):
        (folder / name).mkdir()
    for path in libraries:
        shutil.copy(path, folder / "lib")
    shutil.copy(lockify, folder / "lockify")
    for nodes in _CLUSTERS:
        members = [(node, f"{net.cluster_address(node)}:{7430 + nodes}") for node in range(1, nodes + 1)]
        listed = "".join(f'[[nodes]]\nid = {node}\naddress = "{address}"\n' for node, address in members)
        for node, _ in members:
            security = f'[security]\nplain_text = "{_PLAIN}"\n'
            # The lease is long: nodes that share two processors are paused by each other.
            text = f'node = {node}\nlease = "10s"\nsocket = "{_socket(nodes)}"\n{security}{listed}'
            (folder / f"lockify{nodes}.{node}.toml").write_text(text, "utf-8")


def _start(lab: Lab) -> None:
    """Daemons, and who keeps the lockspaces: one node's, and that of all of them. The last node is the master
    of the names that two nodes want from each other, or one from it."""
    lab.sh(DEVICES)
    for nodes in _CLUSTERS:
        members = list(range(1, nodes + 1))
        listed = ",".join(map(str, members))
        file = f"/run/lab/lockify{nodes}.$NODE.toml"
        log = f"/run/lab/out/log.daemon{nodes}.$NODE"
        lab.sh(f"/run/lab/lockify serve --config {file} >{log} 2>&1 &", members)
        status = f"/run/lab/lockify status --socket {_socket(nodes)} 2>/dev/null | grep -q '{listed}.*runs'"
        _await(lab, status, log, members)
        for service in _SERVICES[:2]:
            held = f"/run/lab/out/{service.name}{nodes}"
            run = f"{service.environment(nodes)} /run/lab/locks.dlm_lt hold {_space(nodes)} {held}.$NODE"
            log = f"/run/lab/out/log.{service.name}{nodes}.$NODE"
            lab.sh(f"names=\n[ $NODE != {nodes} ] || names='far wanted'\n{run} $names >{log} 2>&1 &", members)
            _await(lab, f"[ -e {held}.$NODE ]", log, members)


def _await(lab: Lab, condition: str, log: str, members: list[int]) -> None:
    """Until the condition holds on all nodes; else the error has the log."""
    script = f"for i in $(seq 300); do {condition} && exit; sleep 0.1; done; cat {log} >&2; exit 1"
    lab.sh(script, members, timeout=60)


def _measure(lab: Lab, nodes: int, task: Task, rounds: int, seconds: float, rows: Rows) -> None:
    services = [service for service in _SERVICES if service.does(task, nodes)]
    turns: dict[Service, list[Turn]] = {service: [] for service in services}
    for round_ in range(rounds):
        first = round_ % len(services)
        for service in services[first:] + services[:first]:
            turns[service].append(_turn(lab, nodes, task, service, seconds))
    for service, found in turns.items():
        way = {"service": service.name, "by": service.by}
        case: dict[str, str | int] = {"nodes": nodes, "task": task.title, **way}
        rows.add("locks", case, "locks_per_s", [turn.per_second for turn in found])
        rows.add("locks", {**case, "percentile": 50}, "latency_us", [turn.median_us for turn in found])
        rows.add("locks", {**case, "percentile": 99}, "latency_us", [turn.tail_us for turn in found])
        typical = sorted(turn.median_us for turn in found)[len(found) // 2]
        say(f"nodes: {nodes}, {task.title}, {service.name} by {service.by}: {typical:.0f} us")


def _turn(lab: Lab, nodes: int, task: Task, service: Service, seconds: float) -> Turn:
    """Client N is one of node N, counted around."""
    # A name that no turn has had: nodes may remember files that are gone.
    result = lab.folder / "out" / f"result{next(_NUMBERS)}"
    scripts: dict[int, str] = {}
    for client in range(task.clients):
        node = client % nodes + 1
        command = service.command(task, nodes, seconds, f"/run/lab/out/{result.name}", client)
        scripts[node] = scripts.get(node, "") + f"{command} & all=\"$all $!\"\n"
    cases = "".join(f"{node})\n{script};;\n" for node, script in scripts.items())
    ends = "for one in $all; do wait $one || exit; done"
    said = lab.sh(f"all=\ncase $NODE in\n{cases}esac\n{ends}", sorted(scripts), timeout=seconds + 60)
    if service.by == "embedded":
        per_second, median, tail = map(float, said.split())
        return Turn(per_second, median, tail)
    files = [result.with_suffix(f".{client}") for client in range(task.clients)]
    results = [file.read_text("utf-8") for file in files]
    return handed_over(results) if task.word == "wanted" else together(results)


def together(results: Sequence[str]) -> Turn:
    """The findings of clients that worked at the same time."""
    per_second = 0.0
    times: list[int] = []
    for result in results:
        first, *lines = result.splitlines()
        count, seconds = first.split()
        if int(count) != len(lines) or not lines:
            raise LabError(f"a client of locks.c measured nothing, or not all: {first!r}, {len(lines)} lines")
        per_second += int(count) / float(seconds)
        times += map(int, lines)
    return Turn(per_second, _quantile(times, 0.5), _quantile(times, 0.99))


def handed_over(results: Sequence[str]) -> Turn:
    """From the unlock of one that somebody waited for to the next one's grant."""
    steps, scales = [], []
    for client, result in enumerate(results):
        first, *lines = result.splitlines()
        scales.append(float(first.split()[2]))
        steps += [(*map(int, line.split()), client) for line in lines]
    steps.sort()
    scale = sum(scales) / len(scales)
    times = [
        (granted - released) * scale
        for (_, released, waited, one), (granted, _, _, other) in zip(steps, steps[1:], strict=False)
        if waited and one != other
    ]
    if not times or min(times) < 0:
        raise LabError(f"{len(times)} hand-overs, the quickest took {min(times, default=0):.0f} ns")
    return Turn(1e9 * len(times) / sum(times), _quantile(times, 0.5), _quantile(times, 0.99))


def _quantile(times_ns: Sequence[float], q: float) -> float:
    return sorted(times_ns)[min(int(len(times_ns) * q), len(times_ns) - 1)] / 1e3
