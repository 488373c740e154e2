"""`lab/lab bench paper`: boots the compared clusters, measures the figures, prints gates and goals."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import Exit, LabError, UsageError
from ..host import command, need_root, say
from ..options import Options
from . import effort as efforts
from . import figures, gates, load, nfs, relock
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
    about = "of every comparison; fewer with O2CB and NFS in --quick"
    paper.add_argument("--rounds", type=int, default=0, metavar="N", help=about)
    paper.add_argument("--out", type=Path, default=Path("target/bench-paper"), metavar="DIR", help="(%(default)s)")
    paper.add_argument("--kernel", default="claim", help="as for `up`: a name or a path (%(default)s)")
    paper.add_argument("--load", type=Path, metavar="PROGRAM", help="a lockify-load that is built already")
    paper.add_argument("--mdtest", metavar="PROGRAM", help="instead of our generator; found on PATH, too")
    paper.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    paper.add_argument("--timeout", type=float, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    paper.set_defaults(bench=_paper)
    relock.arguments(benches.add_parser("relock", help="a local re-lock: the kernel's lock manager and Lockify"))


def run(given: argparse.Namespace) -> int:
    """One time limit for all. However it ends, the labs are ended and what was measured is kept."""

    def over(number: int, _: object) -> None:
        end_labs()  # Those of `paper`; that of `relock` ends with its `with`.
        if number == signal.SIGALRM:
            raise LabError("the benchmark's time limit is over: give it more with --timeout", Exit.TIMEOUT)
        raise KeyboardInterrupt

    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, over)
    signal.setitimer(signal.ITIMER_REAL, given.timeout)
    try:
        code: int = given.bench(given)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return code


def _paper(given: argparse.Namespace) -> int:
    need_root()
    if given.rounds < 0:
        raise UsageError("--rounds is at least 1")
    effort = efforts.chosen(given.quick, given.smoke, given.rounds)
    wanted = _wanted(given.only, given.smoke)
    programs = load.find(given.load, given.mdtest, given.smoke)
    Options(kernel=given.kernel).kernel_for(1)  # said before anything is booted, if it is missing
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out / "report.jsonl")
    begin, load_before = time.monotonic(), os.getloadavg()[0]
    for group in _groups(given.fs or ["gfs2", "nfs", "ocfs2"], effort, given.smoke):
        setups = [setup if setup.kernel else replace(setup, kernel=given.kernel) for setup in group]
        with booted(setups, effort, programs) as clusters:
            _measure(clusters, wanted, effort, rows)
            _must_be_well(clusters)
    rows.close()
    verdicts = list(gates.judge(rows, counts_only=given.smoke))
    text = [verdict.line() for verdict in verdicts]
    about = _about(effort, programs, load_before, time.monotonic() - begin)
    _publish(given.out, programs, about, text)
    if given.json:
        told = [{"passed": verdict.passed, "line": verdict.line()} for verdict in verdicts]
        print(json.dumps({"seconds": time.monotonic() - begin, "out": str(given.out), "verdicts": told}))
    else:
        print("\n".join([*about, "", *text]))
    if not verdicts:
        raise LabError("nothing was measured that a gate is about: see --only and --fs")
    missed = [verdict for verdict in verdicts if not verdict.passed and verdict.bound.kind == "gate"]
    return Exit.SCRIPT if missed else Exit.OK


def _wanted(only: list[str], smoke: bool) -> list[str]:
    if smoke:
        return ["7"]
    names = [_ALSO.get(name, name) for name in only] or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        there_are = ", ".join([*FIGURES, *_ALSO])
        raise UsageError(f"--only: there is no figure {unknown[0]}; there are {there_are}")
    return [name for name in FIGURES if name in names]


def _groups(systems: list[str], effort: Effort, smoke: bool) -> list[list[Setup]]:
    """Clusters that run at the same time and are compared with each other."""
    groups = []
    if "gfs2" in systems:
        setups = [
            Setup("gfs2-one", "gfs2", "dlm", "off", 1),
            Setup("gfs2-stock", "gfs2", "dlm", "off", 5),
            Setup("gfs2-claim", "gfs2", "dlm", "on", 5),
        ]
        if effort is efforts.FULL:  # shows once that the claim switched off is the stock kernel
            setups.append(Setup("gfs2-unpatched", "gfs2", "dlm", "off", 5, kernel="stock"))
        if "nfs" in systems and not smoke:
            if lacking := nfs.missing():
                say(f"no NFS baseline: {', '.join(lacking)} missing; run `lab/lab setup`")
            else:
                setups.append(Setup("gfs2-nfs", "nfs", "nfs", "off", 2))
        groups.append(setups[1:] if smoke else setups)
    if "ocfs2" in systems and not smoke:
        groups.append(
            [
                Setup("ocfs2-one", "ocfs2", "dlm", "off", 1),
                Setup("ocfs2-stock", "ocfs2", "dlm", "off", 5),
                Setup("ocfs2-claim", "ocfs2", "dlm", "on", 5),
                Setup("ocfs2-o2cb", "ocfs2", "o2cb", "off", 5),
            ]
        )
    return groups


def _measure(clusters: Sequence[Cluster], wanted: list[str], effort: Effort, rows: Rows) -> None:
    for name in wanted:
        begin = time.monotonic()
        say(f"figure {name}")
        FIGURES[name](clusters, effort, rows, _rounds(name, effort))
        say(f"figure {name}: {time.monotonic() - begin:.0f} s")


def _rounds(figure: str, effort: Effort) -> int:
    if figure == "10":
        return effort.application_rounds
    # Fewer nodes are compared with fewer rounds: the gates are about five.
    return max(2, effort.rounds // 2) if figure == "sizes" else effort.rounds


def _must_be_well(clusters: Sequence[Cluster]) -> None:
    for cluster in clusters:
        for node, lines in cluster.lab.complaints().items():
            raise LabError(f"{cluster.setup.name}, node {node}: its kernel complained: {lines[0]}", Exit.NODE)


def _about(effort: Effort, programs: Programs, load_before: float, seconds: float) -> list[str]:
    return [
        f"Effort: {effort.name}, {effort.rounds} rounds, paired and in alternating order; medians, with "
        f"quartiles in brackets. {seconds / 60:.1f} minutes; load of the machine before: {load_before:.1f} "
        f"({os.cpu_count()} CPUs), after: {os.getloadavg()[0]:.1f}.",
        f"The tree is made by {programs.tree}, -z 2 -b 2 -I {_items(effort)}; fileserver and webproxy by "
        "lockify-load with Filebench's parameters. The clock stops after the final barrier: the last parent "
        "directory is synced (on one node, too) and then seen by another node, which takes its lock from "
        "the creator.",
        "Claim off is the stock protocol, message for message. Packets are TCP segments with payload on the "
        "lock manager's port, both directions, at the active node. Rates of user-mode kernels compare only "
        "with each other.",
    ]


def _items(effort: Effort) -> str:
    if not effort.shortest:
        return str(effort.items)
    return f"{effort.items} to {effort.most_items}, for {effort.shortest} s on one node"


def _publish(out: Path, programs: Programs, about: list[str], verdicts: list[str]) -> None:
    texts = [word for line in [*about, *verdicts] for word in ("--text", line)]
    words: list[str | Path] = [programs.load, "page", out / "report.jsonl"]
    words += ["--html", out / "report.html", *texts]
    (out / "report.txt").write_text("\n".join([*about, "", *verdicts, "", command(words, 60)]), "utf-8")
