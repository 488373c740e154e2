"""The clients that get locks again after all repairs, and how soon; those that lose locks without reason."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from .record import Line

SECOND = 1_000_000_000


class Progress:
    """A listener of the judge. Times are CLOCK_MONOTONIC, in nanoseconds."""

    def __init__(self, nodes: Iterable[int], since: int) -> None:
        self.since = since
        self.missing = set(nodes)
        self.longest = 0.0
        self.all = threading.Event()

    def __call__(self, line: Line) -> None:
        if line.word == "enter" and line.t >= self.since and line.node in self.missing:
            self.missing.discard(line.node)
            self.longest = max(self.longest, (line.t - self.since) / SECOND)
            if not self.missing:
                self.all.set()


class Steadiness:
    """Counts what nodes are granted, and lose, in a time in which nothing changes."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.granted: set[int] = set()
        self.losses: list[Line] = []

    def shift(self, nanoseconds: int) -> None:
        """It begins and ends later."""
        self.begin, self.end = self.begin + nanoseconds, self.end + nanoseconds

    def __call__(self, line: Line) -> None:
        if not self.begin <= line.t < self.end:
            return
        if line.word == "enter":
            self.granted.add(line.node)
        elif line.word == "lost":
            self.losses.append(line)
