"""When clients could not know that their locks were lost: their daemon was stopped for longer than its lease.

A daemon that is stopped (SIGSTOP) cannot tell its clients anything. Their writes from the end of its lease until it
has gone on, and a lease more for it to notice, are told from others by fencing tokens alone.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Stop:
    since: int
    until: int | None = None


class Excuses:
    """Times are CLOCK_MONOTONIC, in nanoseconds."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.stops: defaultdict[int, list[Stop]] = defaultdict(list)
        self.guard = threading.Lock()

    def stopped(self, node: int, now: int | None = None) -> None:
        with self.guard:
            self.stops[node].append(Stop(now if now is not None else time.monotonic_ns()))

    def resumed(self, node: int, now: int | None = None) -> None:
        with self.guard:
            for stop in self.stops[node]:
                if stop.until is None:
                    stop.until = now if now is not None else time.monotonic_ns()

    def __call__(self, node: int, t: int) -> bool:
        """Returns true if the act of a client of the node at `t` is excused."""
        with self.guard:
            return any(self._covers(stop, t) for stop in self.stops[node])

    def _covers(self, stop: Stop, t: int) -> bool:
        end = stop.until
        if t < stop.since + self.lease or (end is not None and end < stop.since + self.lease):
            return False
        return end is None or t < end + self.lease
