"""The kinds of faults, each as a function that draws one: what is done, and how it is mended.

Times are seconds. `cut` names directed pairs: what the first sends does not arrive at the second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any


@dataclass(frozen=True)
class Setting:
    nodes: int
    membership: str
    lease: float
    locks: int
    """How many locks the fault `hoard` takes."""

    @property
    def numbers(self) -> list[int]:
        return list(range(1, self.nodes + 1))


@dataclass(frozen=True)
class Step:
    at: float
    do: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    kind: str
    text: str
    end: float
    steps: list[Step]
    steady: float = 0.0
    """From then on until `end` nothing changes, and nobody may lose anything; 0: there is no such time."""
    granted: int = 0
    """So many nodes at least must be granted locks in that time."""

    def later(self, seconds: float) -> Fault:
        steps = [replace(step, at=round(step.at + seconds, 3)) for step in self.steps]
        # Two faults at once are not a time in which nothing changes.
        return replace(self, end=round(self.end + seconds, 3), steps=steps, steady=0.0)


Draw = Callable[[random.Random, Setting], Fault]


def step(at: float, do: str, **args: Any) -> Step:
    return Step(round(at, 3), do, args)


def _fault(kind: str, text: str, *steps: Step, **more: Any) -> Fault:
    return Fault(kind, f"{kind} {text}", max(s.at for s in steps), list(steps), **more)


# The network.


def _between(some: Iterable[int], others: Iterable[int]) -> list[list[int]]:
    pairs = [[a, b] for a in some for b in others]
    return pairs + [[b, a] for a, b in pairs]


def _all_but(links: Iterable[tuple[int, int]], setting: Setting) -> list[list[int]]:
    """Cuts every link but these."""
    kept = {frozenset(link) for link in links}
    return [[a, b] for a, b in permutations(setting.numbers, 2) if frozenset((a, b)) not in kept]


def _cut(kind: str, text: str, pairs: list[list[int]], length: float, **more: Any) -> Fault:
    return _fault(kind, f"{text} for {length:.1f} s", step(0, "cut", pairs=pairs), step(length, "mend"), **more)


def isolate(rng: random.Random, setting: Setting) -> Fault:
    count = rng.randint(1, max(1, (setting.nodes - 1) // 2)) if rng.random() < 0.3 else 1
    out = sorted(rng.sample(setting.numbers, count))
    rest = [n for n in setting.numbers if n not in out]
    return _cut("isolate", f"nodes {out}", _between(out, rest), rng.uniform(0.5, 5) * setting.lease)


def halves(rng: random.Random, setting: Setting) -> Fault:
    part = sorted(rng.sample(setting.numbers, setting.nodes // 2))
    rest = [n for n in setting.numbers if n not in part]
    return _cut("halves", f"{part} from {rest}", _between(part, rest), rng.uniform(1, 5) * setting.lease)


def _steady(setting: Setting, granted: int) -> dict[str, Any]:
    """For 4 leases the membership may look for a view; then it has one. Corosync promises nothing while some of its
    nodes hear each other and others do not."""
    if setting.membership == "corosync":
        return {}
    return {"steady": round(4 * setting.lease, 3), "granted": granted}


def link(rng: random.Random, setting: Setting) -> Fault:
    a, b = rng.sample(setting.numbers, 2)
    length = rng.uniform(7, 9) * setting.lease
    return _cut("link", f"{a}-{b}", _between([a], [b]), length, **_steady(setting, setting.nodes // 2 + 1))


def bridge(rng: random.Random, setting: Setting) -> Fault:
    """Two sides that hear one node in the middle, and not each other."""
    numbers = rng.sample(setting.numbers, setting.nodes)
    middle, rest = numbers[0], numbers[1:]
    one, other = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    text = f"{sorted(one)} - {middle} - {sorted(other)}"
    majority = setting.nodes // 2 + 1
    granted = majority if len(other) + 1 >= majority else 0
    length = rng.uniform(7, 9) * setting.lease
    return _cut("bridge", text, _between(one, other), length, **_steady(setting, granted))


def ring(rng: random.Random, setting: Setting) -> Fault:
    """Each hears its two neighbours only."""
    numbers = rng.sample(setting.numbers, setting.nodes)
    pairs = _all_but(zip(numbers, [*numbers[1:], numbers[0]], strict=True), setting)
    return _cut("ring", f"{numbers}", pairs, rng.uniform(7, 9) * setting.lease, **_steady(setting, 0))


def oneway(rng: random.Random, setting: Setting) -> Fault:
    a, b = rng.sample(setting.numbers, 2)
    others = [n for n in setting.numbers if n != a]
    text, pairs = rng.choice((
        (f"{a}->{b}", [[a, b]]),
        (f"all that {a} sends", [[a, n] for n in others]),
        (f"all that {a} is sent", [[n, a] for n in others]),
    ))
    return _cut("oneway", text, pairs, rng.uniform(1, 6) * setting.lease)


def flap(rng: random.Random, setting: Setting) -> Fault:
    a, b = rng.sample(setting.numbers, 2)
    others = [n for n in setting.numbers if n != a]
    text, pairs = rng.choice((
        (f"{a}-{b}", _between([a], [b])),
        (f"{a}->{b}", [[a, b]]),
        (f"all links of {a}", _between([a], others)),
    ))
    up, down = (rng.uniform(0.05, 1.2) * setting.lease for _ in range(2))
    steps, at = [], 0.0
    while at < 6 * setting.lease:
        steps += [step(at, "cut", pairs=pairs), step(at + down, "mend")]
        at += down + up
    return _fault("flap", f"{text}, down for {down:.2f} s and up for {up:.2f} s", *steps)


# Daemons.


def _some(rng: random.Random, setting: Setting) -> list[int]:
    """One node mostly, up to a minority."""
    most = max(1, (setting.nodes - 1) // 2)
    return sorted(rng.sample(setting.numbers, rng.randint(1, most) if rng.random() < 0.3 else 1))


def _clock(rng: random.Random) -> float:
    """Seconds ahead of the true time, or behind it; or right again."""
    return 0 if rng.random() < 0.25 else round(rng.choice((-1, 1)) * 10 ** rng.uniform(0.5, 5.3))


def _down(kind: str, how: str, rng: random.Random, setting: Setting) -> Fault:
    nodes, pause = _some(rng, setting), rng.uniform(0, 4) * setting.lease
    steps = [s for n in nodes for s in (step(0, how, node=n), step(pause, "start", node=n))]
    return _fault(kind, f"{nodes}, back after {pause:.1f} s", *steps)


def kill(rng: random.Random, setting: Setting) -> Fault:
    return _down("kill", "kill", rng, setting)


def stop(rng: random.Random, setting: Setting) -> Fault:
    return _down("stop", "stop", rng, setting)


def pause_short(rng: random.Random, setting: Setting) -> Fault:
    return _pause("pause-short", _some(rng, setting), rng.uniform(0.1, 0.7) * setting.lease)


def pause_long(rng: random.Random, setting: Setting) -> Fault:
    return _pause("pause-long", _some(rng, setting), rng.uniform(2.5, 6) * setting.lease)


def _pause(kind: str, nodes: list[int], length: float) -> Fault:
    steps = [s for n in nodes for s in (step(0, "pause", node=n), step(length, "resume", node=n))]
    return _fault(kind, f"{nodes} for {length:.1f} s", *steps)


def restart_all(rng: random.Random, setting: Setting) -> Fault:
    how = rng.choice(("kill", "stop"))
    pause = rng.uniform(0, 3) * setting.lease
    clocks = {n: _clock(rng) for n in setting.numbers} if rng.random() < 0.5 else {}
    steps = [step(0, how, node=n) for n in setting.numbers]
    for n in rng.sample(setting.numbers, setting.nodes):
        clock = {"clock": clocks[n]} if clocks else {}
        steps.append(step(pause + rng.uniform(0, 1) * setting.lease, "start", node=n, **clock))
    text = f"{how} all, back after {pause:.1f} s" + (", with other clocks" if clocks else "")
    return _fault("restart-all", text, *steps)


def clock(rng: random.Random, setting: Setting) -> Fault:
    how, nodes = rng.choice(("kill", "stop")), _some(rng, setting)
    pause = rng.uniform(0, 1) * setting.lease
    clocks = {n: _clock(rng) for n in nodes}
    steps = [s for n in nodes for s in (step(0, how, node=n), step(pause, "start", node=n, clock=clocks[n]))]
    return _fault("clock", f"{how} {nodes}, back with clocks off by {list(clocks.values())} s", *steps)


def handover(rng: random.Random, setting: Setting) -> Fault:
    node = rng.choice(setting.numbers)
    return _fault("handover", f"node {node}: lockify restart", step(0, "handover", node=node))


def kill_clients(rng: random.Random, setting: Setting) -> Fault:
    node = rng.choice(setting.numbers)
    return _fault("kill-clients", f"of node {node}", step(0, "kill_clients", node=node))


def kill_run(rng: random.Random, setting: Setting) -> Fault:
    """`lockify run` itself, not what it runs."""
    node = rng.choice(setting.numbers)
    steps = [step(i * 0.5 * setting.lease, "kill_run", node=node) for i in range(3)]
    return _fault("kill-run", f"of node {node}", *steps)


# Corosync.


def corosync_kill(rng: random.Random, setting: Setting) -> Fault:
    node, pause = rng.choice(setting.numbers), rng.uniform(0, 4) * setting.lease
    steps = step(0, "kill_corosync", node=node), step(pause, "start_corosync", node=node)
    return _fault("corosync-kill", f"{node}, back after {pause:.1f} s", *steps)


def corosync_pause(rng: random.Random, setting: Setting) -> Fault:
    node, length = rng.choice(setting.numbers), rng.uniform(0.2, 5) * setting.lease
    steps = step(0, "pause_corosync", node=node), step(length, "resume_corosync", node=node)
    return _fault("corosync-pause", f"{node} for {length:.1f} s", *steps)


def machine(rng: random.Random, setting: Setting) -> Fault:
    node, pause = rng.choice(setting.numbers), rng.uniform(0, 4) * setting.lease
    steps = (
        step(0, "kill", node=node),
        step(0, "kill_corosync", node=node),
        step(pause, "start_corosync", node=node),
        step(pause, "start", node=node),
    )
    return _fault("machine", f"{node} dies, back after {pause:.1f} s", *steps)


# Load, and what a daemon writes to.


def log(rng: random.Random, setting: Setting) -> Fault:
    """Nobody reads a daemon's log, whose pipe is full, while it has something to say. It goes on all the same."""
    node, length = rng.choice(setting.numbers), rng.uniform(6, 8) * setting.lease
    other = rng.choice([n for n in setting.numbers if n != node])
    steps = (
        step(0, "mute", node=node),
        step(0.1, "kill", node=other),
        step(0.5 * setting.lease, "start", node=other),
        step(length, "unmute", node=node),
    )
    return _fault("log", f"of node {node} unread for {length:.1f} s", *steps,
                  steady=round(4 * setting.lease, 3), granted=setting.nodes)


