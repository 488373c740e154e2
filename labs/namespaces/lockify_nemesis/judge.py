"""The nemesis's own checker, which shares no code with Lockify: who held what at the same time, and with which token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from .modes import compatible, has_token
from .record import Line


@dataclass
class Hold:
    line: Line
    mode: str
    token: int
    rivals: dict[str, Line] = field(default_factory=dict)
    """Incompatible grants since it entered. Its next line proves an overlap."""


class Judge:
    """Reads the record line by line.

    `excused(node, t)`: what clients of that node did at `t` is none of the lock manager's doing, as their daemon was
    stopped and could not tell them of the loss. Fencing tokens must tell such writes from those of the new holder.
    """

    def __init__(self, excused: Callable[[int, int], bool] = lambda _node, _t: False) -> None:
        self.excused = excused
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.grants: Counter[int] = Counter()
        self.modes: Counter[str] = Counter()
        self.holds: dict[str, Hold] = {}
        self.by_name: defaultdict[str, set[str]] = defaultdict(set)
        self.tokens: dict[str, Line] = {}
        self.heard: list[Callable[[Line], None]] = []

    def feed(self, line: Line) -> None:
        match line.word:
            case "enter":
                self._drop(line.client)
                self._enter(line)
            case "gone":
                self._drop(line.client)
            case _:
                self._holder_says(line)
        for listener in self.heard:
            listener(line)

    def _enter(self, line: Line) -> None:
        self.counts["grants"] += 1
        self.grants[line.node] += 1
        self.modes[line.mode] += 1
        self.holds[line.client] = Hold(line, line.mode, line.token)
        self.by_name[line.name].add(line.client)
        self._granted(line)

    def _holder_says(self, line: Line) -> None:
        hold = self.holds.get(line.client)
        if hold is None:
            self.violations.append(f"{line}: nothing is held")
            return
        if line.word == "lost":
            self.counts["losses"] += 1
            self._drop(line.client)
            return
        self._prove(hold, line)
        if line.word == "leave":
            self._drop(line.client)
        elif line.word == "mode":
            self.counts["conversions"] += 1
            hold.mode, hold.token = line.mode, line.token
            self._granted(line)
        elif line.word == "keep":
            hold.mode = line.mode
            if not self.excused(line.node, line.t):
                self._meet(line)

    def _granted(self, line: Line) -> None:
        """A lock was granted, by a request or a conversion."""
        self._meet(line)
        if not has_token(line.mode):
            return
        if line.token == 0:
            self._token_violation(f"{line}: no token")
            return
        before = self.tokens.get(line.name)
        if before is not None and line.token <= before.token:
            what = "repeats" if line.token == before.token else "falls"
            self._token_violation(f"token {what}: {line} after {before}")
        # Each fall counts once.
        self.tokens[line.name] = line

    def _token_violation(self, what: str) -> None:
        self.counts["token violations"] += 1
        self.violations.append(what)

    def _meet(self, line: Line) -> None:
        """Whoever holds what this grant excludes must write no more."""
        for client in self.by_name[line.name]:
            other = self.holds[client]
            if client != line.client and not compatible(other.mode, line.mode):
                other.rivals[line.client] = line

    def _prove(self, hold: Hold, line: Line) -> None:
        """The holder has used its lock: nobody may have been granted what it excludes."""
        rivals = [r for r in hold.rivals.values() if not compatible(r.mode, hold.mode)]
        hold.rivals.clear()
        if not rivals:
            return
        rival = rivals[0]
        if not self.excused(line.node, line.t):
            self.counts["overlaps"] += 1
            self.violations.append(f"overlap: {line} (since {hold.line}) although {rival}")
            return
        self.counts["excused overlaps"] += 1
        late = next((r for r in rivals if hold.token and r.token and r.token <= hold.token), None)
        if late is not None:
            self._token_violation(f"a late write is not told by its token: {line} although {late}")

    def _drop(self, client: str) -> None:
        hold = self.holds.pop(client, None)
        if hold is not None:
            self.by_name[hold.line.name].discard(client)
