"""Locks, as one thread after the other sees them."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from conftest import LIMIT, Daemon, eventually, eventually_free, is_free, waiters

import lockify
from lockify import CR, EX, NL, PR, PW, Lock, Lockspace, Mode


def test_a_lock_excludes_until_the_end_of_the_block(space: Lockspace, other: Lockspace, name: str) -> None:
    with space.lock(name) as lock:
        assert (lock.mode, lock.name, lock.lost, lock.released) == (EX, name.encode(), False, False)
        lock.check()
        with pytest.raises(lockify.WouldBlock, match="try later, or wait"):
            other.try_lock(name)
    assert lock.released and not lock.lost
    with other.try_lock(name):
        pass


@pytest.mark.parametrize("held", Mode)
@pytest.mark.parametrize("wanted", Mode)
def test_modes_exclude_as_the_table_says(
    space: Lockspace, other: Lockspace, name: str, held: Mode, wanted: Mode
) -> None:
    compatible = {
        NL: "NL CR CW PR PW EX",
        CR: "NL CR CW PR PW",
        Mode.CW: "NL CR CW",
        PR: "NL CR PR",
        PW: "NL CR",
        EX: "NL",
    }
    with space.lock(name, held):
        if wanted.name in compatible[held].split():
            other.try_lock(name, wanted).unlock()
        else:
            with pytest.raises(lockify.WouldBlock):
                other.try_lock(name, wanted)


def test_tokens_rise_and_are_known_after_the_release(space: Lockspace, other: Lockspace, name: str) -> None:
    tokens = []
    for where in (space, other, space):
        with where.lock(name, PW) as lock:
            assert lock.token > 0
        tokens.append(lock.token)
    assert tokens == sorted(set(tokens))
    with space.lock(name, PR) as lock:
        assert lock.token == 0


def test_a_new_lock_can_be_claimed(space: Lockspace, name: str) -> None:
    with space.lock(name, notify=True) as lock:
        # A cluster of one node has nobody to ask: claims are settled at once.
        eventually(lambda: not lock.provisional, "the claim is settled")
        assert lock.token > 0


def test_the_time_limit_is_kept(space: Lockspace, other: Lockspace, name: str) -> None:
    with space.lock(name):
        with pytest.raises(lockify.TimedOut, match="lockify who"):
            other.lock(name, timeout=0.01)
        with pytest.raises(TimeoutError):
            other.lock(name, timeout=0)
        assert waiters(space, name) == 0
    with other.lock(name, timeout=0):
        pass


def test_conversions(space: Lockspace, other: Lockspace, name: str) -> None:
    with space.lock(name, PR) as lock, other.lock(name, PR) as reader:
        with pytest.raises(lockify.WouldBlock):
            lock.try_convert(EX)
        with pytest.raises(lockify.TimedOut):
            lock.convert(EX, timeout=0.01)
        assert lock.mode == PR
        reader.convert(NL)
        lock.convert(EX)
        assert (lock.mode, lock.token > 0) == (EX, True)
        assert not is_free(other, name)
        lock.convert(NL)
        assert is_free(other, name)


def test_the_second_of_two_crossed_conversions_is_told_of_the_deadlock(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    with space.lock(name, PR) as first, other.lock(name, PR) as second:
        waiting = threading.Thread(target=first.convert, args=(EX,))
        waiting.start()
        eventually(lambda: waiters(space, name) == 1, "the first conversion waits")
        # A lock can be looked at while it is being converted.
        assert first.mode == PR and not first.lost
        with pytest.raises(lockify.Busy):
            first.try_convert(NL)
        with pytest.raises(lockify.Deadlock, match="release what you hold"):
            second.convert(EX)
        second.convert(NL)
        waiting.join(LIMIT)
        assert first.mode == EX


def test_a_release_ends_a_conversion_that_waits(space: Lockspace, other: Lockspace, name: str) -> None:
    ended = []

    def convert(lock: Lock) -> None:
        with pytest.raises(lockify.Canceled):
            lock.convert(EX)
        ended.append(True)

    with other.lock(name, PR):
        lock = space.lock(name, PR)
        waiting = threading.Thread(target=convert, args=(lock,))
        waiting.start()
        eventually(lambda: waiters(space, name) == 1, "the conversion waits")
        lock.unlock()
        waiting.join(LIMIT)
    assert ended and is_free(other, name)


def test_value_blocks(space: Lockspace, other: Lockspace, name: str) -> None:
    def block(text: bytes) -> bytes:
        return text.ljust(space.lvb_len, b"\0")

    assert space.lvb_len == 32
    with space.lock(name, PR, read_lvb=True) as lock:
        assert lock.lvb is None or not any(lock.lvb)
    keeper = other.lock(name, NL)  # a value block lives as long as somebody has a lock of the name
    with space.lock(name, EX) as lock:
        lock.unlock(lvb=block(b"one"))
    with space.lock(name, EX, read_lvb=True) as lock:
        assert (lock.lvb, lock.lvb_valid) == (block(b"one"), True)
        lock.convert(PR, lvb=block(b"two"))
        with other.lock(name, PR, read_lvb=True) as reader:
            assert reader.lvb == block(b"two")
    keeper.convert(PR, lvb=block(b""))
    assert keeper.lvb == block(b"two")
    keeper.convert(NL)
    with space.lock(name, EX) as lock:
        lock.unlock(invalidate_lvb=True)
    with space.lock(name, PR, read_lvb=True) as lock:
        assert not lock.lvb_valid
    keeper.unlock()


def test_a_callback_hears_of_who_waits_and_may_release(space: Lockspace, other: Lockspace, name: str) -> None:
    heard: list[tuple[Lock, Mode, str]] = []

    def give_way(lock: Lock, mode: Mode) -> None:
        heard.append((lock, mode, threading.current_thread().name))
        lock.unlock()

    lock = space.lock(name, on_block=give_way)
    with other.lock(name, PR, timeout=LIMIT):
        eventually(lambda: bool(heard), "the callback ran")
        ((blocking, mode, thread),) = heard
    assert (blocking, mode) == (lock, PR)
    assert thread != threading.current_thread().name
    assert lock.released


def test_a_callback_that_waits_for_the_lock_it_is_told_of_gets_it(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    """Somebody waits already when the lock is granted: the callback has the lock all the same."""
    rounds, failed = 200, []

    def release(lock: Lock) -> None:
        try:
            lock.unlock()
        except lockify.Released:
            pass  # the other one was first
        except lockify.LockifyError as e:
            failed.append(e)

    def take_turns(where: Lockspace) -> None:
        for _ in range(rounds):
            gone = threading.Event()

            def give_way(lock: Lock, _: Mode, gone: threading.Event = gone) -> None:
                release(lock)
                gone.set()

            lock = where.lock(name, on_block=give_way, timeout=LIMIT)
            if not gone.wait(0.0005):
                release(lock)

    threads = [threading.Thread(target=take_turns, args=(where,)) for where in (space, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert not failed
    eventually_free(space, name)


def test_what_a_callback_raises_is_reported(
    space: Lockspace, other: Lockspace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))

    def wrong(lock: Lock, mode: Mode) -> None:
        raise RuntimeError("a wrong callback")

    with space.lock(name, on_block=wrong) as lock:
        with pytest.raises(lockify.TimedOut):
            other.lock(name, timeout=0.05)
        eventually(lambda: bool(reported), "the exception is reported")
        assert lock.blocked == EX
    assert str(reported[0]) == "a wrong callback"


def test_a_released_lock_says_so(space: Lockspace, name: str) -> None:
    lock = space.lock(name)
    lock.unlock()
    for call in (lock.unlock, lock.check, lambda: lock.convert(PR), lambda: lock.mode, lock.__enter__):
        with pytest.raises(lockify.Released, match="lock again"):
            call()
    assert "released" in repr(lock)


def test_an_exception_in_the_block_comes_out_and_releases(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    with pytest.raises(ZeroDivisionError), space.lock(name):
        raise ZeroDivisionError
    assert is_free(other, name)


def test_who_and_locks(space: Lockspace, other: Lockspace, name: str) -> None:
    with space.lock(name, PW, transaction=7) as lock:
        waiting = threading.Thread(target=lambda: other.lock(name, timeout=LIMIT).unlock())
        waiting.start()
        eventually(lambda: waiters(space, name) == 1, "somebody waits")
        view = space.who(name)
        assert (view.omitted, view.silent) == (0, ())
        (resource,) = view.resources
        assert (resource.name, resource.master, resource.claim_pending) == (name.encode(), 1, False)
        (holder,), (waiter,) = resource.holders, resource.waiters
        assert (holder.granted, holder.requested, holder.token) == (PW, None, lock.token)
        assert (holder.owner.node, holder.owner.pid, holder.transaction) == (1, os.getpid(), 7)
        assert abs(holder.since - time.time()) < LIMIT
        assert (waiter.granted, waiter.requested, waiter.wait) == (None, EX, "queue")
        assert waiter.waits_for == (holder.owner,)
        assert name.encode() in {resource.name for resource in space.locks().resources}
    waiting.join(LIMIT)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_lockspace_has_the_mode_that_it_is_made_with() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        daemon = Daemon(Path(folder))
        try:
            os.chmod(daemon.socket, 0o666)
            maker = lockify.connect(daemon.socket)
            with pytest.raises(lockify.LockifyError, match="mode 700"):
                maker.create_lockspace("odd", mode=0o700)
            for made, mode in {"private": None, "seen": 0o644, "open": 0o666}.items():
                maker.create_lockspace(made, exclusive=True, mode=mode)
            # An existing lockspace keeps its own.
            maker.create_lockspace("private", mode=0o666)
            os.seteuid(64001)
            try:
                with lockify.connect(daemon.socket) as other:
                    with pytest.raises(lockify.NotPermitted):
                        other.lockspace("private")
                    with pytest.raises(lockify.NotPermitted):
                        other.lockspace("seen").lock("a")
                    other.lockspace("open").lock("a").unlock()
            finally:
                os.seteuid(0)
        finally:
            daemon.end()


def test_lockspaces_are_made_used_and_released(own_daemon: Daemon, name: str) -> None:
    session = lockify.connect(own_daemon.socket)
    space = session.lockspace("default")
    with pytest.raises(lockify.NoSuchLockspace, match="add it to the configuration"):
        session.lockspace("made")
    made = session.create_lockspace("made", exclusive=True)
    with pytest.raises(lockify.LockspaceExists, match="choose another name"):
        session.create_lockspace("made", exclusive=True)
    assert made.name == session.lockspace("made").name
    lost: list[lockify.LostLock] = []
    made.on_lost(lost.append)
    lock = made.lock(name)
    with space.lock(name):  # of the other lockspace
        pass
    with pytest.raises(lockify.Busy, match="unlock them, or use force"):
        session.release_lockspace("made")
    session.release_lockspace("made", force=True)
    eventually(lambda: lock.lost, "the lock is lost")
    eventually(lambda: bool(lost), "the program is told")
    assert (lost[0].lockspace, lost[0].name, lost[0].mode) == ("made", name.encode(), EX)


def test_threads_wait_at_the_same_time(space: Lockspace, name: str) -> None:
    """The interpreter is free while calls wait, and each sees the others' work done."""
    counter = [0]

    def work() -> None:
        for _ in range(50):
            with space.lock(name, timeout=LIMIT):
                seen = counter[0]
                threading.Event().wait(0)
                counter[0] = seen + 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert counter == [400]
