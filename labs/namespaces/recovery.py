#!/usr/bin/python3
"""How long others wait for the lock of a node that is gone: real corosync and daemons, by what happened.

    labs/namespaces/recovery.py [--nodes 3 5 16] [--rounds 3] [--token MS] [--lease D] [--out FILE.jsonl]

Prints a table, and rows of the project's result format into FILE. Needs what labs/namespaces/yard.py needs, and
lockify and lockifyd (LOCKIFY, LOCKIFYD; by default those of target/debug).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from yard import Times, Yard


def daemon_killed(yard: Yard, victim: int) -> Callable[[], None]:
    yard.kill_daemon(victim)
    return lambda: yard.start_daemon(victim)


def daemon_stopped(yard: Yard, victim: int) -> Callable[[], None]:
    yard.signal_daemon(victim, yard.STOP)
    return lambda: yard.signal_daemon(victim, yard.GO_ON)


def corosync_killed(yard: Yard, victim: int) -> Callable[[], None]:
    yard.kill_corosync(victim)
    return lambda: yard.start_corosync(victim)


def machine_killed(yard: Yard, victim: int) -> Callable[[], None]:
    yard.kill_machine(victim)

    def restart() -> None:
        yard.start_corosync(victim)
        yard.start_daemon(victim)

    return restart


def cut_off(yard: Yard, victim: int) -> Callable[[], None]:
    yard.partition([victim])
    return yard.heal


EVENTS: dict[str, Callable[[Yard, int], Callable[[], None]]] = {
    "daemon killed": daemon_killed,
    "daemon stopped": daemon_stopped,
    "corosync killed": corosync_killed,
    "machine killed": machine_killed,
    "network cut": cut_off,
}


def measure(yard: Yard, event: str, rounds: int) -> list[float]:
    """Seconds from the event to another node's grant, the cluster whole again after each."""
    seconds = []
    for round_ in range(rounds):
        victim = yard.size
        name = f"{event}-{round_}".replace(" ", "-")
        holder = yard.hold(victim, name)
        began = time.monotonic()
        undo = EVENTS[event](yard, victim)
        yard.lock(1, name)
        seconds.append(time.monotonic() - began)
        undo()
        yard.until_members(list(yard.nodes))
        yard.end_client(holder)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 5, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--token", type=int, default=3000, help="corosync's token time-out, ms")
    parser.add_argument("--lease", default="6s")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"corosync's token {options.token} ms, lease {options.lease}: seconds until another node is granted the lock")
    print(f"{'NODES':>5}  {'EVENT':<16} {'MEDIAN':>7} {'MIN':>7} {'MAX':>7}")
    for nodes in options.nodes:
        with Yard(nodes, Times(options.token, options.lease)) as yard:
            yard.until_members(list(yard.nodes))
            for event in EVENTS:
                rounds = measure(yard, event, options.rounds)
                median = statistics.median(rounds)
                print(f"{nodes:>5}  {event:<16} {median:7.2f} {min(rounds):7.2f} {max(rounds):7.2f}", flush=True)
                case = {"event": event, "nodes": nodes, "token_ms": options.token, "lease": options.lease,
                        "percentile": 50}
                rows.append({"bench": "recovery", "case": case, "metric": "latency_us", "unit": "us",
                             "value": 1e6 * median, "rounds": [1e6 * r for r in rounds], "published": None})
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
