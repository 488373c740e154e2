"""A memory server on one node, workers on all, and what their histories say together."""

from __future__ import annotations

import heapq
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clocks import Difference

from lockify_lab import Lab, programs

PROTOCOLS = (
    "srsl", "dqnl", "n-cosed", "cas-spin", "dslr", "mcs", "shiftlock", "shiftlock+", "rma-rw", "drtm", "shiftlock-s",
)  # fmt: skip
# Refuses leases: it has no repair.
UNREPAIRED = "rma-rw"
# Refuses machines whose clocks nobody vouches for.
CLOCKED = "drtm"
PLAIN_TEXT = "anybody who reaches the network may take and break locks"
HOME = 1
LOCKS = 16
# How long a lock is held.
HOLD_NS = 200_000
# How many a victim is given before it dies.
GRANTS = 5


@contextmanager
def server(
    lab: Lab, protocol: str, lease_ms: int, refuses: str = "", proof: str = f"--plain-text '{PLAIN_TEXT}'"
) -> Iterator[str]:
    """A memory server on node 1; gives the address at which it is found. It turns away whom `refuses` says, if any.
    `proof` says how clients prove who they are."""
    said = "/run/lab/server.log"
    start = f"""
        : >{said}
        setsid /run/lab/lockify memory-server --fabric verbs --listen 10.77.0.{HOME}:0 {proof} \
            --ack-timeout 16 --protocol '{protocol}' --lease {lease_ms}ms --locks {LOCKS} --clients 16 \
            >{said} 2>&1 </dev/null &
        echo $! >/run/server.pid
        for i in $(seq 200); do
            grep -q 'try: lockify' {said} && exit 0
            kill -0 $! || break
            sleep 0.05
        done
        cat {said} >&2
        exit 1
    """
    lab.sh(start, HOME)
    line = (lab.folder / "server.log").read_text("utf-8")
    yield line.split("--server ")[1].split()[0]
    end = """
        pid=$(cat /run/server.pid)
        kill $pid
        for i in $(seq 200); do kill -0 $pid 2>/dev/null || exit 0; sleep 0.05; done
        exit 1
    """
    lab.sh(end, HOME)
    left = (lab.folder / "server.log").read_text("utf-8").splitlines()
    assert left[0] == line.strip() and bool(left[1:]) == bool(refuses), left
    assert all(refuses in complaint for complaint in left[1:]), left


@dataclass
class Worker:
    """A client of a table."""

    node: int
    seconds: float = 0.5
    locks: int = 2
    shared: float = 0.4
    victim: bool = False
    told: dict[str, Any] = field(default_factory=dict)

    def job(self, number: int, address: str, history: str) -> dict[str, Any]:
        return {
            "table": {"Network": {"server": address, "device": "rxe0"}},
            "locks": self.locks,
            "skew": 0.0,
            "shared": self.shared,
            "hold_ns": HOLD_NS,
            "duration_ns": int(self.seconds * 1e9),
            "seed": number,
            "history": history,
        }

    @property
    def done(self) -> dict[str, Any]:
        reply = self.told["done"]
        assert reply and "Done" in reply, f"node {self.node}: {self.told}"
        done: dict[str, Any] = reply["Done"]
        return done


def run(lab: Lab, address: str, workers: list[Worker], limit: float = 60) -> None:
    """Lets all work, and fills in what they told."""
    histories = lab.folder / "histories"
    histories.mkdir(exist_ok=True)
    for old in histories.iterdir():
        old.unlink()
    for node in lab.options.all_nodes:
        here = [(number, worker) for number, worker in enumerate(workers) if worker.node == node]
        jobs = [
            {"job": worker.job(number, address, f"/run/lab/histories/{number}.jsonl"), "victim": worker.victim}
            for number, worker in here
        ]
        plan = {
            "program": "/run/lab/lockify",
            "folder": "/run/lab/histories",
            "all": len(workers),
            "has_victim": any(worker.victim for worker in workers),
            "grants": GRANTS,
            "workers": jobs,
        }
        (lab.folder / f"plan.{node}.json").write_text(json.dumps(plan), "utf-8")
    results = lab.run("python3 /run/lab/inside.py /run/lab/plan.$NODE.json", timeout=limit)
    for result in results:
        assert result.ok, f"node {result.node}: {result.failure} {result.out} {result.err}"
        here = [worker for worker in workers if worker.node == result.node]
        for worker, told in zip(here, json.loads(result.out), strict=True):
            worker.told = told


def events(lab: Lab, worker: Worker) -> list[dict[str, Any]]:
    """A worker's history, by its node's clock; that of one that was killed ends as far as others can tell."""
    name = Path(worker.told["history"]).name
    lines = (lab.folder / "histories" / name).read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    if not worker.victim:
        return found
    last, dead = found[-1], worker.told["dead"]
    node = next(event["node"] for event in found if "node" in event)
    until = int(last.get("note", "lease until -1").removeprefix("lease until "))
    if last["event"] == "grant" and until < dead:
        found.append({"t": until, "node": node, "lock": last["lock"], "event": "lost"})
    found.append({"t": dead, "node": node, "event": "gone", "client": f"peer-{node}"})
    return found


def on_one_clock(part: list[dict[str, Any]], clock: Difference) -> list[dict[str, Any]]:
    """A worker's history by the host's clock. Of each hold that is left which lasted for certain, since clocks are
    known to some microseconds only: a violation that is found is one, and one that is longer than twice that is
    found."""
    assert 4 * clock.error < HOLD_NS, f"clocks are known to {clock.error} ns only: the machine is too busy"
    certain = {"grant": clock.error, "unlock": -clock.error, "lost": -clock.error, "gone": -clock.error}
    moved = []
    granted = 0  # when what is held, if anything, was granted
    for event in part:
        t = event["t"] + clock.middle + certain.get(event["event"], 0)
        granted = t if event["event"] == "grant" else granted
        # A hold that a death or a lease ended at once was none.
        moved.append({**event, "t": max(t, granted)})
    return moved


def judge(lab: Lab, workers: list[Worker], clocks: dict[int, Difference], out: Path) -> dict[str, Any]:
    """Merges the histories, and has them checked. Returns what was counted."""
    parts = [on_one_clock(events(lab, worker), clocks[worker.node]) for worker in workers]
    begins = [event for part in parts for event in part if event["event"] == "begin"]
    assert len(begins) == len(parts), "a history has no beginning"
    inner = [[event for event in part if event["event"] not in ("begin", "end")] for part in parts]
    merged = list(heapq.merge(*inner, key=lambda event: event["t"]))
    whole = [{**begins[0], "t": merged[0]["t"]}, *merged, {"t": merged[-1]["t"], "event": "end"}]
    out.write_text("".join(json.dumps(event) + "\n" for event in whole), "utf-8")
    checked = subprocess.run(
        [programs.need("lockify"), "check", "--json", out], capture_output=True, text=True, timeout=120
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    report: dict[str, Any] = json.loads(checked.stdout)["report"]
    assert "compatible_grants" in report["checked"], report["off"]
    return report
