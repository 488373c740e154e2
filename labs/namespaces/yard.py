"""Clusters of real corosync and lockifyd on one machine: each node in network and mount namespaces of
its own, joined by a bridge that can be cut into parts. Needs root, iproute2, util-linux and corosync.

Nothing here waits for a fixed time: it looks until something holds, and gives up after PATIENCE, which is
far beyond what anything takes on a loaded machine.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
LOCKIFYD = Path(os.environ.get("LOCKIFYD", TARGET / "lockifyd"))
LOCKIFY = Path(os.environ.get("LOCKIFY", TARGET / "lockify"))
PATIENCE = 180.0


class Failure(AssertionError):
    """Something did not come to hold; the text has what the daemons said last."""


def address(number: int, link: int = 0) -> str:
    """A node's address on a link."""
    return f"10.77.{link}.{number}"


def name_of(number: int, link: int = 0) -> str:
    """The host name of that address."""
    return f"node{number}-{link}"


def run(*command: str | Path) -> str:
    """Runs a command to its end, at most PATIENCE; its output."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Times:
    """Corosync's token time-out (ms; consensus is 1.2 times that) and the daemons' lease."""

    token: int = 3000
    lease: str = "6s"


@dataclass(order=True)
class Row:
    """An event of a history."""

    t: int
    node: int
    event: dict[str, Any] = field(compare=False)


@dataclass
class Node:
    """A machine: its namespaces live as long as `holder`."""

    number: int
    folder: Path
    holder: subprocess.Popen[bytes]
    corosync: subprocess.Popen[bytes] | None = None
    daemon: subprocess.Popen[bytes] | None = None
    starts: int = 0
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.folder / "lockify.sock"

    @property
    def log(self) -> Path:
        return self.folder / "lockifyd.log"

    def inside(self, *command: str | Path) -> list[str]:
        enter = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", "--uts"]
        return enter + [str(c) for c in command]

    def said(self, text: str) -> int:
        """How often the daemon's log has this."""
        return self.log.read_text(encoding="utf-8", errors="replace").count(text) if self.log.exists() else 0


