"""The cluster that is broken: yard.py's nodes with real daemons, and one method for each step of a plan."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from yard import LOCKIFY, LOCKIFYD, Node, Times, Yard, address, end, run

from .excuses import Excuses
from .log_pipe import LogPipe
from .users import Load, Users

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
# Seconds after which a daemon that ended by itself is started again.
AGAIN = 0.5
STOPS_WITHIN = 60
# A node's disks, and how large they are.
HISTORY, STATE = "history", "state"
SIZES = {HISTORY: "8g", STATE: "256m"}


class Cluster(Yard):
    def __init__(self, size: int, membership: str, policy: str, load: Load, record: Path,
                 tell: Callable[[str], None]) -> None:
        times = Times(token=int(500 * load.lease), lease=f"{load.lease:g}s")
        super().__init__(size, times, membership=membership)
        self.policy, self.tell = policy, tell
        self.users = Users(load, record, tell)
        self.excuses = Excuses(int(load.lease * 1e9))
        self.pipes: dict[int, LogPipe] = {}
        self.clocks: dict[int, float] = {}
        self.cuts: dict[int, set[int]] = {}
        self.killed: defaultdict[int, list[bool]] = defaultdict(list)
        """Of each process of a node's daemon that has ended: not in order."""
        self.should_run: set[int] = set()
        self.full: set[int] = set()
        """Nodes whose state_dir takes nothing now: their daemons may end."""
        self.defects: list[str] = []
        """What daemons did that no daemon may do."""
        self.unjudged_from: int | None = None
        """From then on (CLOCK_MONOTONIC, ns) a history is not whole."""
        self.guard = threading.RLock()
        self.closing = threading.Event()
        self.supervisor = threading.Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> Cluster:
        super().__enter__()
        for node in self.nodes.values():
            self.users.start(node)
        self.supervisor.start()
        return self

    def close(self) -> None:
        self.closing.set()
        self.users.end()
        for node in self.nodes.values():
            for stopped in (node.daemon, node.corosync):
                if stopped is not None and stopped.poll() is None:
                    stopped.send_signal(signal.SIGCONT)
        super().close()

    def stop_users(self) -> None:
        with self.guard:
            self.users.stop(6 * self.lease)

    # Nodes.

    def _make_node(self, number: int) -> None:
        super()._make_node(number)
        node = self.nodes[number]
        for disk, size in SIZES.items():
            (node.folder / disk).mkdir()
            run(*node.inside("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", node.folder / disk))
        run(*node.inside("nft", "add table inet nemesis; add set inet nemesis cut { type ipv4_addr; }; "
                                "add chain inet nemesis in { type filter hook input priority 0; }; "
                                "add rule inet nemesis in ip saddr @cut drop"))
        self.pipes[number] = LogPipe(node.log)

    def disk(self, number: int, which: str = HISTORY) -> Path:
        """One of a node's disks, seen from outside. They survive their daemons."""
        node = self.nodes[number]
        return Path(f"/proc/{node.holder.pid}/root{node.folder}/{which}")

    def _configuration(self, node: Node, more: str) -> str:
        lines = [
            f'membership = "{self.membership}"', 'cluster = "nemesis"', f'lease = "{self.times.lease}"',
            f'socket = "{node.socket}"', 'socket_mode = "666"',
            f'history = "{node.folder}/{HISTORY}/history-{node.starts:05}.jsonl"',
            f'state_dir = "{node.folder}/{STATE}/lockify"',
            'security.plain_text = "anybody who reaches the network may take and break locks"',
        ]
        if self.membership == "static":
            lines.append(f"node = {node.number}")
            for number in range(1, self.size + 1):
                lines += ["[[nodes]]", f"id = {number}", f'address = "{address(number)}:7430"']
        # Others than root may look.
        lines += ["[[lockspace]]", 'name = "default"', f'policy = "{self.policy}"', 'mode = "664"']
        return "\n".join(lines) + "\n"

    def start_daemon(self, number: int, config: str = "") -> None:
        with self.guard:
            node = self.nodes[number]
            node.starts += 1
            path = node.folder / "lockify.toml"
            path.write_text(self._configuration(node, config), encoding="utf-8")
            self._launch(node, path)
            self.should_run.add(number)

    def _launch(self, node: Node, config: Path) -> None:
        environment = []
        if clock := self.clocks.get(node.number):
            # Only the time of day: whatever measures a duration goes on as it does.
            environment = ["env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME={clock:+.0f}s", "DONT_FAKE_MONOTONIC=1",
                           "FAKETIME_DONT_RESET=1", "NO_FAKE_STAT=1"]
        pipe = self.pipes[node.number].write
        node.daemon = subprocess.Popen(node.inside(*environment, LOCKIFYD, config), stdout=pipe, stderr=pipe)

    def _supervise(self) -> None:
        """Starts again what ended by itself, as a service manager would."""
        while not self.closing.wait(AGAIN):
            with self.guard:
                for number in list(self.should_run):
                    daemon = self.nodes[number].daemon
                    if daemon is not None and daemon.poll() is not None:
                        self._ended(number, in_order=False)
                        told = self.tell if number in self.full else self._defect
                        told(f"the daemon of node {number} ended by itself: {daemon.returncode}")
                        self.start_daemon(number)
                self.users.replace_dead()

    def _ended(self, number: int, in_order: bool) -> None:
        self.killed[number].append(not in_order)
        self.excuses.resumed(number)

    def _defect(self, text: str) -> None:
        self.tell(f"VIOLATION {text}")
        self.defects.append(text)

    # Steps of a plan. Their names and arguments are those in the plan's file.

    def do(self, step: str, args: dict[str, Any]) -> None:
        with self.guard:
            getattr(self, step)(**args)

    def cut(self, pairs: Sequence[Sequence[int]]) -> None:
        cuts: dict[int, set[int]] = {}
        for source, at in pairs:
            cuts.setdefault(at, set()).add(source)
        self._set_cuts(cuts)

    def mend(self) -> None:
        self._set_cuts({})

    def _set_cuts(self, cuts: dict[int, set[int]]) -> None:
        for number in self.nodes:
            if cuts.get(number) != self.cuts.get(number):
                elements = ", ".join(address(source) for source in cuts.get(number, ()))
                add = f"; add element inet nemesis cut {{ {elements} }}" if elements else ""
                run(*self.nodes[number].inside("nft", f"flush set inet nemesis cut{add}"))
        self.cuts = cuts

    def kill(self, node: int) -> None:
        self.should_run.discard(node)
        daemon = self.nodes[node].daemon
        if daemon is not None:
            end(daemon)
            self._ended(node, in_order=False)
        self.nodes[node].daemon = None

    def stop(self, node: int) -> None:
        """In order."""
        self.should_run.discard(node)
        daemon = self.nodes[node].daemon
        if daemon is None:
            return
        daemon.send_signal(signal.SIGCONT)
        daemon.terminate()
        try:
            daemon.wait(STOPS_WITHIN)
            self._ended(node, in_order=True)
        except subprocess.TimeoutExpired:
            self._defect(f"the daemon of node {node} did not end within {STOPS_WITHIN} s of SIGTERM")
            end(daemon)
            self._ended(node, in_order=False)
        self.nodes[node].daemon = None

    def start(self, node: int, clock: float | None = None) -> None:
        if clock is not None:
            self.clocks[node] = clock
        if self.nodes[node].daemon is None:
            self.start_daemon(node)

    def pause(self, node: int) -> None:
        if self.nodes[node].daemon is not None:
            self.excuses.stopped(node)
            self.signal_daemon(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        if self.nodes[node].daemon is not None:
            self.signal_daemon(node, signal.SIGCONT)
            self.excuses.resumed(node)

    def handover(self, node: int) -> None:
        line = [str(LOCKIFY), "restart", "--socket", str(self.nodes[node].socket)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        self.tell(f"lockify restart on node {node}: {done.returncode} {(done.stdout + done.stderr).strip()}")

    def kill_clients(self, node: int) -> None:
        self.users.kill_clients(node)

    def kill_run(self, node: int) -> None:
        self.users.kill_run(node)

    def start_corosync(self, node: int) -> None:
        if self.nodes[node].corosync is None:
            super().start_corosync(node)

    def kill_corosync(self, node: int) -> None:
        super().kill_corosync(node)

    def pause_corosync(self, node: int) -> None:
        self.signal_corosync(node, signal.SIGSTOP)

    def resume_corosync(self, node: int) -> None:
        if self.nodes[node].corosync is not None:
            self.signal_corosync(node, signal.SIGCONT)

    def mute(self, node: int) -> None:
        self.pipes[node].mute()

    def unmute(self, node: int) -> None:
        self.pipes[node].unmute()

    def look(self, node: int) -> None:
        self.users.look(self.nodes[node])

    def unlook(self, node: int) -> None:
        self.users.unlook(node)

    def hoard(self, node: int, locks: int) -> None:
        self.users.hoard(self.nodes[node], locks)

    def unhoard(self, node: int) -> None:
        self.users.unhoard(node)

    def fill(self, node: int) -> None:
        """Its history takes no more."""
        self.unjudged_from = self.unjudged_from or time.monotonic_ns()
        self._fill(node, HISTORY)

    def empty(self, node: int) -> None:
        self._resize(node, HISTORY, SIZES[HISTORY])

    def fill_state(self, node: int) -> None:
        self.full.add(node)
        self._fill(node, STATE)

    def empty_state(self, node: int) -> None:
        self._resize(node, STATE, SIZES[STATE])
        self.full.discard(node)

    def _fill(self, node: int, which: str) -> None:
        status = os.statvfs(self.disk(node, which))
        self._resize(node, which, f"{(status.f_blocks - status.f_bfree) * status.f_frsize // 1024 + 4}k")

    def _resize(self, node: int, which: str, size: str) -> None:
        inside = self.nodes[node]
        run(*inside.inside("mount", "-o", f"remount,size={size}", inside.folder / which))

    def save_state(self, node: int) -> None:
        """As a backup of a running machine does: file by file."""
        self._copy(self.disk(node, STATE) / "lockify", self.nodes[node].folder / "saved")

    def restore_state(self, node: int) -> None:
        self._copy(self.nodes[node].folder / "saved", self.disk(node, STATE) / "lockify")

    def lose_state(self, node: int) -> None:
        # With corosync, a node keeps nothing there.
        shutil.rmtree(self.disk(node, STATE) / "lockify", ignore_errors=True)

    @staticmethod
    def _copy(source: Path, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, to)

    def mend_all(self) -> None:
        """Whatever is still broken works after this."""
        with self.guard:
            self.mend()
            for number, node in self.nodes.items():
                self.unmute(number)
                self.unlook(number)
                self.unhoard(number)
                if number in self.full:
                    self.empty_state(number)
                self.resume(number)
                if self.membership == "corosync":
                    self.resume_corosync(number)
                    self.start_corosync(number)
                if node.daemon is None:
                    self.start(number)
