"""Result rows, in the format that everything in the project shares, and their statistics."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

UNITS = {
    "creates_per_s": "1/s",
    "removes_per_s": "1/s",
    "ops_per_s": "1/s",
    "locks_per_s": "1/s",
    "latency_us": "us",
    "create_us": "us",
    "lock_wait_us_per_create": "us",
    "lock_waiting_us_per_create": "us",
    "lock_wait_us_typical": "us",
    "lock_wait_us_beyond_one_node": "us",
    "lock_wait_us_typical_beyond_one_node": "us",
    "final_barrier_ms": "ms",
}

Case = dict[str, str | int]


@dataclass
class Row:
    """One metric of one case; `value` is the median of the rounds."""

    bench: str
    case: Case
    metric: str
    rounds: list[float]
    published: float | None = None
    unit: str = field(init=False)
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.unit = UNITS.get(self.metric, "1")
        self.value = statistics.median(self.rounds)

    def json(self) -> str:
        return json.dumps(asdict(self))


class Rows:
    """All results, in the order in which they were measured; written as they come."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8")
        self.all: list[Row] = []

    def add(
        self, bench: str, case: Case, metric: str, rounds: Sequence[float], published: float | None = None
    ) -> None:
        if not rounds:
            return
        row = Row(bench, dict(case), metric, [round(value, 6) for value in rounds], published)
        self.all.append(row)
        self._file.write(row.json() + "\n")
        self._file.flush()

    def find(self, bench: str, metric: str, **case: str | int) -> list[Row]:
        """Rows of a figure whose case has these properties."""
        return [
            row
            for row in self.all
            if row.bench == bench
            and row.metric == metric
            and all(row.case.get(name) == value for name, value in case.items())
        ]

    def close(self) -> None:
        self._file.close()


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value, itself."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Paired: each round against the same round of the base."""
    return [value / other for value, other in zip(values, base, strict=True) if other]