class Yard:
    """A cluster. Use it as a context manager: everything that it started ends with it."""

    STOP, GO_ON = signal.SIGSTOP, signal.SIGCONT

    def __init__(
        self,
        size: int,
        times: Times = Times(),
        config: str = "",
        corosync: str = "",
        own_programs: bool = False,
        user: str = "",
        membership: str = "corosync",
        links: Sequence[int] = (0,),
        names: bool = False,
    ) -> None:
        """With `own_programs`, each daemon is a program file of its own, which can be broken. With a `user`, daemons are
        that user's, as the packages have them, and prove to each other by certificates who they are. `links` are
        corosync's, each a network of its own; with `names`, corosync.conf has names, which `hosts` resolves."""
        self.membership, self.links, self.names = membership, links, names
        self.size, self.times, self.config, self.extra = size, times, config, corosync
        self.own_programs, self.user = own_programs or bool(user), user
        self.folder = Path(tempfile.mkdtemp(prefix="lockify-netns-"))
        self.hub = self._holder("--net")
        self.nodes: dict[int, Node] = {}
        self.sides = 0

    def __enter__(self) -> Yard:
        try:
            self._ip("link", "set", "lo", "up")
            self._bridge()
            for number in range(1, self.size + 1):
                self._make_node(number)
            if self.membership == "corosync":
                for node in self.nodes.values():
                    self.start_corosync(node.number)
            if self.user:
                self._make_keys()
            for node in self.nodes.values():
                self.start_daemon(node.number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes.values():
            for process in [*node.clients, node.daemon, node.corosync, node.holder]:
                end(process)
        end(self.hub)
        if "LOCKIFY_KEEP" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _holder(self, *namespaces: str) -> subprocess.Popen[bytes]:
        command = ["unshare", *namespaces, "--propagation", "private"] if "--mount" in namespaces else [
            "unshare", *namespaces]
        holder = subprocess.Popen([*command, "sh", "-c", "echo ready; exec sleep infinity"],
                                  stdout=subprocess.PIPE)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise Failure("no namespaces: this needs root")
        return holder

    def _ip(self, *arguments: str) -> None:
        run("nsenter", "--target", str(self.hub.pid), "--net", "ip", *arguments)

    def _bridge(self) -> str:
        """A new part of the network."""
        name, self.sides = f"side{self.sides}", self.sides + 1
        self._ip("link", "add", name, "type", "bridge", "mcast_snooping", "0")
        self._ip("link", "set", name, "up")
        return name

    def _make_node(self, number: int) -> None:
        folder = self.folder / f"n{number}"
        (folder / "lib").mkdir(parents=True)
        node = Node(number, folder, self._holder("--net", "--mount", "--uts"))
        self.nodes[number] = node
        for place, link in enumerate(self.links):
            self._plug(node, place, link)
        (folder / "hosts").write_text(self.hosts(number), encoding="utf-8")
        script = f"""
set -e
# Without a ring0_addr, corosync finds itself in its list by this.
hostname node{number}
ip link set lo up
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount --bind {folder}/hosts /etc/hosts
mkdir -p /run/corosync /var/lib/corosync
mount --bind {folder}/lib /var/lib/corosync
"""
        run(*node.inside("sh", "-c", script))
        (folder / "corosync.conf").write_text(self._corosync_conf(), encoding="utf-8")

    def _plug(self, node: Node, place: int, link: int) -> None:
        """Connects a node to the network of a link; that of the first one can be cut into parts."""
        port, device = self._port(node.number, place), f"eth{place}"
        self._ip("link", "add", port, "type", "veth", "peer", "name", device, "netns", str(node.holder.pid))
        if place and node.number == 1:
            self._ip("link", "add", f"wire{place}", "type", "bridge", "mcast_snooping", "0")
            self._ip("link", "set", f"wire{place}", "up")
        self._ip("link", "set", port, "master", f"wire{place}" if place else "side0", "up")
        run(*node.inside("ip", "address", "add", f"{address(node.number, link)}/24", "dev", device))
        run(*node.inside("ip", "link", "set", device, "up"))

    @staticmethod
    def _port(number: int, place: int) -> str:
        return f"p{number}" if place == 0 else f"p{number}-{place}"

    def hosts(self, number: int) -> str:
        """/etc/hosts of a node."""
        lines = ["127.0.0.1 localhost"]
        for link in self.links:
            lines += [f"{address(n, link)} {name_of(n, link)}" for n in range(1, self.size + 1)]
        return "\n".join(lines) + "\n"

    def set_link(self, place: int, up: bool, numbers: Sequence[int] = ()) -> None:
        """Takes the ports of nodes (all of them, if none is named) on a link down, or up again."""
        for number in numbers or self.nodes:
            self._ip("link", "set", self._port(number, place), "up" if up else "down")

    def _corosync_conf(self) -> str:
        name = name_of if self.names else address
        nodes = "".join(
            "  node {\n"
            + "".join(f"    ring{link}_addr: {name(n, link)}\n" for link in self.links)
            + f"    nodeid: {n}\n    name: node{n}\n  }}\n"
            for n in range(1, self.size + 1)
        )
        # Only knet has several links, and numbers that do not begin with 0.
        transport = "udpu" if tuple(self.links) == (0,) else "knet"
        uidgid = f"uidgid {{\n  uid: {self.user}\n}}\n" if self.user else ""
        # Corosync runs with real-time priority: its time-outs do not depend on what else runs.
        return f"""totem {{
  version: 2
  cluster_name: yard
  transport: {transport}
  crypto_cipher: none
  crypto_hash: none
  token: {self.times.token}
  token_coefficient: 0
}}
system {{
  move_to_root_cgroup: no
}}
{uidgid}quorum {{
  provider: corosync_votequorum
{self.extra}}}
logging {{
  to_syslog: no
  to_stderr: yes
}}
nodelist {{
{nodes}}}
"""

    def _make_keys(self) -> None:
        authority = self.folder / "ca"
        run(LOCKIFY, "cluster", "init", authority)
        run(LOCKIFY, "cluster", "add-node", authority, *map(str, self.nodes))
        self.folder.chmod(0o711)
        for node in self.nodes.values():
            for name in ("ca.pem", "node.pem"):
                shutil.copy2(authority / f"node-{node.number}" / name, node.folder)
            self.program(node.number)
            for path in [node.folder, *node.folder.iterdir()]:
                shutil.chown(path, self.user)

    # Starting and stopping.

    def start_corosync(self, number: int) -> None:
        node = self.nodes[number]
        # The pid file of one that was killed.
        run(*node.inside("rm", "-f", "/run/corosync.pid"))
        with (node.folder / "corosync.log").open("ab") as log:
            command = node.inside("corosync", "-f", "-c", node.folder / "corosync.conf")
            node.corosync = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(f"corosync on node {number} answers", lambda: self._corosync_answers(node))

    @staticmethod
    def _corosync_answers(node: Node) -> bool:
        if node.corosync is None or node.corosync.poll() is not None:
            log = (node.folder / "corosync.log").read_text(encoding="utf-8", errors="replace")
            raise Failure(f"corosync on node {node.number} has ended:\n{log[-2000:]}")
        return _succeeds(node.inside("corosync-cmapctl", "-g", "runtime.votequorum.this_node_id"))

    def start_daemon(self, number: int, config: str = "") -> None:
        node = self.nodes[number]
        node.starts += 1
        path = node.folder / "lockify.toml"
        path.write_text(self._configuration(node, config or self.config), encoding="utf-8")
        before = node.said("serves clients")
        with node.log.open("ab") as log:
            as_user = ["setpriv", f"--reuid={self.user}", "--clear-groups"] if self.user else []
            command = node.inside(*as_user, self.program(number), path)
            node.daemon = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(f"daemon {number} serves clients", lambda: node.said("serves clients") > before)

    def _configuration(self, node: Node, more: str) -> str:
        security = 'plain_text = "anybody who reaches the network may take and break locks"'
        if self.user:
            security = 'ca = "ca.pem"\nsecurity.identity = "node.pem"'
        return f"""membership = "{self.membership}"
lease = "{self.times.lease}"
socket = "{node.socket}"
security.{security}
history = "{node.folder}/history-{node.starts:03}.jsonl"
state_dir = "{node.folder}/state"
{more}
"""

    def program(self, number: int) -> Path:
        if not self.own_programs:
            return LOCKIFYD
        own = self.nodes[number].folder / "lockifyd"
        if not own.exists():
            shutil.copy2(LOCKIFYD, own)
        return own

    def break_program(self, number: int) -> None:
        """From now on, what is installed says that it can go on, and then ends."""
        own = self.program(number)
        good = own.with_suffix(".good")
        own.rename(good)
        own.write_text(f'#!/bin/sh\n[ -n "$LOCKIFY_RESTART_CHECK" ] && exec {good} "$@"\nexit 1\n')
        own.chmod(0o755)

    def mend_program(self, number: int) -> None:
        own = self.program(number)
        own.with_suffix(".good").rename(own)

    @property
    def lease(self) -> float:
        """In seconds."""
        return float(self.times.lease.removesuffix("s"))

    def kill_daemon(self, number: int) -> None:
        """At once."""
        node = self.nodes[number]
        assert node.daemon is not None
        node.deaths.append(time.monotonic_ns())
        end(node.daemon)
        node.daemon = None

    def kill_machine(self, number: int) -> None:
        """Everything on it, at once."""
        node = self.nodes[number]
        assert node.daemon is not None and node.corosync is not None
        node.corosync.kill()
        self.kill_daemon(number)
        end(node.corosync)
        node.corosync = None

    def kill_corosync(self, number: int) -> None:
        end(self.nodes[number].corosync)
        self.nodes[number].corosync = None

    def stop_daemon(self, number: int) -> None:
        """Stops it for so long that the others leave it behind."""
        self.nodes[number].deaths.append(time.monotonic_ns())
        self.signal_daemon(number, signal.SIGSTOP)

    def signal_daemon(self, number: int, what: signal.Signals) -> None:
        process = self.nodes[number].daemon
        assert process is not None
        process.send_signal(what)

    def signal_corosync(self, number: int, what: signal.Signals) -> None:
        process = self.nodes[number].corosync
        assert process is not None
        process.send_signal(what)

    def partition(self, *parts: Sequence[int]) -> None:
        """Cuts the network into these parts; nodes that are named in none stay where they are."""
        for part in parts:
            side = self._bridge()
            for number in part:
                self._ip("link", "set", f"p{number}", "master", side)

    def heal(self) -> None:
        for number in self.nodes:
            self._ip("link", "set", f"p{number}", "master", "side0")

    # Locks.

    def hold(self, number: int, name: str) -> subprocess.Popen[bytes]:
        """A client that holds a lock until it is killed or loses it; returns when it holds."""
        node = self.nodes[number]
        held = node.folder / f"held-{time.monotonic_ns()}"
        process = self.client(number, name, "sh", "-c", f"echo >{held}; exec sleep infinity")
        self.until(f"node {number} holds {name}", lambda: held.exists() or process.poll() is not None)
        if not held.exists():
            raise Failure(f"node {number} could not lock {name}: {process.poll()}\n{self.told()}")
        return process

    def client(self, number: int, name: str, *command: str, timeout: str = "") -> subprocess.Popen[bytes]:
        """`lockify run` on a node."""
        node = self.nodes[number]
        limit = ["--timeout", timeout] if timeout else []
        line = [str(LOCKIFY), "run", "--socket", str(node.socket), *limit, name, "--", *command]
        with (node.folder / "clients.log").open("ab") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, process_group=0)
        node.clients.append(process)
        return process

    def end_client(self, process: subprocess.Popen[bytes]) -> None:
        end(process)

    def can_lock(self, number: int, name: str, timeout: str = "0s") -> bool:
        """Returns true if a lock is granted there within `timeout`."""
        return self.client(number, name, "true", timeout=timeout).wait(PATIENCE) == 0

    def lock(self, number: int, name: str) -> float:
        """Locks and unlocks, however long that takes; in seconds."""
        began = time.monotonic()
        self.until(f"node {number} locks {name}", lambda: self.can_lock(number, name, "20s"))
        return time.monotonic() - began

    # Looking.

    def says(self, number: int, *command: str) -> str:
        """The output of a command of `lockify` on a node, for any exit code."""
        line = [str(LOCKIFY), *command, "--socket", str(self.nodes[number].socket)]
        return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout

    def members(self, number: int) -> list[int]:
        """The nodes in the view of a node, in the words of its log."""
        log = self.nodes[number].log.read_text(encoding="utf-8", errors="replace")
        for line in reversed(log.splitlines()):
            if "every lock is lost" in line or "serves clients" in line:
                return []
            if "view " in line and ": nodes " in line:
                return [int(n) for n in line.rsplit(": nodes ", 1)[1].split()]
        return []

    def until(self, what: str, holds: Callable[[], bool], patience: float = PATIENCE) -> None:
        limit = time.monotonic() + patience
        while not holds():
            if time.monotonic() > limit:
                raise Failure(f"in vain waited for: {what}\n{self.told()}")
            time.sleep(0.02)

    def until_members(self, expected: Sequence[int], at: Sequence[int] | None = None) -> None:
        for number in at if at is not None else expected:
            self.until(
                f"node {number} sees {list(expected)}", lambda n=number: self.members(n) == list(expected)
            )

    def told(self) -> str:
        """The last lines of every daemon."""
        parts = []
        for node in self.nodes.values():
            text = node.log.read_text(encoding="utf-8", errors="replace") if node.log.exists() else ""
            parts.append(f"node {node.number}:\n" + "\n".join(text.splitlines()[-8:]))
        return "\n".join(parts)

    # History.

    def check(self) -> dict[str, object]:
        """Ends the daemons, merges what they recorded and has `lockify check` judge it."""
        for node in self.nodes.values():
            if node.daemon is not None:
                node.daemon.send_signal(signal.SIGCONT)
                node.daemon.terminate()
        for node in self.nodes.values():
            if node.daemon is not None:
                node.daemon.wait(PATIENCE)
        merged = self.folder / "merged.jsonl"
        with merged.open("w", encoding="utf-8") as out:
            for row in self._merged():
                out.write(json.dumps(row.event) + "\n")
        done = subprocess.run([str(LOCKIFY), "check", "--json", str(merged)], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        outcome = json.loads(done.stdout)
        if outcome["outcome"] != "clean":
            kept = Path(tempfile.mkdtemp(prefix="lockify-history-")) / "merged.jsonl"
            shutil.copy(merged, kept)
            raise Failure(f"{kept}: {done.stdout}\n{self.told()}")
        return outcome["report"]

    def _merged(self) -> Iterator[Row]:
        """All histories by time, with the crashes that nobody could record."""
        begins, parts = [], []
        for node in self.nodes.values():
            rows = []
            for path in sorted(node.folder.glob("history-*.jsonl")):
                rows += _rows(path, node.number)
            begins += [r for r in rows if r.event["event"] == "begin"]
            parts.append(_with_crashes([r for r in rows if r.event["event"] != "begin"], node))
        yield min(begins)
        yield from heapq.merge(*parts)


def _rows(path: Path, node: int) -> Iterator[Row]:
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(text)
        except ValueError:
            return  # the line that a kill cut
        yield Row(event["t"], node, event)


def _with_crashes(rows: list[Row], node: Node) -> list[Row]:
    """A life that was killed ends there; so does one that was stopped and left behind, whose own word on
    it comes when it goes on: what its clients do in between is what fencing tokens are for."""
    for death in node.deaths:
        before = [r.event["incarnation"] for r in rows if r.t <= death and "incarnation" in r.event]
        if not before:
            continue
        life = before[-1]
        after = [r for r in rows if r.t > death and r.event.get("incarnation") == life]
        if any(r.event["event"] != "crash" for r in after):
            raise Failure(f"node {node.number} went on in a life that had ended: {after}")
        crash = {"t": death, "node": node.number, "incarnation": life, "event": "crash"}
        rows = sorted([r for r in rows if r not in after] + [Row(death, node.number, crash)])
    return rows


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Kills a process, and its children if it leads a group."""
    if process is None or process.poll() is not None:
        return
    if os.getpgid(process.pid) == process.pid:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait(PATIENCE)
