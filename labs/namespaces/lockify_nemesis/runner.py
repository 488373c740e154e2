"""One user who runs `lockify run` again and again, with a command that writes down what it holds.

    runner.py LOCKIFY SOCKET RECORD NODE CLIENT SEED LEASE PAUSE

Ends in order at SIGTERM. A run counts as over when its whole process tree has ended, whatever became of `lockify
run` itself: all of them hold the writing end of a pipe.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from .prompt import be_prompt
from .record import Writer

HOLDER = Path(__file__).with_name("holder.py")
MODES = ("EX", "EX", "EX", "PW", "PR", "CR", "NL")


class Runner:
    def __init__(self, words: list[str]) -> None:
        self.lockify, self.socket, self.record, self.node, self.client, seed, lease, pause = words
        self.rng = random.Random(f"{seed}/{self.client}")
        self.lease, self.pause = float(lease), float(pause)
        self.pen = Writer(self.record, int(self.node), self.client)
        self.runs = 0
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            self._once()
            time.sleep(self.rng.uniform(0, 2 * self.pause))

    def _once(self) -> None:
        self.runs += 1
        client = f"{self.client}-{self.runs}"
        read, write = os.pipe()
        try:
            subprocess.run(self._line(client), pass_fds=[write], stdin=subprocess.DEVNULL, check=False)
        finally:
            os.close(write)
        while os.read(read, 1):
            pass
        os.close(read)
        self.pen.write("gone", client=client)

    def _line(self, client: str) -> list[str]:
        rng = self.rng
        long = rng.random() < 0.3
        name = f"long-{rng.randrange(3)}" if long else f"hot-{rng.randrange(3)}"
        seconds = rng.uniform(0, 3 * self.lease if long else 0.1)
        limit = f"{int(1000 * self.lease * rng.choice((0, 1, 2)))}ms"
        options = ["--socket", self.socket, "--mode", rng.choice(MODES), "--timeout", limit]
        command = [sys.executable, "-S", "-E", "-B", str(HOLDER), self.record, self.node, client, f"{seconds:.3f}"]
        if rng.random() < 0.5:
            # A shell that stays: what writes is a grandchild of `lockify run`.
            command = ["sh", "-c", '"$@"; :', "sh", *command]
        return [self.lockify, "run", *options, name, "--", *command]


if __name__ == "__main__":
    be_prompt()
    Runner(sys.argv[1:]).run()
