"""`labs/kernels/lab bench paper`: boots the compared clusters, measures the figures, prints gates and goals."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..build import Kernel
from ..errors import Exit, LabError, UsageError
from ..host import command, need_root, say
from ..options import Options
from . import effort as efforts
from . import array, figures, gates, load, locks, nfs
from .cluster import Cluster, Setup, booted, end_labs
from .effort import Effort
from .load import Programs
from .rows import Rows

Figure = Callable[[Sequence[Cluster], Effort, Rows, int], None]

FIGURES: dict[str, Figure] = {
    "7": figures.low_contention,
    "9": figures.latency,
    "8": figures.high_contention,
    "10": figures.applications,
    "deletion": figures.deletion,
    # The last: nodes leave for it.
    "sizes": figures.sizes,
}
# Names under which a reader may know a figure.
_ALSO = {"2b": "sizes", "2": "sizes", "5": "7", "11": "7", "packets": "7", "3": "9", "mdtest": "7"}


def arguments(sub: argparse.ArgumentParser) -> None:
    benches = sub.add_subparsers(required=True, metavar="BENCH")
    paper = benches.add_parser("paper", help="the paper's evaluation, with gates and goals")
    much = paper.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true", help="smaller and fewer: under 30 minutes")
    much.add_argument("--smoke", action="store_true", help="GFS2 only, checks counts, not times: 4 minutes")
    paper.add_argument(
        "--only", action="append", default=[], metavar="FIGURE", help=f"{', '.join([*FIGURES, *_ALSO])}"
    )
    paper.add_argument(
        "--fs", action="append", default=[], choices=("gfs2", "ocfs2", "nfs"), help="nfs goes with gfs2 (all)"
    )
    about = "of every comparison; fewer with O2CB and NFS"
    paper.add_argument("--rounds", type=int, default=0, metavar="N", help=about)
    paper.add_argument("--out", type=Path, default=Path("target/bench-paper"), metavar="DIR", help="(%(default)s)")
    paper.add_argument("--kernel", default="claim", help="as for `up`: a name or a path (%(default)s)")
    about = "compares the claim switched off with a kernel that has none; always without --quick and --smoke"
    paper.add_argument("--unpatched", action="store_true", help=about)
    paper.add_argument("--load", type=Path, metavar="PROGRAM", help="a lockify-load that is built already")
    about = "instead of our generator where one node is active; found on PATH, too"
    paper.add_argument("--mdtest", metavar="PROGRAM", help=about)
    about = "for fileserver and webproxy, instead of our generator; found on PATH, too"
    paper.add_argument("--filebench", metavar="PROGRAM", help=about)
    paper.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    limits = ", ".join(f"{effort.limit:g} {effort.name}" for effort in efforts.ALL)
    about = f"time limit in seconds ({limits}); rows that there are then become a report, too"
    paper.add_argument("--timeout", type=float, default=argparse.SUPPRESS, metavar="S", help=about)
    paper.set_defaults(bench=_paper, limit=lambda given: _effort(given).limit)
    array.arguments(benches.add_parser("array", help="a shared array beside md over network block devices"))
    locks.arguments(benches.add_parser("locks", help="what lock services do: the kernel's lock manager and Lockify"))


def run(given: argparse.Namespace) -> int:
    """One time limit for all. However it ends, the labs are ended and what was measured is kept."""

    def over(number: int, _: object) -> None:
        end_labs()  # Those of `paper`; that of `locks` ends with its `with`.
        if number == signal.SIGALRM:
            raise LabError("the benchmark's time limit is over: give it more with --timeout", Exit.TIMEOUT)
        raise KeyboardInterrupt

    limit = given.limit(given) if given.timeout is None else given.timeout
    if not limit > 0:
        raise UsageError("--timeout is more than 0")
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, over)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        code: int = given.bench(given)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return code


def _effort(given: argparse.Namespace) -> Effort:
    return efforts.chosen(given.quick, given.smoke, given.rounds)


def _paper(given: argparse.Namespace) -> int:
    need_root()
    if given.rounds < 0:
        raise UsageError("--rounds is at least 1")
    effort = _effort(given)
    wanted = _wanted(given.only, given.smoke)
    unpatched = _unpatched(given, effort)
    programs = load.find(given.load, given.mdtest, given.filebench, given.smoke)
    for kernel in filter(None, (given.kernel, unpatched)):
        Options(kernel=kernel).kernel_for(1)  # said before anything is booted, if it is missing
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out / "report.jsonl")
    report = _Report(given.out, effort, programs, rows)
    try:
        for group in _groups(given.fs or ["gfs2", "nfs", "ocfs2"], unpatched, given.smoke):
            setups = [setup if setup.kernel else replace(setup, kernel=given.kernel) for setup in group]
            with booted(setups, effort, programs) as clusters:
                _measure(clusters, wanted, effort, rows)
                _must_be_well(clusters)
    except BaseException as error:
        report.publish_what_there_is(error)
        raise
    finally:
        rows.close()
    verdicts = report.verdicts()
    table = report.publish()
    if given.json:
        told = [{"passed": verdict.passed, "line": verdict.line()} for verdict in verdicts]
        print(json.dumps({"seconds": report.seconds, "out": str(given.out), "verdicts": told}))
    else:
        print("\n".join([*report.about(), "", table, *(verdict.line() for verdict in verdicts)]))
    if not verdicts:
        raise LabError("nothing was measured that a gate is about: see --only and --fs")
    missed = [verdict for verdict in verdicts if not verdict.passed and verdict.bound.kind == "gate"]
    return Exit.SCRIPT if missed else Exit.OK


def _unpatched(given: argparse.Namespace, effort: Effort) -> str:
    """The kernel without the claim that the claim switched off is compared with, if it is."""
    if not given.unpatched and effort.name != "full":
        return ""
    if "/" not in given.kernel:
        return str(replace(Kernel.parse(given.kernel, Kernel.default()), stock=True))
    if given.unpatched:
        raise UsageError("--unpatched needs a --kernel by its name: nobody knows what another was made of")
    return ""


def _wanted(only: list[str], smoke: bool) -> list[str]:
    if smoke:
        return ["7"]
    names = [_ALSO.get(name, name) for name in only] or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        there_are = ", ".join([*FIGURES, *_ALSO])
        raise UsageError(f"--only: there is no figure {unknown[0]}; there are {there_are}")
    return [name for name in FIGURES if name in names]


def _groups(systems: list[str], unpatched: str, smoke: bool) -> list[list[Setup]]:
    """Clusters that run at the same time and are compared with each other."""
    groups = []
    for fs in ("gfs2", "ocfs2"):
        if fs not in systems or (smoke and fs != "gfs2"):
            continue
        setups = [
            Setup(f"{fs}-one", fs, "dlm", "off", 1),
            Setup(f"{fs}-stock", fs, "dlm", "off", 5),
            Setup(f"{fs}-claim", fs, "dlm", "on", 5),
        ]
        if unpatched:
            setups.append(Setup(f"{fs}-unpatched", fs, "dlm", "off", 5, kernel=unpatched))
        if fs == "ocfs2":
            setups.append(Setup("ocfs2-o2cb", fs, "o2cb", "off", 5))
        elif "nfs" in systems and not smoke:
            if lacking := nfs.missing():
                say(f"no NFS baseline: {', '.join(lacking)} missing; run `labs/kernels/lab setup`")
            else:
                setups.append(Setup("gfs2-nfs", "nfs", "nfs", "off", 2))
        groups.append(setups[1:] if smoke else setups)
    return groups


def _measure(clusters: Sequence[Cluster], wanted: list[str], effort: Effort, rows: Rows) -> None:
    for name in wanted:
        begin = time.monotonic()
        say(f"figure {name}")
        # That the claim switched off is the unpatched kernel is shown where packets are counted.
        compared = [cluster for cluster in clusters if name == "7" or not cluster.setup.unpatched]
        FIGURES[name](compared, effort, rows, _rounds(name, effort))
        say(f"figure {name}: {time.monotonic() - begin:.0f} s")


def _rounds(figure: str, effort: Effort) -> int:
    if figure == "10":
        return effort.application_rounds
    if figure == "sizes" and effort.name == "quick":
        return max(3, effort.rounds // 2)  # the median of fewer says nothing
    return effort.rounds


def _must_be_well(clusters: Sequence[Cluster]) -> None:
    for cluster in clusters:
        for node, lines in cluster.lab.complaints().items():
            raise LabError(f"{cluster.setup.name}, node {node}: its kernel complained: {lines[0]}", Exit.NODE)


class _Report:
    """The content of `--out` at any end: report.txt and report.html of the rows so far."""

    def __init__(self, out: Path, effort: Effort, programs: Programs, rows: Rows) -> None:
        self._out, self._effort, self._programs, self._rows = out, effort, programs, rows
        self._begin, self._load_before = time.monotonic(), os.getloadavg()[0]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def verdicts(self) -> list[gates.Verdict]:
        return list(gates.judge(self._rows, counts_only=self._effort.name == "smoke"))

    def publish(self, *first: str) -> str:
        """Writes both, with these paragraphs at the top; returns the table."""
        about = [*first, *self.about()]
        verdicts = [verdict.line() for verdict in self.verdicts()]
        texts = [word for line in [*about, *verdicts] for word in ("--text", line)]
        words: list[str | Path] = [self._programs.load, "page", self._out / "report.jsonl"]
        table = command([*words, "--html", self._out / "report.html", *texts], 60)
        (self._out / "report.txt").write_text("\n".join([*about, "", *verdicts, "", table]), "utf-8")
        return table

    def publish_what_there_is(self, error: BaseException) -> None:
        """Hours of measuring are not lost with the last minute; the error is what ends the command."""
        if not self._rows.all:
            return
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        try:
            self.publish(f"NOT COMPLETE: {why}")
        except LabError as another:
            say(f"the report of what was measured cannot be written: {another}")
        else:
            say(f"what was measured until then: {self._out / 'report.txt'}")

    def about(self) -> list[str]:
        effort, made_by = self._effort, self._programs.generator
        return [
            f"Effort: {effort.name}, {effort.rounds} rounds, paired and in alternating order; medians, with "
            f"quartiles in brackets. {self.seconds / 60:.1f} minutes; load of the machine before: "
            f"{self._load_before:.1f} ({os.cpu_count()} CPUs), after: {os.getloadavg()[0]:.1f}.",
            f"The tree of one active node (-z 2 -b 2 -I {_items(effort)}) is made by {made_by('files', 1)}, "
            f"that of five by {made_by('files', 5)}; fileserver and webproxy by {made_by('webproxy', 1)}. "
            "lockify-load has mdtest's and Filebench's parameters and is not them. The clock stops after the "
            "final barrier: the last parent directory is synced (on one node, too) and then seen by another "
            "node, which takes its lock from the creator.",
            "Claim off is the stock protocol, message for message. Packets are TCP segments with payload on "
            "the lock manager's port, both directions, at the active node. Rates of user-mode kernels compare "
            "only with each other.",
        ]


def _items(effort: Effort) -> str:
    if not effort.shortest:
        return str(effort.items)
    return f"{effort.items} to {effort.most_items}, for {effort.shortest} s on one node"
