"""`labs/kernels/lab test --xfstests DIR`: the list twice on each file system, as usual and as we have it."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from ..errors import Exit, UsageError
from ..options import Options
from .checkout import default_tests, usable
from .results import PASSED, Run, compare
from .run import Plan, run
from .ways import CLUSTER, FILE_SYSTEMS, ways

LIMIT = 4 * 3600.0  # seconds for everything


def arguments(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group(
        "xfstests, with the claim off and on (GFS2, OCFS2), on disks and on an array (ext4, XFS); "
        "other arguments are names of tests"
    )
    about = f"a checkout of xfstests that is built; time limit {LIMIT:g} s"
    group.add_argument("--xfstests", type=Path, metavar="DIR", help=about)
    group.add_argument("--fs", choices=FILE_SYSTEMS, action="append", default=[], help="(gfs2 and ocfs2)")
    group.add_argument("--nodes", type=int, default=3, help="that have GFS2 or OCFS2 mounted (%(default)s)")
    about = "how many of them run tests, each its share (%(default)s)"
    group.add_argument("--active", type=int, default=1, metavar="N", help=about)
    about = "a test that takes longer hangs (%(default)s)"
    group.add_argument("--test-timeout", type=float, default=600, metavar="S", help=about)
    about = "what tests wrote (%(default)s)"
    group.add_argument("--out", type=Path, default=Path("xfstests-results"), metavar="DIR", help=about)


def command(given: argparse.Namespace, names: list[str], limit: float) -> int:
    """Exit status 1 if not the same set passes, or if hardly anything was compared."""
    tests = tuple(dict.fromkeys(names)) or default_tests()
    if given.nodes < 2:
        raise UsageError("--nodes is at least 2: on one node no claim is ever made")
    if not 1 <= given.active <= given.nodes:
        raise UsageError("--active is 1 to --nodes")
    if not given.test_timeout > 0:
        raise UsageError("--test-timeout is more than 0")
    if strange := [test for test in tests if test.startswith("-")]:
        raise UsageError(f"with --xfstests other arguments are tests, for example generic/001; not {strange[0]}")
    checkout = usable(given.xfstests, tests)
    chosen = [ways(fs, given.nodes, given.active) for fs in given.fs or CLUSTER]
    for way, _ in chosen:  # said before anything is booted, if it is missing
        (Options(kernel=way.kernel) if way.kernel else Options()).kernel_for(1)
    out = given.out.absolute()
    end = time.monotonic() + limit
    plan = Plan(checkout, tests, given.test_timeout, end, out)
    runs: list[Run] = []
    told: list[str] = []
    usual: list[Run] = []
    for pair in chosen:
        before, after = (run(plan, f"xfstests-{os.getpid()}", way) for way in pair)
        usual.append(before)
        runs += (before, after)
        told += compare(before, after, tests)
    report = {
        "tests": len(tests), "same": not told, "differences": told, "runs": [done.asdict() for done in runs],
    }  # fmt: skip
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if given.json:
        print(json.dumps(report))
    else:
        lines = [done.line() for done in runs] + told
        lines.append("NOT the same" if told else f"the same sets pass: {', '.join(_passed(usual))}")
        print("\n".join(lines))
    return Exit.SCRIPT if told else Exit.OK


def _passed(runs: list[Run]) -> list[str]:
    return [f"{done.count(PASSED)} on {done.fs}" for done in runs]
