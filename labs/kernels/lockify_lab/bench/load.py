"""Finding and running the programs that make the load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import programs
from ..errors import LabError, UsageError
from ..host import say
from ..jobs import Result
from .effort import KINDS
from .generators import PERSONALITIES

BUILD_LIMIT = 900.0


@dataclass(frozen=True)
class Programs:
    """Which load comes from which program. Ours is always there; the others are optional."""

    load: Path
    mdtest: Path | None
    filebench: Path | None
    postmark: str | None

    @property
    def folders(self) -> tuple[str, ...]:
        """For the nodes' PATH: below /tmp, for one, a node does not see what the host has there."""
        programs = [program for program in (self.load, self.mdtest, self.filebench) if program]
        return tuple(dict.fromkeys(str(program.parent) for program in programs))

    def generator(self, workload: str, active: int) -> str:
        """The maker of a load, as rows call it. Several processes of one mdtest would need MPI among the nodes."""
        if workload == "postmark":
            return "postmark"
        if workload in PERSONALITIES:
            return "filebench" if self.filebench else "lockify-load"
        return "mdtest" if self.mdtest and workload in KINDS and active == 1 else "lockify-load"


def find(given: Path | None, mdtest: str | None, filebench: str | None, smoke: bool) -> Programs:
    """`given` is a lockify-load that is built already."""
    load = given or programs.build("lockify-load", BUILD_LIMIT)
    if not os.access(load, os.X_OK):
        raise LabError(f"{load} is no program: build it with `cargo build --release -p lockify-load`")
    postmark = shutil.which("postmark")
    if postmark is None and not smoke:
        say("postmark is missing: figure 10 goes without it; install it with `labs/kernels/lab setup`")
    return Programs(load.resolve(), _optional("mdtest", mdtest), _optional("filebench", filebench), postmark)


def _optional(name: str, given: str | None) -> Path | None:
    found = shutil.which(given or name)
    if given and not found:
        raise UsageError(f"--{name}: {given} is no program")
    return Path(found).resolve() if found else None


@dataclass(frozen=True)
class Phase:
    """One phase of a load as the load told it."""

    operations: int
    seconds: float
    settled_seconds: float
    begin: float
    latency_us: dict[str, float]

    @property
    def rate(self) -> float:
        """Per second; the clock stopped after the final barrier."""
        return self.operations / self.settled_seconds

    @property
    def rate_before_barrier(self) -> float:
        return self.operations / self.seconds

    def by_own_clock(self, operations: int, seconds: float) -> Phase:
        """As the program told that lockify-load ran; the barrier came after it."""
        settled = seconds + self.settled_seconds - self.seconds
        return replace(self, operations=operations, seconds=seconds, settled_seconds=settled)

    @property
    def barrier_ms(self) -> float:
        return (self.settled_seconds - self.seconds) * 1000


def phases(output: str) -> list[Phase]:
    """Reads the one line of JSON in a load's output."""
    lines = [line for line in output.splitlines() if line.startswith('{"workload"')]
    if len(lines) != 1:
        raise LabError(f"a load did not tell its result but:\n{output[-2000:]}")
    outcome: dict[str, Any] = json.loads(lines[0])
    return [
        Phase(
            operations=int(phase["operations"]),
            seconds=float(phase["seconds"]),
            settled_seconds=float(phase["settled_seconds"]),
            begin=float(phase["begin"]),
            latency_us=phase["latency_us"] or {},
        )
        for phase in outcome["phases"]
    ]


def together(runs: Sequence[Phase]) -> float:
    """Operations per second of loads that ran at the same time: all of them, from the first begin to the last
    end."""
    begin = min(run.begin for run in runs)
    end = max(run.begin + run.settled_seconds for run in runs)
    return sum(run.operations for run in runs) / (end - begin)


def require(result: Result) -> str:
    """A load's output, or an error that tells where it failed and how."""
    if result.ok:
        return result.out
    said = (result.err.strip() or result.out.strip())[-3000:]
    reason = result.failure or f"status {result.status}"
    raise LabError(f"the load failed on node {result.node}: {reason}\n{said}", result.exit)