def bulk(rng: random.Random, setting: Setting) -> Fault:
    node, length = rng.choice(setting.numbers), rng.uniform(2, 5) * setting.lease
    steps = step(0, "look", node=node), step(length, "unlook", node=node)
    return _fault("bulk", f"queries on node {node} for {length:.1f} s", *steps, steady=0.5, granted=setting.nodes)


def hoard(rng: random.Random, setting: Setting) -> Fault:
    """One client has very many locks, and another node dies."""
    node, other = rng.sample(setting.numbers, 2)
    pause = rng.uniform(0.5, 3) * setting.lease
    steps = (
        step(0, "hoard", node=node, locks=setting.locks),
        step(0.1, "kill", node=other),
        step(0.1 + pause, "start", node=other),
        step(0.1 + pause + 7 * setting.lease, "unhoard", node=node),
    )
    # Its locks are recovered by then, though there are so many.
    steady = round(0.1 + pause + 5 * setting.lease, 3)
    text = f"{setting.locks} locks on node {node}, kill {other}"
    return _fault("hoard", text, *steps, steady=steady, granted=setting.nodes)


# The memory of a daemon (`state_dir`).


def state_full(rng: random.Random, setting: Setting) -> Fault:
    """The disk of what a daemon has to remember is full, while another node dies and comes back."""
    node, other = rng.sample(setting.numbers, 2)
    length = rng.uniform(2, 5) * setting.lease
    steps = (
        step(0, "fill_state", node=node),
        step(0.1, "kill", node=other),
        step(setting.lease, "start", node=other),
        step(length, "empty_state", node=node),
    )
    return _fault("state-full", f"node {node} for {length:.1f} s, kill {other}", *steps)


