"""Which node runs which tests. Nodes share a file system in which some tests use the same name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# A name that depends on the test's own number is nobody else's.
_NAME = re.compile(r"""\$\{?TEST_DIR\}?/([^\s"'`;|&)>]+)""")
_OWN = re.compile(r"\$\{?seq")


@dataclass
class _Group:
    """Tests that must not run at the same time, and the names that they use."""

    tests: list[str]
    names: set[str]


def shares(checkout: Path, tests: Sequence[str], active: int) -> list[list[str]]:
    """Each active node's tests, in the order of the list; the same in each run."""
    found: list[list[str]] = [[] for _ in range(active)]
    for group in _groups((test, _names(checkout / "tests" / test)) for test in tests):
        min(found, key=len).extend(group.tests)
    order = {test: place for place, test in enumerate(tests)}
    return [sorted(share, key=order.__getitem__) for share in found]


def _groups(tests: Iterable[tuple[str, set[str]]]) -> list[_Group]:
    groups: list[_Group] = []
    for test, names in tests:
        joined = _Group([test], names)
        apart: list[_Group] = []
        for group in groups:
            if group.names & names:
                joined = _Group(group.tests + joined.tests, group.names | joined.names)
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


def _names(script: Path) -> set[str]:
    """The names of a test script's files in the shared file system."""
    text = script.read_text("utf-8", errors="replace")
    return {name for name in _NAME.findall(text) if not _OWN.search(name)}
