"""The command line of labs/namespaces/nemesis."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from yard import LOCKIFY, LOCKIFYD, Failure

from . import faults
from .plan import POLICIES, BadPlan, Plan, draw
from .run import Run

NEEDS = ("ip", "nft", "nsenter", "unshare", "setpriv")
SMALL = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        plan = Plan.load(options.plan) if options.plan else _drawn(options)
    except BadPlan as error:
        print(f"nemesis: {error}", file=sys.stderr)
        return 2
    print(plan.describe(), flush=True)
    if options.dry:
        return 0
    if missing := _missing(plan):
        print(f"nemesis: {missing}", file=sys.stderr)
        return 3
    return _run(plan, options.out)


def _run(plan: Plan, where: Path | None) -> int:
    # Clients run in another directory.
    out = (where or Path(tempfile.mkdtemp(prefix=f"lockify-nemesis-{plan.membership}-{plan.seed}-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        print(f"nemesis: {out} is not empty: name a directory that is, or that does not exist", file=sys.stderr)
        return 2
    plan.save(out / "plan.json")
    print(f"results in {out}", flush=True)
    replay = _replay(plan)
    try:
        summary = Run(plan, out, replay, lambda text: print(text, flush=True)).go()
    except Failure as error:
        print(f"nemesis: {error}\nto replay: {replay}", file=sys.stderr)
        return 3
    print(summary.line())
    if not summary.violations:
        return 0
    for violation in summary.violations[:10]:
        print(f"  {violation}")
    print(f"{len(summary.violations)} violations; all of them: {out}/summary.json\nto replay: {replay}")
    return 1


def _drawn(options: argparse.Namespace) -> Plan:
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    locks = options.locks or (SMALL if options.minutes < 10 else 1_000_000)
    only = [kind for kind in options.only.split(",") if kind]
    return draw(options.nodes, options.membership, options.lease, seed, options.minutes, locks, only, options.policy)


def _replay(plan: Plan) -> str:
    words = ["labs/namespaces/nemesis", "--nodes", str(plan.nodes), "--minutes", f"{plan.minutes:g}",
             "--seed", str(plan.seed), "--membership", plan.membership,
             "--lease", f"{plan.lease:g}", "--locks", str(plan.locks),
             "--policy", plan.policy]
    if plan.only:
        words += ["--only", ",".join(plan.only)]
    return shlex.join(words)


def _missing(plan: Plan) -> str:
    if os.geteuid() != 0:
        return "this needs root: it makes network namespaces"
    needs = [*NEEDS, *(["corosync"] if plan.membership == "corosync" else [])]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [tool for tool in needs if not any((Path(p) / tool).exists() for p in path.split(":"))]
    if absent:
        return f"{', '.join(absent)} missing: apt-get install corosync iproute2 libfaketime nftables util-linux"
    for program in (LOCKIFY, LOCKIFYD):
        if not program.exists():
            return f"{program} is missing: cargo build -p lockify-cli -p lockify-daemon"
    from .cluster import FAKETIME

    return "" if Path(FAKETIME).exists() else f"{FAKETIME} is missing: apt-get install libfaketime"


def _parser() -> argparse.ArgumentParser:
    kinds = sorted(faults.ROOMS)
    parser = argparse.ArgumentParser(
        prog="nemesis",
        description="Breaks a cluster of real daemons in network namespaces at random, and judges by what its clients "
        "wrote while they held locks, and by `lockify check`.",
        epilog="Exit codes: 0 nothing found; 1 a violation; 2 wrong arguments; 3 it could not be tried. "
        "Programs: LOCKIFY and LOCKIFYD, by default those of target/debug.",
    )
    parser.add_argument("--nodes", type=_count, default=3, help="how many daemons (3)")
    parser.add_argument("--minutes", type=_minutes, default=3.0, help="how long (3)")
    parser.add_argument("--seed", type=int, help="of the schedule and of what clients do; by default drawn and printed")
    parser.add_argument("--membership", choices=["static", "corosync"], default="static")
    parser.add_argument("--policy", choices=POLICIES, default="", help="of the lockspace; by default of the seed")
    parser.add_argument("--lease", type=_minutes, default=2.0, metavar="S", help="in seconds (2)")
    parser.add_argument("--locks", type=int, default=0, metavar="N",
                        help=f"of the fault hoard ({SMALL}; from 10 minutes on a million)")
    parser.add_argument("--only", default="", metavar="FAULT,...", help=f"these kinds only, of {', '.join(kinds)}")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan.json of an earlier run, instead of a seed")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for plan, story, logs, histories (below /tmp)")
    parser.add_argument("--dry", action="store_true", help="print the plan and end")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if not 3 <= value <= 64:
        raise argparse.ArgumentTypeError(f"{value} nodes: name 3 to 64")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: more than 0")
    return value