def state_old(rng: random.Random, setting: Setting) -> Fault:
    """A node comes back with what its disk had before the cluster went on: an old image."""
    node, other = rng.sample(setting.numbers, 2)
    how, clocks = rng.choice(("kill", "stop")), rng.choice(({}, {"clock": _clock(rng)}))
    steps = (
        step(0, "save_state", node=node),
        # Views and lives that the copy does not know.
        step(0.1, "kill", node=other),
        step(0.5 * setting.lease, "start", node=other),
        step(3 * setting.lease, how, node=node),
        step(3 * setting.lease, "restore_state", node=node),
        step(3.2 * setting.lease, "start", node=node, **clocks),
    )
    return _fault("state-old", f"node {node}: {how}, back with an old state_dir", *steps)


def state_lost(rng: random.Random, setting: Setting) -> Fault:
    """A minority has new disks."""
    nodes, how = _some(rng, setting), rng.choice(("kill", "stop"))
    pause = rng.uniform(0, 3) * setting.lease
    steps = [
        s
        for n in nodes
        for s in (step(0, how, node=n), step(pause, "lose_state", node=n), step(pause + 0.1, "start", node=n))
    ]
    return _fault("state-lost", f"{how} {nodes}, back after {pause:.1f} s with an empty state_dir", *steps)


