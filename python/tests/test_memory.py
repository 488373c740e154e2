"""The effects of the garbage collector."""

from __future__ import annotations

import gc
import threading
import time
import weakref

from conftest import LIMIT, Daemon, eventually, eventually_free, is_free, threads

import lockify
from lockify import Lock, Lockspace, Mode


def test_a_dropped_lock_is_released(space: Lockspace, other: Lockspace, name: str) -> None:
    lock = space.lock(name)
    assert not is_free(other, name)
    del lock
    eventually_free(other, name)


def test_a_lock_in_a_cycle_with_its_callback_is_released(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    class Cache:
        """Refers to its lock, whose callback refers to it."""

        def __init__(self) -> None:
            self.lock = space.lock(name, on_block=self.give_way)

        def give_way(self, lock: Lock, mode: Mode) -> None:
            time.sleep(0)

    cache = Cache()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
    eventually_free(other, name)


def test_a_session_in_a_cycle_with_its_callback_ends(daemon: Daemon, other: Lockspace, name: str) -> None:
    def in_a_cycle() -> weakref.ref[lockify.Session]:
        session = lockify.connect(daemon.socket)
        space = session.lockspace("default")
        kept: list[object] = [session, space.lock(name)]
        space.on_lost(lambda lost: kept.append(lost))
        return weakref.ref(session)

    gc.disable()
    gone = in_a_cycle()
    assert gone() is not None
    gc.enable()
    gc.collect()
    assert gone() is None
    eventually_free(other, name)


def test_a_lock_keeps_its_session(daemon: Daemon, other: Lockspace, name: str) -> None:
    lock = lockify.connect(daemon.socket).lockspace("default").lock(name)
    gc.collect()
    lock.check()
    assert not is_free(other, name)
    lock.unlock()


def test_drops_do_not_wait_for_a_daemon_that_does_not_read(own_daemon: Daemon) -> None:
    session = lockify.connect(own_daemon.socket)
    space = session.lockspace("default")
    # More releases than a socket takes that nobody reads.
    locks = [space.lock(f"{i}") for i in range(5_000)]
    own_daemon.stop()
    waited = threading.Timer(LIMIT, own_daemon.go_on)
    waited.start()
    locks.clear()
    gc.collect()
    assert waited.is_alive()
    waited.cancel()
    own_daemon.go_on()
    eventually_free(space, "4999")
    eventually(lambda: not space.locks().resources, "all are released")


def test_threads_that_lock_and_drop_and_collect(space: Lockspace, name: str) -> None:
    """Guards go in every way there is, while the collector runs on every thread."""
    failures: list[BaseException] = []

    class Node:
        lock: Lock
        me: Node

    def work(number: int) -> None:
        try:
            for i in range(100):
                node = Node()
                node.me = node
                node.lock = space.lock(f"{name[:40]} {number % 2}", timeout=LIMIT)
                if i % 3 == 0:
                    node.lock.unlock()
                elif i % 3 == 1:
                    # In a cycle that only the collector breaks: until then others wait.
                    del node
                    gc.collect()
                else:
                    node.lock = space.lock(
                        f"{name[:40]} {number} own", on_block=lambda lock, mode: lock.unlock()
                    )
        except BaseException as e:
            failures.append(e)

    before = gc.get_threshold()
    gc.set_threshold(10)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.05)
                gc.collect()
    finally:
        gc.set_threshold(*before)
    assert not failures
    gc.collect()
    for i in range(2):
        eventually_free(space, f"{name[:40]} {i}")


def test_sessions_come_and_go(daemon: Daemon, other: Lockspace, name: str) -> None:
    before = threads()
    for i in range(100):
        session = lockify.connect(daemon.socket)
        kept = session.lockspace("default").lock(f"{name[:50]} {i}")
        if i % 2:
            session.close()
        del session, kept
    gc.collect()
    eventually(
        lambda: not any(resource.name.startswith(name.encode()[:50]) for resource in other.locks().resources),
        "all sessions have ended",
    )
    eventually(lambda: threads() <= before, "their threads have ended")
