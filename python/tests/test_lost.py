"""Locks that are lost, because the daemon is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from conftest import LIMIT, Daemon, eventually, eventually_free, waiters

import lockify


def test_everybody_is_told_and_can_connect_again(own_daemon: Daemon) -> None:
    session = lockify.connect(own_daemon.socket)
    space = session.lockspace("default")
    lost: list[lockify.LostLock] = []
    space.on_lost(lost.append)
    held = {name: space.lock(name) for name in (b"one", b"two")}
    reader = space.lock("three", lockify.PR)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            space.lock("one")
        except lockify.LockifyError as e:
            errors.append(e)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: waiters(space, "one") == 1, "it waits")
    own_daemon.kill()
    waiting.join(LIMIT)
    assert [type(e) for e in errors] == [lockify.Disconnected]
    eventually(lambda: len(lost) >= 3, "the program is told of each")
    assert {(entry.name, entry.mode) for entry in lost} == {
        (b"one", lockify.EX), (b"two", lockify.EX), (b"three", lockify.PR)
    }  # fmt: skip
    assert all("connect again" in entry.why and entry.lockspace == "default" for entry in lost)
    for lock in (*held.values(), reader):
        assert lock.lost and not lock.released
        with pytest.raises(lockify.Disconnected, match="abandon what"):
            lock.check()
        with pytest.raises(lockify.Disconnected):
            lock.convert(lockify.NL)
        with pytest.raises(ConnectionError):
            lock.unlock()
        assert lock.released and not lock.lost
    with pytest.raises(lockify.Disconnected):
        session.lockspace("default")
    own_daemon.start()
    with lockify.connect(own_daemon.socket) as session, session.lockspace("default").lock("one"):
        pass


def test_a_block_whose_lock_was_lost_says_so(own_daemon: Daemon) -> None:
    space = lockify.connect(own_daemon.socket).lockspace("default")
    with pytest.raises(lockify.Disconnected), space.lock("one"):
        own_daemon.kill()


def test_what_went_wrong_inside_counts_more(own_daemon: Daemon) -> None:
    space = lockify.connect(own_daemon.socket).lockspace("default")
    with pytest.raises(ZeroDivisionError), space.lock("one"):
        own_daemon.kill()
        raise ZeroDivisionError


def test_a_session_that_its_program_ends_loses_nothing(
    daemon: Daemon, space: lockify.Lockspace, name: str
) -> None:
    lost: list[lockify.LostLock] = []
    with lockify.connect(daemon.socket) as session:
        ending = session.lockspace("default")
        ending.on_lost(lost.append)
        lock = ending.lock(name)
        assert not lock.released
    eventually_free(space, name)
    assert not lost


def test_a_session_may_end_while_a_callback_releases(daemon: Daemon, name: str) -> None:
    """The callback's exceptions would be reported, and reports fail tests (pyproject.toml)."""
    for _ in range(100):
        with lockify.connect(daemon.socket) as one, lockify.connect(daemon.socket) as two:
            kept = one.lockspace("default").lock(name, on_block=lambda lock, mode: lock.unlock())
            with two.lockspace("default").lock(name, timeout=LIMIT):
                assert kept.released


def test_a_daemon_that_does_not_answer_is_not_waited_for_longer_than_asked(own_daemon: Daemon) -> None:
    space = lockify.connect(own_daemon.socket).lockspace("default")
    own_daemon.stop()
    with pytest.raises(lockify.TimedOut, match="does not answer"):
        space.lock("one", timeout=0)
    own_daemon.go_on()
    eventually_free(space, "one")


def test_without_a_quorum_calls_wait_or_say_so(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, nodes=2)
    try:
        space = lockify.connect(daemon.socket).lockspace("default")
        with pytest.raises(lockify.NotJoined, match="wait until it has joined"):
            space.try_lock("one")
        with pytest.raises(lockify.TimedOut):
            space.lock("one", timeout=0.05)

        async def cancelled() -> None:
            async with asyncio.timeout(0.05), space.lock_async("one"):
                pass

        with pytest.raises(TimeoutError):
            asyncio.run(cancelled())
    finally:
        daemon.end()
