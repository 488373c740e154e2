"""One run of the list: on the first nodes of a lab, the others being members that have the file system mounted."""

from __future__ import annotations

import codecs
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from ..errors import Exit, LabError
from ..host import say
from ..jobs import Result as Job
from ..lab import Lab
from .results import DIED, HUNG, Progress, Result, Run
from .shares import shares
from .ways import Way

_SETTLE = 300.0  # seconds for a reboot of a node, which may wait for the others' recovery, or for all to leave
# A command that prints the kernel stacks of the node's blocked processes (state D). It runs before
# a hanging test is ended.
_STACKS = """
for process in /proc/[0-9]*; do
    [ "$(sed 's/.*) //' $process/stat | cut -d' ' -f1)" != D ] || { cat $process/comm $process/stack; echo; }
done
"""


@dataclass(frozen=True)
class Plan:
    """The common parameters of all runs."""

    checkout: Path
    tests: tuple[str, ...]
    limit: float  # seconds for one test
    end: float  # of everything, on the monotonic clock
    out: Path

    def left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise LabError("the time limit is over: give xfstests more with --timeout", Exit.TIMEOUT)
        return left


def run(plan: Plan, name: str, way: Way) -> Run:
    """Runs the list on a lab of its own. The tests' output is in `out`, however it ends."""
    begin = time.monotonic()
    out = plan.out / f"{way.fs}-{way.how.replace(' ', '-')}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    done = Run(way.fs, way.how, str(out))
    with Lab(name) as lab:
        try:
            way.up(lab, plan.checkout, min(_SETTLE, plan.left()))
            done.results = _share(plan, lab, way, out)
            done.damage = _damage(plan, lab, way)
        finally:
            _keep(lab, out)
        done.complaints = lab.complaints()
    done.claims = way.claims(out)
    done.seconds = time.monotonic() - begin
    say(done.line())
    (out / "run.json").write_text(json.dumps(done.asdict(), indent=1) + "\n", "utf-8")
    return done


def _keep(lab: Lab, out: Path) -> None:
    """Copies what tests, nodes and processes have written, before the lab's folder is removed."""
    for name, unwanted in (("xfstests", ()), ("nodes", ("[0-9]*.[0-9]*",))):
        if (lab.folder / name).exists():
            into = out if name == "xfstests" else out / name
            shutil.copytree(lab.folder / name, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*unwanted))
    for log in lab.folder.glob("*.log"):
        shutil.copy(log, out)


def _share(plan: Plan, lab: Lab, way: Way, out: Path) -> dict[str, Result]:
    """Every active node runs its share of the tests, the same in each run."""
    given = shares(plan.checkout, plan.tests, way.active)
    with ThreadPoolExecutor(way.active) as pool:
        runs = [
            pool.submit(_Active(plan, lab, node, way, out / str(node)).run, tests) for node, tests in enumerate(given, 1)
        ]
        results: dict[str, Result] = {}
        for each in runs:
            results |= each.result()
    return {test: results[test] for test in plan.tests}


@dataclass
class _Active:
    """A node that runs tests."""

    plan: Plan
    lab: Lab
    node: int
    way: Way
    out: Path

    def run(self, tests: Sequence[str]) -> dict[str, Result]:
        """A test that hangs, or takes its node along, ends with it; the others go on when it is back."""
        self.out.mkdir()
        results: dict[str, Result] = {}
        while remaining := [test for test in tests if test not in results]:
            progress = Progress()
            job = self._check(remaining, progress)
            if job.status is None:
                progress.give_up(DIED)
                self._say(f"node {self.node} is started again: {job.failure.splitlines()[0]}")
            if not progress.results:
                told = "\n".join((job.out + job.err).splitlines()[-20:])
                raise LabError(f"xfstests ran no test on node {self.node}: {job.failure or told}", job.exit)
            results |= progress.results
            if job.status is None:
                self._reboot()
        return results

    def _check(self, tests: Sequence[str], progress: Progress) -> Job:
        """Runs `check`, and ends its node if a test, or what comes between tests, takes too long."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = {"FSTYP": self.way.fs, "XFSTESTS": "/run/tools/0", **self.way.environment()}
        variables = " ".join(f"{name}={value}" for name, value in known.items())
        script = f"export {variables}\nexec /run/lab/inside/xfstests/run.sh {' '.join(tests)}"
        with open(self.out / "check.out", "ab") as log, ThreadPoolExecutor(1) as pool:

            def follow(_: int, stream: str, data: bytes) -> None:
                log.write(data)
                log.flush()
                if stream == "stdout":
                    progress.feed(decoder.decode(data))

            job: Future[list[Job]] = pool.submit(
                self.lab.run, script, self.node, timeout=max(1, self.plan.left()), on_output=follow
            )
            told = 0
            while not wait([job], 1).done:
                told = self._tell(progress, told)
                now = time.monotonic()
                if now - progress.since > self.plan.limit or now > self.plan.end:
                    self._end(progress)
                    break
            self._tell(progress, told)
            self.plan.left()
            return job.result()[0]

    def _end(self, progress: Progress) -> None:
        """Notes what the node does, and ends it: whatever hangs, that ends it."""
        name = (progress.current or "between tests").replace("/", "-")
        stacks = self.lab.run(_STACKS, self.node, timeout=10)[0].out
        (self.out / f"hung.{name}").write_text(stacks, "utf-8")
        progress.give_up(HUNG)
        self.lab.crash(self.node)

    def _reboot(self) -> None:
        state = self.lab.status()["nodes"][self.node - 1]["state"]
        if state in ("running", "stalled"):
            self.lab.crash(self.node)
        self.way.join(self.lab, self.node, min(_SETTLE, self.plan.left()))

    def _tell(self, progress: Progress, told: int) -> int:
        results = list(progress.results.items())
        for test, result in results[told:]:
            self._say(f"{test} {result.verdict} ({result.seconds:g} s) {result.said[:80]}".rstrip())
        return len(results)

    def _say(self, text: str) -> None:
        say(f"{self.way.fs}, {self.way.how}: {text}")


def _damage(plan: Plan, lab: Lab, way: Way) -> str:
    """What is wrong on the disks when nobody uses them any more. All of them are read, which may take long."""
    try:
        way.look_for_damage(lab, plan.left())
    except LabError as error:
        return str(error)
    return ""
