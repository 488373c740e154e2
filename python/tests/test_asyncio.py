"""Tasks that wait for locks."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from conftest import LIMIT, Daemon, eventually, eventually_free, is_free, threads, waiters

import lockify
from lockify import EX, PR, Lock, Lockspace, Mode


def run(what: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine, not for ever."""
    asyncio.run(asyncio.wait_for(what, LIMIT))


async def until_waiting(space: Lockspace, name: str, count: int) -> None:
    while await asyncio.to_thread(waiters, space, name) != count:
        await asyncio.sleep(0.005)


def test_both_forms(space: Lockspace, other: Lockspace, name: str) -> None:
    async def work() -> None:
        async with space.lock_async(name) as lock:
            assert (lock.mode, lock.token > 0) == (EX, True)
            with pytest.raises(lockify.WouldBlock):
                await other.try_lock_async(name)
            with pytest.raises(lockify.TimedOut):
                await other.lock_async(name, timeout=0.01)
            await lock.convert_async(PR)
            async with other.try_lock_async(name, PR):
                pass
        assert lock.released
        lock = await space.lock_async(name)
        await lock.unlock_async()
        with pytest.raises(lockify.Released):
            await lock.unlock_async()
        assert is_free(other, name)

    run(work())


def test_a_thousand_tasks_wait_without_threads(space: Lockspace, name: str) -> None:
    async def work() -> None:
        inside, seen = [0], []

        async def one() -> None:
            async with space.lock_async(name) as lock:
                inside[0] += 1
                assert inside[0] == 1
                seen.append(lock.token)
                await asyncio.sleep(0)
                inside[0] -= 1

        async with space.lock_async(name):
            await until_waiting(space, name, 0)
            before = threads()
            tasks = [asyncio.create_task(one()) for _ in range(1000)]
            await until_waiting(space, name, 1000)
            # The pool of asyncio.to_thread may have grown.
            assert threads() < before + 50
            assert not seen
        await asyncio.gather(*tasks)
        assert len(seen) == 1000
        assert seen == sorted(set(seen))

    run(work())


def test_a_thousand_names_at_once(space: Lockspace, other: Lockspace, name: str) -> None:
    async def work() -> None:
        names = [f"{name[:50]} {i}" for i in range(1000)]
        locks = await asyncio.gather(*(space.lock_async(n) for n in names))
        assert len({lock.name for lock in locks}) == 1000
        await asyncio.gather(*(lock.unlock_async() for lock in locks))
        assert is_free(other, names[-1])

    run(work())


def test_a_cancelled_task_takes_its_request_back(space: Lockspace, other: Lockspace, name: str) -> None:
    async def work() -> None:
        async with other.lock_async(name):
            task = asyncio.create_task(space.lock_async(name)._acquire())
            await until_waiting(space, name, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_waiting(space, name, 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await space.lock_async(name)
            await until_waiting(space, name, 0)

    run(work())
    eventually_free(other, name)


def test_cancelled_at_any_moment_no_lock_is_left(space: Lockspace, other: Lockspace, name: str) -> None:
    """A task is cancelled before its request is sent, while it waits, when it has been granted, ..."""

    async def take(kept: list[Lock]) -> None:
        async with space.lock_async(name) as lock:
            kept.append(lock)
            await asyncio.sleep(0)

    async def work() -> None:
        for moment in range(200):
            kept: list[Lock] = []
            task = asyncio.create_task(take(kept))
            for _ in range(moment % 10):
                await asyncio.sleep(0)
            if moment % 3 == 0:
                await asyncio.sleep(0.0001 * (moment % 7))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert all(lock.released for lock in kept)
            async with asyncio.timeout(LIMIT), other.lock_async(name):
                pass

    run(work())
    eventually_free(other, name)


def test_granted_and_cancelled_before_the_task_knows_is_released(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    async def work() -> None:
        held = other.lock(name)
        task = asyncio.create_task(space.lock_async(name)._acquire())
        await until_waiting(space, name, 1)
        # From here on the loop does not turn, and the task does not hear of the grant.
        held.unlock()
        eventually(lambda: waiters(space, name) == 0, "the lock is granted")
        time.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work())
    eventually_free(other, name)


def test_a_cancelled_conversion_keeps_the_mode(space: Lockspace, other: Lockspace, name: str) -> None:
    async def work() -> None:
        async with other.lock_async(name, PR), space.lock_async(name, PR) as lock:
            task = asyncio.create_task(lock.convert_async(EX))
            await until_waiting(space, name, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_waiting(space, name, 0)
            assert (lock.mode, lock.lost) == (PR, False)

    run(work())
    assert is_free(other, name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_given_up_leaves_no_locks(space: Lockspace, other: Lockspace, name: str) -> None:
    async def take() -> None:
        async with space.lock_async(name):
            await asyncio.sleep(LIMIT)

    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(take()) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0.05))
    assert not is_free(other, name)
    for task in tasks:
        # It would complain that a pending task is destroyed, which is the test.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del loop, tasks, task
    gc.collect()
    eventually_free(other, name)


def test_two_loops_in_two_threads(space: Lockspace, name: str) -> None:
    counter = [0]

    async def work() -> None:
        for _ in range(100):
            async with space.lock_async(name):
                seen = counter[0]
                await asyncio.sleep(0)
                counter[0] = seen + 1

    threads = [threading.Thread(target=run, args=(work(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert counter == [200]


def test_callbacks_run_in_the_loop(space: Lockspace, other: Lockspace, name: str) -> None:
    async def work() -> None:
        tasks: list[asyncio.Task[None]] = []
        heard: list[Mode] = []

        def give_way(lock: Lock, mode: Mode) -> None:
            heard.append(mode)
            assert asyncio.get_running_loop() is loop
            tasks.append(loop.create_task(lock.unlock_async()))

        loop = asyncio.get_running_loop()
        for where, who in [(space, other), (other, space)]:
            lock = await where.lock_async(name, on_block=give_way)
            async with who.lock_async(name, PR):
                assert lock.released
        assert heard == [PR, PR]
        await asyncio.gather(*tasks)

    run(work())


def test_who_waits_when_the_lock_is_granted_is_heard_of(
    space: Lockspace, other: Lockspace, name: str
) -> None:
    """The notice comes with the grant, before the task has its lock."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        def give_way(lock: Lock, _: Mode) -> None:
            tasks.append(loop.create_task(lock.unlock_async()))

        first = await space.lock_async(name)
        queue = [
            asyncio.create_task(where.lock_async(name, on_block=give_way)._acquire())
            for where in [other, space] * 10
        ]
        await until_waiting(space, name, 20)
        await first.unlock_async()
        locks = await asyncio.gather(*queue)
        await asyncio.gather(*tasks)
        (last,) = [lock for lock in locks if not lock.released]
        await last.unlock_async()
        assert all(lock.released for lock in locks)

    run(work())


def test_the_session_ends_while_tasks_wait(own_daemon: Daemon, name: str) -> None:
    space = lockify.connect(own_daemon.socket).lockspace("default")

    async def work() -> None:
        async with space.lock_async(f"{name[:50]} kept") as kept:
            lock = await space.lock_async(name)
            tasks = [asyncio.create_task(space.lock_async(name)._acquire()) for _ in range(10)]
            await until_waiting(space, name, 10)
            own_daemon.kill()
            for task in tasks:
                with pytest.raises(lockify.Disconnected, match="connect again"):
                    await task
            assert lock.lost
            with pytest.raises(lockify.Disconnected):
                await lock.unlock_async()
            with pytest.raises(lockify.Disconnected):
                kept.check()
            # An error inside the block comes out, not that the lock could not be released.
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(work())
