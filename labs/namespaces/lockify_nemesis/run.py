"""Carries out a plan, and says what was seen."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from yard import LOCKIFY, Failure

from . import histories
from .cluster import Cluster
from .judge import Judge
from .plan import Episode, Plan
from .progress import SECOND, Progress, Steadiness
from .record import BadLine, Line
from .users import Load

LIMIT = 6
"""Leases within which every node has to be granted something after everything works again."""
SHOWN = 3
"""Violations of an episode that are shown at once; all are in the summary."""
HOPELESS = 30
"""Leases after which nobody waits any more."""


@dataclass
class Summary:
    plan: str
    replay: str
    minutes: float = 0.0
    grants: int = 0
    modes: dict[str, int] = field(default_factory=dict)
    conversions: int = 0
    losses: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    overlaps: int = 0
    excused_overlaps: int = 0
    token_violations: int = 0
    longest_leases: float = 0.0
    events: int = 0
    events_judged: int = 0
    violations: list[str] = field(default_factory=list)

    def line(self) -> str:
        faults = ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items()))
        modes = ", ".join(f"{mode} {n}" for mode, n in sorted(self.modes.items()))
        judged = "" if self.events_judged == self.events else f", of them {self.events_judged} before a disk was full"
        return (
            f"{self.plan}: {self.grants} grants ({modes}) and {self.conversions} conversions in {self.minutes:.1f} min; "
            f"faults: {faults}; overlaps {self.overlaps} (and {self.excused_overlaps} of stopped daemons); "
            f"token violations {self.token_violations}; locks lost and told {self.losses}; longest time to progress "
            f"{self.longest_leases:.1f} leases; {self.events} events of histories{judged}; "
            f"violations {len(self.violations)}"
        )


class Tail(threading.Thread):
    """Feeds the judge while clients write."""

    def __init__(self, path: Path, judge: Judge) -> None:
        super().__init__(daemon=True)
        self.path, self.judge = path, judge
        self.stop = threading.Event()

    def run(self) -> None:
        rest = ""
        with self.path.open(encoding="utf-8") as file:
            while True:
                stopping = self.stop.is_set()
                text = file.read(1 << 20)
                if not text and stopping:
                    return
                if not text:
                    time.sleep(0.02)
                    continue
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    self._feed(line)

    def _feed(self, text: str) -> None:
        try:
            self.judge.feed(Line.parse(text))
        except BadLine as error:
            self.judge.violations.append(str(error))


class Run:
    def __init__(self, plan: Plan, out: Path, replay: str, say: Callable[[str], None]) -> None:
        self.plan, self.out, self.say = plan, out, say
        what = f"{plan.nodes} nodes, {plan.membership}, {plan.policy}, seed {plan.seed}"
        self.summary = Summary(what, replay)
        self.faults: Counter[str] = Counter()
        self.story = (out / "story.log").open("w", encoding="utf-8")
        self.began = time.monotonic()
        record = out / "record.txt"
        record.touch()
        # So many that names are contended, so few that the machine is not.
        sessions, pause = (3, 0.3) if plan.nodes <= 5 else (2, 3.0)
        load = Load(sessions, pause, plan.lease, plan.seed)
        self.cluster = Cluster(plan.nodes, plan.membership, plan.policy, load, record, self.tell)
        self.judge = Judge(self.cluster.excuses)
        self.tail = Tail(record, self.judge)

    def tell(self, text: str) -> None:
        """An event with its time, for the story; the clock is that of the record."""
        self.story.write(f"{time.monotonic_ns()} {time.monotonic() - self.began:8.2f} {text}\n")
        self.story.flush()

    def violation(self, text: str) -> None:
        self.tell(f"VIOLATION {text}")
        self.say(f"  VIOLATION {text}")
        self.summary.violations.append(text)

    def go(self) -> Summary:
        try:
            with self.cluster:
                self._work()
        finally:
            self.story.close()
        return self.summary

    def _work(self) -> None:
        self.tail.start()
        try:
            self._progress("at the start", limit=None)
            for number, episode in enumerate(self.plan.episodes, 1):
                if time.monotonic() - self.began > 60 * self.plan.minutes:
                    left = len(self.plan.episodes) - number + 1
                    self.tell(f"the time is over: {left} episodes are left out")
                    break
                self._episode(number, episode)
        finally:
            self._collect()

    def _episode(self, number: int, episode: Episode) -> None:
        time.sleep(episode.calm)
        self.tell(f"episode {number}: {episode}")
        before = len(self.judge.violations)
        began = time.monotonic()
        steady = self._watch(episode, began)
        for step in episode.steps:
            time.sleep(max(0.0, began + step.at - time.monotonic()))
            self.tell(f"{step.do} {step.args}")
            before_it = time.monotonic()
            self.cluster.do(step.do, step.args)
            # The duration of a step moves the later ones.
            began += time.monotonic() - before_it
            if steady is not None:
                steady.shift(int((time.monotonic() - before_it) * SECOND))
        self.cluster.mend_all()
        self.faults.update(fault.kind for fault in episode.faults)
        self._progress(f"after episode {number} ({episode})", LIMIT)
        if steady is not None:
            self._judge_steadiness(number, episode, steady)
        found = self.judge.violations[before:]
        for violation in found[:SHOWN]:
            self.say(f"  VIOLATION in or after episode {number} ({episode}): {violation}")
        if len(found) > SHOWN:
            self.say(f"  … and {len(found) - SHOWN} more")

    def _watch(self, episode: Episode, began: float) -> Steadiness | None:
        fault = episode.faults[0]
        if len(episode.faults) > 1 or not fault.steady:
            return None
        steady = Steadiness(int((began + fault.steady) * SECOND), int((began + fault.end) * SECOND))
        self.judge.heard.append(steady)
        return steady

    def _judge_steadiness(self, number: int, episode: Episode, steady: Steadiness) -> None:
        self.judge.heard.remove(steady)
        fault = episode.faults[0]
        where = f"in episode {number} ({episode}), more than {fault.steady / self.plan.lease:.1f} leases after its begin"
        if steady.losses:
            who = Counter(line.node for line in steady.losses)
            self.violation(f"{where}: {len(steady.losses)} locks lost, on nodes {dict(who)}")
        if len(steady.granted) < fault.granted:
            nodes = sorted(steady.granted)
            self.violation(f"{where}: locks are granted on nodes {nodes}, where {fault.granted} nodes can have them")

    def _progress(self, when: str, limit: int | None) -> None:
        progress = Progress(self.cluster.nodes, time.monotonic_ns())
        self.judge.heard.append(progress)
        lease = self.plan.lease
        done = progress.all.wait(HOPELESS * lease)
        self.judge.heard.remove(progress)
        leases = progress.longest / lease if done else float(HOPELESS)
        self.tell(f"progress on every node {when}: {f'{leases:.2f} leases' if done else 'never'}")
        if limit is None:
            if not done:
                raise Failure(f"no grants on nodes {sorted(progress.missing)} {when}\n{self.cluster.told()}")
            return
        self.summary.longest_leases = max(self.summary.longest_leases, leases)
        if leases > limit:
            nobody = f"; nothing for {HOPELESS} leases on nodes {sorted(progress.missing)}" if progress.missing else ""
            self.violation(f"progress {when} took {leases:.1f} leases, where {limit} are allowed{nobody}")

    # The end.

    def _collect(self) -> None:
        self.tell("the end")
        self.cluster.mend_all()
        self.cluster.stop_users()
        for number in self.cluster.nodes:
            self.cluster.stop(number)
        self.tail.stop.set()
        self.tail.join()
        self._copy()
        self._count()
        self._check_histories()
        (self.out / "summary.json").write_text(json.dumps(asdict(self.summary), indent=1) + "\n", encoding="utf-8")

    def _copy(self) -> None:
        for number, node in self.cluster.nodes.items():
            to = self.out / f"node{number}"
            to.mkdir()
            for path in [*node.folder.glob("*.log"), *node.folder.glob("*.toml"), *node.folder.glob("*.conf")]:
                shutil.copy(path, to)
            for path in self.cluster.disk(number).glob("history-*.jsonl"):
                shutil.copy(path, to)

    def _count(self) -> None:
        summary, judge = self.summary, self.judge
        summary.minutes = (time.monotonic() - self.began) / 60
        summary.grants, summary.conversions = judge.counts["grants"], judge.counts["conversions"]
        summary.modes, summary.faults, summary.losses = dict(judge.modes), dict(self.faults), judge.counts["losses"]
        summary.overlaps, summary.excused_overlaps = judge.counts["overlaps"], judge.counts["excused overlaps"]
        summary.token_violations = judge.counts["token violations"]
        summary.violations += judge.violations + self.cluster.defects

    def _check_histories(self) -> None:
        paths = {n: sorted((self.out / f"node{n}").glob("history-*.jsonl")) for n in self.cluster.nodes}
        begin = histories.first_line(path for found in paths.values() for path in found)
        merged, until = self.out / "merged.jsonl", self.cluster.unjudged_from
        judged = histories.merge(self._lives(paths), begin, merged, until)
        self.summary.events_judged = judged
        self.summary.events = judged if until is None else sum(1 for life in self._lives(paths) for _ in life)
        outcome = histories.check(LOCKIFY, merged)
        (self.out / "check.json").write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
        if outcome.get("outcome") != "clean":
            self.summary.violations.append(f"lockify check: {_first(outcome)}")

    def _lives(self, paths: dict[int, list[Path]]) -> list[Any]:
        found = []
        for number, files in paths.items():
            stops = self.cluster.excuses.stops[number]
            killed = self.cluster.killed[number]
            for path in files:
                # Files are numbered by starts, and so are ends.
                start = int(path.stem.split("-")[1])
                found.append(histories.life(path, number, stops, start <= len(killed) and killed[start - 1]))
        return found


def _first(outcome: dict[str, Any]) -> str:
    report = outcome.get("report") or {}
    violations = report.get("violations") or []
    return json.dumps(violations[0] if violations else outcome)[:2000]
