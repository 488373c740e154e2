"""The process that owns a lab: process 1 of a PID namespace, with a network and mounts of its own.

Whatever ends it, the kernel ends all nodes with it and takes network and mounts away; there is nothing
else to clean up but the lab's folder. Until `lab up` has finished, the supervisor also ends when
that command ends, however it does: it holds the other end of a socket, the leash.

It answers one request for each connection to `control.sock`, as JSON.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from . import net
from .errors import LabError
from .host import command
from .node import Node, NodeSpec

Reply = tuple[dict[str, Any], list[int]]


class Supervisor:
    def __init__(self, folder: Path, leash: socket.socket) -> None:
        self.folder = folder
        self.leash = leash
        self.selector = selectors.DefaultSelector()
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        specs = [NodeSpec(**spec) for spec in plan["nodes"]]
        self.nodes = {spec.number: Node(spec, folder) for spec in specs}
        self.mtu = int(plan["mtu"])
        self.actions: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "start": self._on_node(Node.start),
            "kernel": self._set_kernel,
            "crash": self._on_node(Node.crash),
            "stall": self._on_node(Node.stall),
            "resume": self._on_node(Node.resume),
            "connect": self._connect,
            "capture": self._capture,
            "status": lambda _: ({"nodes": [node.state() for node in self.nodes.values()]}, []),
            "release": self._release,
            "end": self._end,
        }

    def prepare(self) -> None:
        _own_mounts(self.folder)
        net.create(len(self.nodes), self.mtu)

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.bind(str(self.folder / "control.sock"))
            control.listen(64)
            self.selector.register(control, selectors.EVENT_READ, self._answer)
            self.selector.register(wake_read, selectors.EVENT_READ, self._reap)
            self.selector.register(self.leash, selectors.EVENT_READ, self._leash_moved)
            self.leash.sendall(b"ready\n")
            while True:
                for key, _ in self.selector.select():
                    key.data(key.fileobj)

    def _leash_moved(self, _: socket.socket) -> None:
        os._exit(1)  # nothing is ever sent here: `lab up` ended before it was done

    def _reap(self, wake: int) -> None:
        os.read(wake, 4096)
        by_pid = {node.pid: node for node in self.nodes.values() if node.pid}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if node := by_pid.get(pid):
                node.reaped(status)

    def _answer(self, control: socket.socket) -> None:
        connection, _ = control.accept()
        with connection:
            connection.settimeout(5)  # a client that connects and says nothing
            try:
                request = json.loads(connection.recv(65536))
                reply, handed = self.actions[request["do"]](request)
            except LabError as error:
                reply, handed = {"error": str(error)}, []
            except (KeyError, ValueError, TimeoutError) as error:
                reply, handed = {"error": f"request not understood: {error!r}"}, []
            try:
                socket.send_fds(connection, [json.dumps(reply).encode()], handed)
            except OSError:
                pass  # the client is gone
            finally:
                for fd in handed:
                    os.close(fd)

    def _on_node(self, action: Callable[[Node], None]) -> Callable[[dict[str, Any]], Reply]:
        def act(request: dict[str, Any]) -> Reply:
            node = self._node(request)
            if action is Node.start and node.pid is not None:
                raise LabError(f"node {node.spec.number} runs already")
            if action is not Node.start and node.pid is None:
                raise LabError(f"node {node.spec.number} does not run: {node.ended or 'never started'}")
            action(node)
            return {"ok": True}, []

        return act

    def _set_kernel(self, request: dict[str, Any]) -> Reply:
        """The parameters of the node's later starts; one that runs goes on with what it has."""
        node = self._node(request)
        node.spec = replace(node.spec, kernel=request["kernel"])
        return {"ok": True}, []

    def _node(self, request: dict[str, Any]) -> Node:
        node = self.nodes.get(request["node"])
        if node is None:
            raise LabError(f"there is no node {request['node']}: this lab has 1 to {len(self.nodes)}")
        return node

    def _connect(self, request: dict[str, Any]) -> Reply:
        """Hands out a socket on its way to a node's agent: only this process is in its network."""
        node = self._node(request)
        if node.pid is None:
            return {"dead": node.state()}, []
        agent = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        begun = agent.connect_ex((net.agent_address(node.spec.number), net.AGENT_PORT))
        if begun not in (0, errno.EINPROGRESS):
            agent.close()
            raise LabError(f"no way to node {node.spec.number}'s agent: {os.strerror(begun)}")
        return {"ok": True}, [agent.detach()]

    def _capture(self, request: dict[str, Any]) -> Reply:
        """Hands out a packet socket on a node's port of the bridge, which sees all that it says and hears."""
        node = self._node(request)
        every = socket.htons(3)  # ETH_P_ALL
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every)
        capture.bind((net.bridge_port(node.spec.number), 0))
        return {"ok": True}, [capture.detach()]

    def _release(self, _: dict[str, Any]) -> Reply:
        self.selector.unregister(self.leash)
        self.leash.close()
        return {"ok": True}, []

    def _end(self, _: dict[str, Any]) -> Reply:
        os._exit(0)


def _hold(alive: BinaryIO) -> None:
    """Whoever looks whether we live holds the lock for a moment, too."""
    end = time.monotonic() + 5
    while True:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise LabError("another supervisor has this lab: see `labs/kernels/lab status`") from None
            time.sleep(0.005)


def _own_mounts(folder: Path) -> None:
    """Nodes see the host's tree through this process: read-only but for the lab's folder."""
    command(["mount", "--bind", folder, folder], 20)
    kept = ("/dev", "/proc", "/sys", str(folder))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    for point in dict.fromkeys(points):
        if not any(point == name or point.startswith(name + "/") for name in kept):
            command(["mount", "-o", "remount,bind,ro", point.replace("\\040", " ")], 20)


def main() -> None:
    folder, leash_fd = Path(sys.argv[1]), int(sys.argv[2])
    leash = socket.socket(fileno=leash_fd)
    leash.set_inheritable(False)
    # Held until the end, see control.py. Open for writing, it would keep the tree from becoming read-only.
    alive = open(folder / "alive", "rb")
    try:
        _hold(alive)
        supervisor = Supervisor(folder, leash)
        supervisor.prepare()
    except LabError as error:
        leash.sendall(f"failed: {error}\n".encode())
        sys.exit(1)
    supervisor.serve()


if __name__ == "__main__":
    main()
