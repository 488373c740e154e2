"""Finding and running the programs that make the load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..host import REPOSITORY, command, say
from ..jobs import Result

BUILD_LIMIT = 900.0


@dataclass(frozen=True)
class Programs:
    """Which load comes from which program. Ours is always there; the others are optional."""

    load: Path
    mdtest: Path | None
    postmark: str | None

    @property
    def folders(self) -> tuple[str, ...]:
        """For the nodes' PATH: below /tmp, for one, a node does not see what the host has there."""
        programs = [self.load, self.mdtest] if self.mdtest else [self.load]
        return tuple(dict.fromkeys(str(program.parent) for program in programs))

    @property
    def tree(self) -> str:
        """How rows and pages call the tree's generator."""
        return "mdtest" if self.mdtest else "lockify-load tree (mdtest's parameters)"


def find(given: Path | None, mdtest: str | None, smoke: bool) -> Programs:
    """`given` is a lockify-load that is built already."""
    load = given or _build()
    if not os.access(load, os.X_OK):
        raise LabError(f"{load} is no program: build it with `cargo build --release -p lockify-load`")
    postmark = shutil.which("postmark")
    if postmark is None and not smoke:
        say("postmark is missing: figure 10 goes without it; install it with `lab/lab setup`")
    found = mdtest or shutil.which("mdtest")
    return Programs(load.resolve(), Path(found).resolve() if found else None, postmark)


def _build() -> Path:
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    if not os.access(cargo, os.X_OK):
        raise LabError("cargo is missing: install Rust (https://rustup.rs), or give --load PROGRAM")
    say("building lockify-load")
    command(
        [cargo, "build", "--release", "--locked", "-q", "-p", "lockify-load"], BUILD_LIMIT, cwd=REPOSITORY
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
    return target / "release" / "lockify-load"


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
