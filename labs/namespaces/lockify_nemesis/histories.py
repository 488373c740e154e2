"""The daemons' records, as one history for `lockify check`; an hour of it does not fit into memory.

A daemon that is killed cannot write that it ends, and one that is stopped writes late that its life is over; others
go on without it from the moment that it stopped. Both are written into the history here.
"""

from __future__ import annotations

import heapq
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .excuses import Stop

Event = tuple[int, int, str]
"""Its time, the node, the line."""


def life(path: Path, node: int, stops: Sequence[Stop], killed: bool) -> Iterator[Event]:
    """The events of one process. One that was killed had written all that others know of it, so its end is that of its
    file: others may have gone on without it before anybody looked whether it has ended."""
    incarnation: int | None = None
    ended = True
    before = 0
    with path.open(encoding="utf-8") as lines:
        for text in lines:
            event = _parse(text)
            if event is None:
                break  # the line that a kill cut
            t = int(event["t"])
            if event["event"] == "begin":
                continue
            if event["event"] == "crash":
                # Its life was over when it stopped.
                t = max([before, *(s.since for s in stops if before <= s.since <= t)])
                event["t"] = t
            before = t
            if "incarnation" in event:
                incarnation = event["incarnation"]
                ended = event["event"] in ("crash", "leave")
            yield t, node, json.dumps(event)
    if killed and not ended:
        yield before, node, json.dumps({"t": before, "node": node, "incarnation": incarnation, "event": "crash"})


def _parse(text: str) -> dict[str, Any] | None:
    if not text.endswith("\n"):
        return None
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return event


def merge(lives: Iterable[Iterator[Event]], begin: str, out: Path, until: int | None) -> int:
    """Writes all of them by time, up to `until`; how many."""
    count = 0
    with out.open("w", encoding="utf-8") as file:
        file.write(begin)
        for t, _, text in heapq.merge(*lives):
            if until is not None and t >= until:
                break
            file.write(text + "\n")
            count += 1
    return count


def first_line(paths: Iterable[Path]) -> str:
    """The `begin` of the oldest file that has one."""
    best: tuple[int, str] | None = None
    for path in paths:
        with path.open(encoding="utf-8") as file:
            text = file.readline()
        event = _parse(text)
        if event is not None and event["event"] == "begin":
            best = min(best or (event["t"], text), (event["t"], text))
    return best[1] if best else ""


def check(lockify: Path, merged: Path) -> dict[str, Any]:
    """The verdict of `lockify check` about it."""
    done = subprocess.run([str(lockify), "check", "--json", str(merged)], capture_output=True, text=True, check=False)
    try:
        outcome: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"outcome": f"lockify check ended with {done.returncode}: {done.stdout}{done.stderr}"}
    return outcome
