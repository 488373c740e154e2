"""Gates and goals: what the figures have to be. A goal that is not reached is told, a gate that is not fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .rows import Row, Rows, quartiles


@dataclass(frozen=True)
class Bound:
    """A figure's gate or goal: `metric` of the rows of `bench` with this case."""

    kind: str  # gate or goal
    bench: str
    metric: str
    bound: float
    at_least: bool
    text: str
    applies: Callable[[Row], bool]

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Verdict:
    bound: Bound
    row: Row

    @property
    def passed(self) -> bool:
        return self.bound.holds(self.row.value)

    def line(self) -> str:
        case, bound = self.row.case, self.bound
        first, third = quartiles(self.row.rounds)
        sign = ">=" if bound.at_least else "<="
        where = f"{case['fs']}/{case['stack']}, {case['nodes']} nodes, {case['active']} active"
        where += f", {case['delay_us']} us, {case['workload']}"
        spread = f"[{first:.3g} .. {third:.3g}] of {len(self.row.rounds)}"
        verdict = "pass       " if self.passed else "FALLS SHORT"
        value = 0.0 if abs(self.row.value) < 0.0005 else self.row.value
        return (
            f"{verdict} {bound.kind} {bound.text}: {value:.3g} {spread}, wanted {sign} {bound.bound:g} ({where})"
        )


def _claim(row: Row) -> bool:
    return row.case["claim"] == "on"


def _reliable(row: Row) -> bool:
    """Throughput compares under delay: without it, rates of clusters on two CPUs are mostly the CPUs' load."""
    return _claim(row) and row.case["delay_us"] == 100


def _five(row: Row) -> bool:
    return _reliable(row) and row.case["nodes"] == 5


def _of(fs: str) -> Callable[[Row], bool]:
    return lambda row: _five(row) and row.case["fs"] == fs


BOUNDS = (
    # 0.005 is 0.00 rounded; the first lock of a run may find its resource group uncached.
    Bound("gate", "packets", "round_trips_per_create", 0.005, False, "synchronous round trips a creation", _claim),
    Bound("gate", "packets", "packets_per_create", 0.5, False, "packets a creation", _claim),
    Bound("goal", "packets", "packets_per_create", 0.25, False, "packets a creation", _claim),
    Bound("gate", "9", "lock_wait_us_beyond_one_node", 5, False, "DLM wait beyond one node's, us", _claim),
    Bound("gate", "7", "ratio_to_one_node", 0.80, True, "creation against one node", _five),
    Bound("goal", "7", "ratio_to_one_node", 0.95, True, "creation against one node", _five),
    Bound("goal", "7", "ratio_to_stock", 6.4, True, "creation against stock", _of("gfs2")),
    Bound("goal", "7", "ratio_to_stock", 2.9, True, "creation against stock", _of("ocfs2")),
    Bound("gate", "8", "ratio_to_stock", 3, True, "five active against stock", _of("gfs2")),
    Bound("goal", "8", "ratio_to_stock", 5.4, True, "five active against stock", _of("gfs2")),
    Bound("goal", "8", "ratio_to_stock", 2, True, "five active against stock", _of("ocfs2")),
    Bound("goal", "9", "lock_wait_share_beyond_one_node", 0.02, False, "DLM share beyond one node's", _claim),
    Bound("gate", "10", "ratio_to_stock", 1, True, "application against stock", _reliable),
    Bound("goal", "10", "ratio_to_one_node", 0.96, True, "application against one node", _reliable),
    Bound("goal", "11", "ratio_to_one_node", 0.95, True, "against a DLM without network latency", _reliable),
    Bound("gate", "deletion", "ratio_to_stock", 1, True, "rm -r against stock", _reliable),
)

# What --smoke asks for: counts only. Times on a machine under load prove nothing.
COUNTED = ("round_trips_per_create", "packets_per_create")


def judge(rows: Rows, counts_only: bool) -> Iterator[Verdict]:
    """Every bound against every row that it is about."""
    for bound in BOUNDS:
        if counts_only and (bound.kind != "gate" or bound.metric not in COUNTED):
            continue
        for row in rows.find(bound.bench, bound.metric):
            if bound.applies(row):
                yield Verdict(bound, row)
