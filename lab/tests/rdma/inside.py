"""Runs a node's workers: `python3 inside.py PLAN`. Kills those that the plan says, and prints what became of each.

Stand-alone: a node has Python's standard library and this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

MARK = "lockify-worker: "  # as in crates/remote/src/worker.rs


def replies(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    for line in process.stdout:
        if line.startswith(MARK):
            yield json.loads(line[len(MARK) :])


def work(program: str, plan: dict[str, Any], told: list[dict[str, Any]], number: int) -> None:
    process = subprocess.Popen(
        [program, "remote-worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    process.stdin.write(json.dumps(plan["job"]) + "\ngo\n")
    process.stdin.flush()
    result: dict[str, Any] = {"history": plan["job"]["history"]}
    told[number] = result
    answers = replies(process)
    result["ready"] = next(answers, None)
    if plan["kill_after"] is not None:
        time.sleep(plan["kill_after"])
        process.kill()
        result["status"] = process.wait()
        result["dead"] = time.monotonic_ns()
    else:
        result["done"] = next(answers, None)
        result["status"] = process.wait()


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    told: list[dict[str, Any]] = [{} for _ in plan["workers"]]
    threads = [
        threading.Thread(target=work, args=(plan["program"], worker, told, number))
        for number, worker in enumerate(plan["workers"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(told))


main()
