"""The processes that use the locks of a cluster: sessions, `lockify run`, lookers and hoarders of every node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from yard import LOCKIFY, Node, end

from .record import Writer

FOLDER = Path(__file__).resolve().parents[1]
LOOKERS = 6


@dataclass(frozen=True)
class Load:
    """The work of users."""

    sessions: int
    """Processes with a session, of each node."""
    pause: float
    """Between two runs of `lockify run`, in seconds, on average."""
    lease: float
    seed: int


class Users:
    def __init__(self, load: Load, record: Path, tell: Callable[[str], None]) -> None:
        self.load, self.record, self.tell = load, record, tell
        self.pen = Writer(record, 0, "nemesis")
        self.running: dict[str, tuple[Node, subprocess.Popen[bytes]]] = {}
        self.looking: dict[int, threading.Event] = {}
        self.hoards: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: Node) -> None:
        for i in range(self.load.sessions):
            self._start(f"client-{node.number}-{i}", node)
        self._start(f"run-{node.number}", node)

    def _start(self, client: str, node: Node) -> None:
        lease, seed, number = f"{self.load.lease:g}", str(self.load.seed), str(node.number)
        if client.startswith("run-"):
            line = ["runner", str(LOCKIFY), str(node.socket), str(self.record), number, client, seed, lease,
                    f"{self.load.pause:g}"]
        else:
            line = ["client", str(node.socket), str(self.record), number, client, seed, lease]
        self.running[client] = node, self._python(node, *line)

    @staticmethod
    def _python(node: Node, module: str, *words: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-B", "-m", f"lockify_nemesis.{module}", *words]
        with (node.folder / "clients.log").open("ab") as log:
            return subprocess.Popen(command, cwd=FOLDER, stdout=stdout if stdout is not None else log, stderr=log,
                                    process_group=0)

    def replace_dead(self) -> None:
        """Locks of ended processes are nobody's."""
        for client, (node, process) in list(self.running.items()):
            if process.poll() is None:
                continue
            self.pen.write("gone", client=client)
            base, _, generation = client.partition("+")
            del self.running[client]
            self._start(f"{base}+{int(generation or 0) + 1}", node)

    def stop(self, patience: float) -> None:
        """In order: each ends what it does."""
        processes = [process for _, process in self.running.values()]
        self.running.clear()
        for process in processes:
            if process.poll() is None:
                process.terminate()
        limit = time.monotonic() + patience
        for process in processes:
            try:
                process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                end(process)

    def end(self) -> None:
        for number in list(self.looking):
            self.unlook(number)
        for process in [*self.hoards.values(), *(process for _, process in self.running.values())]:
            end(process)

    # Faults.

    def kill_clients(self, number: int) -> None:
        for client, (node, process) in self.running.items():
            if node.number == number and client.startswith("client-"):
                process.kill()

    def kill_run(self, number: int) -> None:
        """As soon as its command has run for a while: that writes down what it holds then."""
        runner = next(p for client, (n, p) in self.running.items() if n.number == number and client.startswith("run-"))
        limit = time.monotonic() + 3 * self.load.lease
        while time.monotonic() < limit:
            commands = {run: children(run) for run in children(runner.pid)}
            time.sleep(0.2)
            for run, command in commands.items():
                if command and children(run) == command:
                    os.kill(run, signal.SIGKILL)
                    self.tell(f"killed `lockify run` {run} of {command}")
                    return

    def look(self, node: Node) -> None:
        """Somebody who may only look does so all the time."""
        stop = self.looking.setdefault(node.number, threading.Event())
        for i in range(LOOKERS):
            threading.Thread(target=_look, args=(str(node.socket), stop, i), daemon=True).start()

    def unlook(self, number: int) -> None:
        if stop := self.looking.pop(number, None):
            stop.set()

    def hoard(self, node: Node, locks: int) -> None:
        """Returns when the locks are held, or much of the time that they take is over."""
        process = self._python(node, "hoard", str(node.socket), str(locks), stdout=subprocess.PIPE)
        self.hoards[node.number] = process
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        limit, said = time.monotonic() + 10 + locks / 5000, b""
        while b"held" not in said and time.monotonic() < limit:
            time.sleep(0.05)
            said += process.stdout.read() or b""
        self.tell(f"hoard on node {node.number}: {said.decode().strip() or 'not held yet'}")

    def unhoard(self, number: int) -> None:
        end(self.hoards.pop(number, None))


def children(process: int) -> list[int]:
    """Its direct ones."""
    try:
        return [int(p) for path in Path(f"/proc/{process}/task").glob("*/children") for p in path.read_text().split()]
    except OSError:
        return []


def _look(socket: str, stop: threading.Event, i: int) -> None:
    as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups", str(LOCKIFY)]
    what = ["locks"] if i % 2 else ["who", "hot-0"]
    while not stop.is_set():
        try:
            subprocess.run([*as_nobody, *what, "--socket", socket], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            pass
