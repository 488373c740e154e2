"""How the clocks of nodes become one.

Histories of several kernels are compared, so their times have to be. Every node runs on this host: its CLOCK_MONOTONIC
is the host's from another beginning on, and the processor's counter tells the difference (`clock.c`), to so many
nanoseconds as it takes to read both: that is 3,000, and more where the machine is busy at each of the readings.
So a difference is known as two bounds, and who uses it allows for them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from lockify_lab import Lab

# Readings beyond the first are for a machine that was busy during all before.
MOST_READINGS = 10
GOOD_ENOUGH_NS = 10_000


@dataclass(frozen=True)
class Moment:
    time: int  # ns
    counter: int
    width: int  # counts in which both were read

    @staticmethod
    def parse(text: str) -> Moment:
        return Moment(*map(int, text.split()))


@dataclass(frozen=True)
class Difference:
    """By how many nanoseconds the host's clock is ahead of a node's: between these."""

    least: float
    most: float

    @property
    def middle(self) -> int:
        return round((self.least + self.most) / 2)

    @property
    def error(self) -> int:
        return round((self.most - self.least) / 2) + 1

    def and_also(self, other: Difference) -> Difference:
        """Of two readings at about one time: both are true."""
        both = Difference(max(self.least, other.least), min(self.most, other.most))
        assert both.least <= both.most, f"a clock has jumped: {self}, {other}"
        return both

    def or_else(self, other: Difference) -> Difference:
        """Of readings at the beginning and at the end: in between, it is between them."""
        return Difference(min(self.least, other.least), max(self.most, other.most))


def differences(lab: Lab) -> dict[int, Difference]:
    """For each node, from as many readings as it takes."""
    known = _read(lab)
    for _ in range(MOST_READINGS):
        if max(difference.error for difference in known.values()) <= GOOD_ENOUGH_NS:
            break
        again = _read(lab)
        known = {number: known[number].and_also(again[number]) for number in known}
    return known


def _read(lab: Lab) -> dict[int, Difference]:
    host = [lab.folder / "clock"]
    first = Moment.parse(subprocess.check_output(host, text=True, timeout=60))
    nodes = {number: Moment.parse(lab.sh("/run/lab/clock", number)) for number in lab.options.all_nodes}
    last = Moment.parse(subprocess.check_output(host, text=True, timeout=60))
    scale = (last.time - first.time) / (last.counter - first.counter)
    known = {}
    for number, moment in nodes.items():
        assert first.counter < moment.counter < last.counter, "the processors' counters are not one"
        ahead = first.time + scale * (moment.counter - first.counter) - moment.time
        error = scale * (moment.width + max(first.width, last.width)) / 2
        known[number] = Difference(ahead - error, ahead + error)
    return known
