"""The faults and their times: drawn from a seed before anything runs, so that a seed is a schedule.

A fault is a list of steps that break something and mend it again. An episode is one or two faults at a time; after
it, everything works again, and somebody waits until every node has been granted something.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import faults
from .faults import Fault, Setting, Step

POLICIES = ("claim", "claim-strict", "directory", "broadcast", "home")
# Expected, in leases: from the last mending to a grant on every node.
RECOVERY = 2.5


class BadPlan(ValueError):
    """The file or the options make no plan; the text says why."""


@dataclass(frozen=True)
class Episode:
    calm: float
    """Seconds before it."""
    faults: list[Fault]

    @property
    def length(self) -> float:
        return max(fault.end for fault in self.faults)

    @property
    def steps(self) -> list[Step]:
        return sorted((step for fault in self.faults for step in fault.steps), key=lambda step: step.at)

    def __str__(self) -> str:
        return "; ".join(fault.text for fault in self.faults)


@dataclass(frozen=True)
class Plan:
    nodes: int
    membership: str
    lease: float
    seed: int
    minutes: float
    policy: str
    locks: int
    only: list[str]
    episodes: list[Episode] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Plan:
        try:
            raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            episodes = [
                Episode(e["calm"], [Fault(**{**f, "steps": [Step(**s) for s in f["steps"]]}) for f in e["faults"]])
                for e in raw.pop("episodes")
            ]
            return cls(**raw, episodes=episodes)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadPlan(f"{path}: not a plan that `nemesis` has saved: {error!r}") from error

    def describe(self) -> str:
        lines = [
            f"{self.nodes} nodes, membership {self.membership}, policy {self.policy}, lease {self.lease:g} s, "
            f"seed {self.seed}, {len(self.episodes)} episodes"
        ]
        lines += [f"  {i:3}. after {e.calm:4.1f} s, for {e.length:5.1f} s: {e}" for i, e in enumerate(self.episodes, 1)]
        return "\n".join(lines)


def draw(
    nodes: int, membership: str, lease: float, seed: int, minutes: float, locks: int, only: list[str], policy: str = ""
) -> Plan:
    """The plan of a seed. `only`: these kinds of faults; by default all that this cluster can have."""
    rng = random.Random(f"{seed}/{nodes}/{membership}")
    setting = Setting(nodes, membership, lease, locks)
    drawn = rng.choice(POLICIES)
    chosen = policy or drawn
    known = faults.kinds(setting)
    unknown = [kind for kind in only if kind not in known]
    if unknown:
        raise BadPlan(f"--only {','.join(unknown)}: with {nodes} nodes and {membership} there are {', '.join(known)}")
    kinds = only or list(known)
    episodes: list[Episode] = []
    deck: list[str] = []
    left = 60 * minutes
    while left > 0:
        if not deck:
            deck = [kind for kind in kinds if kind not in faults.LAST]
            rng.shuffle(deck)
        if not deck:
            break
        episode = _episode(rng, setting, deck, combine=not only or len(only) > 1)
        left -= episode.calm + episode.length + RECOVERY * lease
        episodes.append(episode)
    for kind in kinds:
        if kind in faults.LAST:
            episodes.append(Episode(lease, [known[kind](rng, setting)]))
    return Plan(nodes, membership, lease, seed, minutes, chosen, locks, only, episodes)


def _episode(rng: random.Random, setting: Setting, deck: list[str], combine: bool) -> Episode:
    known = faults.kinds(setting)
    first = deck.pop()
    drawn = [known[first](rng, setting)]
    others = [kind for kind in deck if faults.ROOMS[kind] != faults.ROOMS[first]]
    if combine and others and rng.random() < 0.35:
        second = rng.choice(others)
        deck.remove(second)
        drawn.append(known[second](rng, setting).later(rng.uniform(0, 0.5) * drawn[0].end))
    return Episode(round(rng.uniform(0.5, 2) * setting.lease, 2), drawn)
