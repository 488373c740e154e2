"""Runs a node's workers: `python3 inside.py PLAN`. Kills those that the plan says, and prints what became of each.

Workers of all nodes begin when all of them are connected, however busy the machine is. Where one is killed, that is
when it has had some locks; the others go on until each of them has been given one after that.

Stand-alone: a node has Python's standard library and this file. All nodes see one folder, the plan's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARK = "lockify-worker: "  # as in crates/measure/report/src/crew.rs
PATIENCE = 100.0  # seconds; the caller has less


def replies(process: subprocess.Popen[str]) -> Iterator[Any]:
    assert process.stdout
    for line in process.stdout:
        if line.startswith(MARK):
            reply = json.loads(line[len(MARK) :])
            yield reply.get("Ok", reply)  # one that failed says why: `Err`


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what() and time.monotonic() < end:
        time.sleep(0.01)


def grants(history: str) -> list[int]:
    """When a worker was granted something, by this node's clock; it may be writing the last line."""
    lines = Path(history).read_text("utf-8").split("\n")[:-1] if Path(history).exists() else []
    events = [json.loads(line) for line in lines]
    return [event["t"] for event in events if event["event"] == "grant"]


def work(plan: dict[str, Any], worker: dict[str, Any], told: dict[str, Any]) -> None:
    job, folder = worker["job"], Path(plan["folder"])
    process = subprocess.Popen(
        [plan["program"], "remote-worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    told["history"] = job["history"]
    answers = replies(process)
    told["ready"] = next(answers, None)
    (folder / f"ready.{job['seed']}").touch()
    wait_until(lambda: sum(path.name.startswith("ready.") for path in folder.iterdir()) == plan["all"])
    process.stdin.write("go\n")
    process.stdin.flush()
    dead = folder / "dead"
    if worker["victim"]:
        wait_until(lambda: len(grants(job["history"])) >= plan["grants"])
        process.kill()
        told["status"] = process.wait()
        told["dead"] = time.monotonic_ns()
        dead.touch()
        return
    if plan["has_victim"]:
        wait_until(lambda: dead.name in {path.name for path in folder.iterdir()})
        since = time.monotonic_ns()
        wait_until(lambda: process.poll() is not None or any(t > since for t in grants(job["history"])))
        process.stdin.close()  # it ends when it has released what it holds
    told["done"] = next(answers, None)
    told["status"] = process.wait()


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    told: list[dict[str, Any]] = [{} for _ in plan["workers"]]
    threads = [
        threading.Thread(target=work, args=(plan, worker, result))
        for worker, result in zip(plan["workers"], told, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(told))


main()
