"""The requirements of the figures: a goal that is not reached is told, a gate that is not fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .rows import Row, Rows, quartiles


@dataclass(frozen=True)
class Bound:
    """A figure's gate or goal: what `metric` of the rows of `bench` with this case has to be."""

    kind: str  # gate or goal
    bench: str
    metric: str
    text: str
    applies: Callable[[Row], bool]
    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most

    @property
    def wanted(self) -> str:
        if math.isinf(self.most):
            return f">= {self.least:g}"
        return f"<= {self.most:g}" if math.isinf(self.least) else f"{self.least:g} to {self.most:g}"


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
        where = f"{case['fs']}/{case['stack']}, {case['nodes']} nodes, {case['active']} active"
        where += f", {case['delay_us']} us, {case['workload']}"
        spread = f"[{first:.3g} .. {third:.3g}] of {len(self.row.rounds)}"
        verdict = "pass       " if self.passed else "FALLS SHORT"
        value = 0.0 if abs(self.row.value) < 0.0005 else self.row.value
        return (
            f"{verdict} {bound.kind} {bound.text}: {value:.3g} {spread}, wanted {bound.wanted} ({where})"
        )


def _claim(row: Row) -> bool:
    return row.case["claim"] == "on"


def _reliable(row: Row) -> bool:
    """Throughput compares under delay: without it, rates are mostly the load of the machine's CPUs."""
    return _claim(row) and row.case["delay_us"] == 100


def _five(row: Row) -> bool:
    return _reliable(row) and row.case["nodes"] == 5


def _of(fs: str) -> Callable[[Row], bool]:
    return lambda row: _five(row) and row.case["fs"] == fs


def _unpatched(row: Row) -> bool:
    return row.case.get("kernel") == "unpatched"


def _unpatched_reliable(row: Row) -> bool:
    return _unpatched(row) and row.case["delay_us"] == 100


_TRIPS = "synchronous round trips a creation"
_PACKETS = "packets a creation"
_ONE = "creation against one node"
_STOCK = "creation against stock"
_SHARED = "five active against stock"
_SHARE = "DLM share beyond one node's"
_EXPLAINED = "of what the claim saves, the DLM wait's part"
_RDMA = "against a DLM without network latency"
_SAME = "claim off against an unpatched kernel, "

BOUNDS = (
    # 0.005 is 0.00 rounded; the first lock of a run may find its resource group uncached.
    Bound("gate", "packets", "round_trips_per_create", _TRIPS, _claim, most=0.005),
    Bound("gate", "packets", "packets_per_create", _PACKETS, _claim, most=0.5),
    Bound("goal", "packets", "packets_per_create", _PACKETS, _claim, most=0.25),
    Bound("gate", "9", "lock_wait_us_beyond_one_node", "DLM wait beyond one node's, us", _claim, most=5),
    # With however few nodes: figure 2b.
    Bound("gate", "7", "ratio_to_one_node", _ONE, _reliable, least=0.80),
    Bound("goal", "7", "ratio_to_one_node", _ONE, _reliable, least=0.95),
    Bound("goal", "7", "ratio_to_stock", _STOCK, _of("gfs2"), least=6.4),
    Bound("goal", "7", "ratio_to_stock", _STOCK, _of("ocfs2"), least=2.9),
    Bound("gate", "8", "ratio_to_stock", _SHARED, _of("gfs2"), least=3),
    Bound("goal", "8", "ratio_to_stock", _SHARED, _of("gfs2"), least=5.4),
    Bound("goal", "8", "ratio_to_stock", _SHARED, _of("ocfs2"), least=3),
    # The share of a creation's time and the throughput of the same run are consistent if what the claim saves
    # is what the wait shrinks by (time in which at least one lock is waited for). Less than all: sending and
    # receiving take time beside the wait, which the claim saves, too. More than all: what a claim costs beside
    # the wait, and a machine that was busier in one of the two runs.
    Bound("gate", "9", "saving_explained_by_wait", _EXPLAINED, _reliable, least=0.8, most=1.2),
    Bound("goal", "9", "lock_wait_share_beyond_one_node", _SHARE, _claim, most=0.02),
    Bound("gate", "10", "ratio_to_stock", "application against stock", _reliable, least=1),
    Bound("goal", "10", "ratio_to_one_node", "application against one node", _reliable, least=0.96),
    Bound("goal", "11", "ratio_to_one_node", _RDMA, _reliable, least=0.95),
    Bound("gate", "deletion", "ratio_to_stock", "rm -r against stock", _reliable, least=1),
    # The kernel without the claim, measured against the one that has it switched off. Packets hardly vary.
    Bound("gate", "7", "ratio_to_stock", _SAME + "rate", _unpatched_reliable, least=0.9, most=1.1),
    Bound("gate", "packets", "packets_ratio_to_stock", _SAME + "packets", _unpatched, least=0.95, most=1.05),
)

# The requirements of --smoke: counts only. Times on a machine under load prove nothing.
COUNTED = ("round_trips_per_create", "packets_per_create", "packets_ratio_to_stock")


def judge(rows: Rows, counts_only: bool) -> Iterator[Verdict]:
    """Every bound against every row that it is about."""
    for bound in BOUNDS:
        if counts_only and (bound.kind != "gate" or bound.metric not in COUNTED):
            continue
        for row in rows.find(bound.bench, bound.metric):
            if bound.applies(row):
                yield Verdict(bound, row)