def history_full(rng: random.Random, setting: Setting) -> Fault:
    """The disk of the history is full. Its daemon goes on; nothing can be judged by histories from then on."""
    node, length = rng.choice(setting.numbers), rng.uniform(2, 4) * setting.lease
    steps = step(0, "fill", node=node), step(length, "empty", node=node)
    return _fault("history-full", f"node {node} for {length:.1f} s", *steps, steady=0.1, granted=setting.nodes)


_NETWORK: dict[str, Draw] = {"isolate": isolate, "halves": halves, "link": link, "oneway": oneway, "flap": flap}
_DAEMONS: dict[str, Draw] = {
    "kill": kill, "stop": stop, "pause-short": pause_short, "pause-long": pause_long, "restart-all": restart_all,
    "clock": clock, "handover": handover, "kill-clients": kill_clients, "kill-run": kill_run,
}  # fmt: skip
_COROSYNC: dict[str, Draw] = {
    "corosync-kill": corosync_kill, "corosync-pause": corosync_pause, "machine": machine,
}  # fmt: skip
_LOAD: dict[str, Draw] = {"log": log, "bulk": bulk, "hoard": hoard, "history-full": history_full}
_STATE: dict[str, Draw] = {"state-full": state_full, "state-old": state_old, "state-lost": state_lost}
LAST = ("history-full",)
"""Kinds that come at the end, once."""
ROOMS = {
    **dict.fromkeys([*_NETWORK, "bridge", "ring"], "network"),
    **dict.fromkeys([*_DAEMONS, *_COROSYNC, *_STATE, "log", "hoard"], "daemons"),
    **dict.fromkeys(["bulk", "history-full"], "load"),
}
"""Two faults at a time are of different rooms, so that neither mends what the other breaks."""


def kinds(setting: Setting) -> dict[str, Draw]:
    """The faults that such a cluster can have."""
    found = _NETWORK | _STATE
    if setting.nodes >= 4:
        found["ring"] = ring
    if setting.nodes >= 5:
        found["bridge"] = bridge
    found |= _DAEMONS
    if setting.membership == "corosync":
        found |= _COROSYNC
    return found | _LOAD
