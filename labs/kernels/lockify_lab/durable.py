"""Loads on a lab's file system that tell what has to be kept, and the look whether it is there (inside/durable.py).

What a node acknowledges by fsync(2) is recorded here, outside of everything that a fault of the lab can reach.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field

from . import cluster
from .errors import LabError
from .jobs import Result
from .lab import Lab

_PROGRAM = "/run/lab/inside/durable.py"


@dataclass
class Load:
    """One node's load, until it is stopped or the node ends."""

    lab: Lab
    node: int
    folder: str
    seed: str
    limit: float
    mount: str = cluster.MOUNTED
    times: list[float] = field(default_factory=list)  # of each change that is kept
    result: Result | None = None
    _rest: bytes = b""
    _allowed: dict[str, list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        script = f"echo $$ >/run/durable.pid; exec python3 -B {_PROGRAM} load {self.mount}/{self.folder} {self.seed}"
        [self.result] = self.lab.run(script, self.node, timeout=self.limit, on_output=self._heard)

    def _heard(self, _: int, stream: str, data: bytes) -> None:
        if stream != "stdout":
            return
        with self._lock:
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._note(json.loads(line))

    def _note(self, said: dict[str, str]) -> None:
        if "will" in said:
            self._allowed.setdefault(said["will"], ["-"]).append(said["sum"])
        else:
            self._allowed[said["did"]] = [said["sum"]]
            self.times.append(time.monotonic())

    def stop(self) -> None:
        """Ends it. It may have failed before, with an error of the file system: `result` tells."""
        self.lab.run("kill $(cat /run/durable.pid)", self.node, timeout=20)
        self.wait()

    def wait(self) -> None:
        """Until its process or its node has ended."""
        self._thread.join(30)
        if self._thread.is_alive():
            raise LabError(f"the load of node {self.node} does not end")

    @property
    def allowed(self) -> dict[str, list[str]]:
        """What each key's state may be now."""
        with self._lock:
            return {key: list(states) for key, states in self._allowed.items()}

    def await_progress(self, seconds: float, changes: int = 3) -> float:
        """Waits until so many more changes are kept. Returns how long the first of them took."""
        begin, before = time.monotonic(), len(self.times)
        while len(self.times) < before + changes:
            if self.result is not None:
                raise LabError(f"the load of node {self.node} has ended: {self.result.failure or self.result.err}")
            if time.monotonic() > begin + seconds:
                raise LabError(f"node {self.node} made no progress within {seconds:g} s\n{self.lab.diagnosis()}")
            time.sleep(0.05)
        return self.times[before] - begin

    def longest_pause(self, since: float) -> float:
        """Seconds between two changes that are kept, from a moment on."""
        times = [since, *(moment for moment in self.times if moment > since)]
        return max((after - before for before, after in zip(times, times[1:], strict=False)), default=0.0)


def verify(lab: Lab, loads: list[Load], node: int) -> int:
    """Raises if anything that was acknowledged is not there, as a node sees it. Returns how much was looked at."""
    wanted = {key: states for load in loads for key, states in load.allowed.items()}
    # Each is a name to look up beside the loads of other nodes. After half an hour there are many.
    limit = 120 + len(wanted) / 5
    listing = lab.folder / f"durable.{node}.json"
    listing.write_text(json.dumps(wanted), "utf-8")
    wrong = lab.sh(f"python3 -B {_PROGRAM} verify /run/lab/{listing.name}", node, timeout=limit)
    if wrong:
        raise LabError(f"node {node} does not find what fsync had acknowledged:\n{wrong}")
    return len(wanted)
