"""How the clocks of nodes become one.

Histories of several kernels are compared, so their times have to be. Every node runs on this host: its CLOCK_MONOTONIC
is the host's from another beginning on, and the processor's counter tells the difference (`clock.c`).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from lockify_lab import Lab

# A lock is handed over in two messages at least, 20 us each or more: less than this is not seen as a violation.
MOST_ERROR_NS = 20_000


@dataclass(frozen=True)
class Moment:
    time: int  # ns
    counter: int
    width: int  # counts in which both were read

    @staticmethod
    def parse(text: str) -> Moment:
        return Moment(*map(int, text.split()))


def differences(lab: Lab) -> dict[int, int]:
    """By how many nanoseconds the host's clock is ahead of each node's; raises if that cannot be told."""
    host = [lab.folder / "clock"]
    first = Moment.parse(subprocess.check_output(host, text=True, timeout=60))
    nodes = {number: Moment.parse(lab.sh("/run/lab/clock", number)) for number in lab.options.all_nodes}
    last = Moment.parse(subprocess.check_output(host, text=True, timeout=60))
    scale = (last.time - first.time) / (last.counter - first.counter)
    for number, moment in nodes.items():
        assert first.counter < moment.counter < last.counter, "the processors' counters are not one"
        error = scale * moment.width / 2
        assert error < MOST_ERROR_NS, f"node {number}'s clock is known to {error:.0f} ns only"
    there = {n: first.time + round(scale * (moment.counter - first.counter)) for n, moment in nodes.items()}
    return {number: there[number] - moment.time for number, moment in nodes.items()}
