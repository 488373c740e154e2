"""A real daemon for each test that asks for one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockify

LOCKIFY = Path(__file__).parents[2] / "target" / "debug" / "lockify"
LIMIT = 60.0  # seconds, for what takes a moment


def eventually(so: Callable[[], bool], what: str) -> None:
    """Waits until something is so; fails if that takes for ever."""
    deadline = time.monotonic() + LIMIT
    while not so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


class Daemon:
    """`lockify serve`, of a cluster of one node; or of two, of which the other one is missing."""

    def __init__(self, folder: Path, shards: int = 1, nodes: int = 1) -> None:
        self.socket = folder / "socket"
        self.config = folder / "lockify.toml"
        head = f'node = 1\nsocket = "{self.socket}"\nshards = {shards}\n'
        # A node that has nobody to listen to does not listen.
        addresses = ["127.0.0.1:0"] if nodes == 1 else ["127.0.0.3:7431", "127.0.0.4:7431"]
        entries = [f'[[nodes]]\nid = {i}\naddress = "{address}"\n' for i, address in enumerate(addresses, 1)]
        self.config.write_text(head + "".join(entries))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([LOCKIFY, "serve", "--config", self.config])
        eventually(self._answers, "the daemon runs")

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the daemon does not run"
        try:
            lockify.connect(self.socket).close()
        except lockify.NoDaemon:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def stop(self) -> None:
        """It lives, and does nothing."""
        self.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.go_on()
        self.process.terminate()
        self.process.wait(LIMIT)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests that leave it as it is, with two shards."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), shards=2)
    yield daemon
    daemon.end()


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One that the test may kill."""
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.end()


@pytest.fixture
def session(daemon: Daemon) -> Iterator[lockify.Session]:
    with lockify.connect(daemon.socket) as session:
        yield session


@pytest.fixture
def space(session: lockify.Session) -> lockify.Lockspace:
    return session.lockspace("default")


@pytest.fixture
def other(daemon: Daemon) -> Iterator[lockify.Lockspace]:
    """The same lockspace in another session."""
    with lockify.connect(daemon.socket) as session:
        yield session.lockspace("default")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for each test."""
    return f"{request.node.name}"[:64]


def threads() -> int:
    """Threads of this process, whoever started them."""
    return len(os.listdir("/proc/self/task"))


def waiters(space: lockify.Lockspace, name: str | bytes) -> int:
    return sum(len(resource.waiters) for resource in space.who(name).resources)


def is_free(space: lockify.Lockspace, name: str | bytes) -> bool:
    try:
        space.try_lock(name).unlock()
    except lockify.WouldBlock:
        return False
    return True


def eventually_free(space: lockify.Lockspace, name: str | bytes) -> None:
    eventually(lambda: is_free(space, name), f"{name!r} is free")
