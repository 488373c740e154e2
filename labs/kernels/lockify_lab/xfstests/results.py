"""The results of xfstests' `check`, test by test, and the differences between two runs."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN, HUNG, DIED = "passed", "failed", "not run", "hung", "died"
VERDICTS = (PASSED, FAILED, NOT_RUN, HUNG, DIED)

# `check` writes a test's name when it starts it, and the rest of the line when it has ended; the time of its last
# run, if it had one, stands before that. Of a test that did not pass more lines follow.
_STARTED = re.compile(r"([a-z0-9-]+/\d{3,})(?=\s)")
_PASSED = re.compile(r"\s*(?:\d+s \.\.\. )?\s*\d+s$")


@dataclass(frozen=True)
class Result:
    """The result of a test. `said` is what `check` told about it, on one line."""

    verdict: str
    seconds: float
    said: str = ""


class Progress:
    """Follows the output of `check` as it comes.

    `current` is the test that runs, and `since` when it, or else what comes between tests, began.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.results: dict[str, Result] = {}
        self.current: str | None = None
        self._now = now
        self.since = now()
        self._line = ""

    def feed(self, text: str) -> None:
        *lines, rest = (self._line + text).split("\n")
        for line in lines:
            self._see(line)
            self._end(line)
        self._line = rest
        self._see(rest)

    def give_up(self, verdict: str) -> None:
        """The test that runs will not end any more."""
        if self.current is not None:
            self._settle(verdict, "")

    def _see(self, line: str) -> None:
        """A test's name at the beginning of a line: it runs from now on."""
        if self.current is None and (match := _STARTED.match(line)) and match[1] not in self.results:
            self.current, self.since = match[1], self._now()

    def _end(self, line: str) -> None:
        if self.current is None or not line.startswith(self.current):
            return
        said = line.removeprefix(self.current).strip()
        if _PASSED.match(said):
            self._settle(PASSED, "")
        elif said.startswith("[not run]") or "... [not run]" in said:
            self._settle(NOT_RUN, said.partition("[not run]")[2].strip())
        else:
            self._settle(FAILED, said)

    def _settle(self, verdict: str, said: str) -> None:
        assert self.current is not None
        now = self._now()
        self.results[self.current] = Result(verdict, round(now - self.since, 1), said)
        self.current, self.since = None, now


@dataclass
class Run:
    """The list, run once on a lab."""

    fs: str
    how: str  # "claim off", for example
    out: str  # folder with what the tests wrote
    results: dict[str, Result] = field(default_factory=dict)
    claims: int | None = None  # None where there are no locks of a cluster
    complaints: dict[int, list[str]] = field(default_factory=dict)
    damage: str = ""  # the findings of fsck when all had left
    seconds: float = 0.0

    def count(self, verdict: str) -> int:
        return Counter(result.verdict for result in self.results.values())[verdict]

    def line(self) -> str:
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in VERDICTS if self.count(verdict))
        claims = "" if self.claims is None else f" {self.claims} claims;"
        return f"{self.fs}, {self.how}: {counts};{claims} {self.seconds:.0f} s; {self.out}"

    def asdict(self) -> dict[str, Any]:
        return {
            "fs": self.fs, "how": self.how, "out": self.out,
            "counts": {verdict: self.count(verdict) for verdict in VERDICTS},
            "claims": self.claims, "complaints": self.complaints, "damage": self.damage,
            "seconds": round(self.seconds, 1),
            "tests": {name: vars(result) for name, result in self.results.items()},
        }  # fmt: skip


def compare(before: Run, after: Run, tests: Sequence[str]) -> list[str]:
    """Everything that makes the second run not as good as the first, one line each; empty if the same set passed.

    That some tests fail on both is not our business. That nearly all do, or that nothing was claimed, would mean
    that nothing was compared.
    """
    told = list(_differences(before, after, tests))
    fs = before.fs
    if 2 * before.count(PASSED) < len(tests):
        told.append(f"{fs}: only {before.count(PASSED)} of {len(tests)} tests passed, {before.how}: {before.out}")
    if after.claims is not None and (before.claims or not after.claims):
        told.append(f"{fs}: {before.claims} claims were made, {before.how}, and {after.claims}, {after.how}")
    if after.damage and not before.damage:
        told.append(f"{fs}: damaged, {after.how} only: {after.damage}")
    for node, lines in _only_in(after.complaints, before.complaints).items():
        told.append(f"{fs}: node {node}'s kernel complained, {after.how} only: {lines[0]}")
    return told


def _differences(before: Run, after: Run, tests: Sequence[str]) -> list[str]:
    told = []
    for test in tests:
        first, second = before.results[test], after.results[test]
        if first.verdict != second.verdict:
            told.append(
                f"{before.fs} {test}: {first.verdict}, {before.how}; {second.verdict}, {after.how}: "
                f"{(second.said or first.said)[:200]} (see {before.out}/*/{test}.* and {after.out}/*/{test}.*)"
            )
    return told


def _only_in(these: Mapping[int, list[str]], those: Mapping[int, list[str]]) -> dict[int, list[str]]:
    return {node: lines for node, lines in these.items() if node not in those}
