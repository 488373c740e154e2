"""Several processes, forks, signals, and the end of the program."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from conftest import LIMIT, Daemon, eventually, eventually_free, is_free, waiters

import lockify
from lockify import Lockspace


def start(socket: Path, text: str, *words: str) -> subprocess.Popen[str]:
    """A Python program with a `space` of its own; `say(WORD)` prints at once."""
    head = f"""
        import os, signal, sys, threading, time, lockify
        # Started in the background of a shell, these tests inherit that it is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session = lockify.connect({str(socket)!r})
        space = session.lockspace("default")
        def say(what):
            print(what, flush=True)
    """
    program = textwrap.dedent(head) + textwrap.dedent(text)
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes_contend(daemon: Daemon, tmp_path: Path, name: str) -> None:
    shared = tmp_path / "counter"
    shared.write_text("0 0")
    work = """
        path, name = sys.argv[1:]
        for _ in range(300):
            with space.lock(name) as lock:
                with open(path) as file:
                    count, token = map(int, file.read().split())
                assert lock.token > token
                with open(path, "w") as file:
                    file.write(f"{count + 1} {lock.token}")
    """
    processes = [start(daemon.socket, work, str(shared), name) for _ in range(2)]
    for process in processes:
        assert ended(process) == (0, "", "")
    assert shared.read_text().split()[0] == "600"


def test_the_locks_of_a_process_end_with_it(daemon: Daemon, space: Lockspace, name: str) -> None:
    process = start(daemon.socket, "lock = space.lock(sys.argv[1]); say('held'); time.sleep(600)", name)
    assert heard(process) == "held"
    assert not is_free(space, name)
    process.kill()
    ended(process)
    eventually_free(space, name)


def test_a_child_is_refused_and_the_parent_keeps_its_locks(
    daemon: Daemon, space: Lockspace, name: str
) -> None:
    program = """
        import gc
        name = sys.argv[1]
        lock = space.lock(name)
        child = os.fork()
        if child == 0:
            calls = [
                lock.check, lock.unlock, lambda: lock.token, lambda: lock.convert(lockify.PR), lock.__enter__,
                lambda: space.lock("b"), lambda: space.lock_async("b")._acquire().send(None), space.locks,
                lambda: session.lockspace("default"), lambda: space.on_lost(print),
            ]
            for call in calls:
                try:
                    call()
                except lockify.Forked as e:
                    assert "connect in the child" in str(e), e
                else:
                    say("not refused")
            session.close()
            del calls, call, lock, space
            session = None
            gc.collect()
            with lockify.connect(sys.argv[2]) as own:
                try:
                    own.lockspace("default").try_lock(name)
                except lockify.WouldBlock:
                    say("held by the parent")
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        lock.check()
        lock.unlock()
        with space.lock(name):
            say("parent goes on")
    """
    process = start(daemon.socket, program, name, str(daemon.socket))
    assert ended(process) == (0, "held by the parent\nparent goes on\n", "")
    eventually_free(space, name)


def test_a_child_does_not_keep_its_dead_parents_locks(daemon: Daemon, space: Lockspace, name: str) -> None:
    program = """
        lock = space.lock(sys.argv[1])
        if os.fork() == 0:
            say("child")
            sys.stdin.read()
            os._exit(0)
        time.sleep(600)
    """
    process = start(daemon.socket, program, name)
    assert heard(process) == "child"
    assert not is_free(space, name)
    process.kill()
    process.wait(LIMIT)
    eventually_free(space, name)
    process.communicate()  # the child's end


def test_multiprocessing_with_fork(daemon: Daemon, name: str) -> None:
    program = """
        import multiprocessing
        def work(name):
            with lockify.connect(sys.argv[2]) as own, own.lockspace("default").lock(name, timeout=60):
                return os.getpid()
        with space.lock("of the parent"), multiprocessing.get_context("fork").Pool(3) as pool:
            assert os.getpid() not in pool.map(work, [sys.argv[1]] * 30)
        say("done")
    """
    assert ended(start(daemon.socket, program, name, str(daemon.socket))) == (0, "done\n", "")


@pytest.mark.parametrize("call", ["space.lock(name)", "lock.convert(lockify.EX)", "asyncio.run(take())"])
def test_ctrl_c_takes_the_request_back(daemon: Daemon, space: Lockspace, name: str, call: str) -> None:
    program = f"""
        import asyncio
        name = sys.argv[1]
        async def take():
            async with space.lock_async(name):
                pass
        lock = space.lock(name, lockify.PR) if "convert" in {call!r} else None
        say("ready")
        try:
            {call}
        except KeyboardInterrupt:
            say("interrupted")
        if lock:
            assert lock.mode == lockify.PR
            lock.unlock()
        sys.stdin.read()
        with space.lock(name):
            say("goes on")
    """
    held = space.lock(name, lockify.PR)
    process = start(daemon.socket, program, name)
    assert heard(process) == "ready"
    eventually(lambda: waiters(space, name) == 1, "it waits")
    process.send_signal(signal.SIGINT)
    assert heard(process) == "interrupted"
    eventually(lambda: waiters(space, name) == 0, "the request is taken back")
    held.unlock()
    assert ended(process) == (0, "goes on\n", "")


def switches(process: subprocess.Popen[str]) -> int:
    """How often the threads of a process have left the processor."""
    count = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                count += int(line.split()[1])
    return count


@pytest.mark.parametrize(
    ("call", "count"), [("space.lock(name)", 1), ("both()", 2), ("asyncio.run(take())", 1), ("lock.convert(lockify.EX)", 1)]
)
def test_who_waits_sleeps(daemon: Daemon, space: Lockspace, name: str, call: str, count: int) -> None:
    program = f"""
        import asyncio
        name = sys.argv[1]
        async def take():
            await space.lock_async(name)
        def both():
            # One of the two waits while the other one reads the session.
            thread = threading.Thread(target=lambda: space.lock(name).unlock())
            thread.start()
            space.lock(name).unlock()
            thread.join()
        lock = space.lock("of " + name, lockify.PR) if "convert" in {call!r} else None
        say("ready")
        {call}
        say("done")
    """
    contended = f"of {name}" if "convert" in call else name
    held = space.lock(contended, lockify.PR)
    if "convert" not in call:
        held.unlock()
        held = space.lock(contended)
    process = start(daemon.socket, program, name)
    assert heard(process) == "ready"
    eventually(lambda: waiters(space, contended) == count, "all threads wait")
    time.sleep(0.3)  # until nobody is on the way to sleep any more
    before = switches(process)
    time.sleep(2)
    woken = switches(process) - before
    assert woken <= 8, f"it woke {woken} times"
    held.unlock()
    assert heard(process) == "done"
    assert ended(process)[0] == 0


def test_handlers_run_while_a_call_waits_and_numbers_are_passed_on(daemon: Daemon, space: Lockspace, name: str) -> None:
    program = """
        ears, mouth = os.pipe()
        os.set_blocking(ears, False)
        os.set_blocking(mouth, False)
        signal.set_wakeup_fd(mouth)
        signal.signal(signal.SIGUSR1, lambda number, frame: say("handled"))
        say("ready")
        space.lock(sys.argv[1])
        say(list(os.read(ears, 10)) == [signal.SIGUSR1] * 2)
        say(signal.set_wakeup_fd(-1) == mouth)
    """
    with space.lock(name):
        process = start(daemon.socket, program, name)
        assert heard(process) == "ready"
        eventually(lambda: waiters(space, name) == 1, "the process waits")
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
            assert heard(process) == "handled"
        assert waiters(space, name) == 1
    assert [heard(process), heard(process)] == ["True", "True"]
    assert ended(process)[0] == 0


def test_interrupted_at_any_moment_leaves_no_lock(daemon: Daemon, space: Lockspace, name: str) -> None:
    """A signal handler raises, as that of Ctrl-C does: in the call, before it, after it."""
    program = """
        name, rounds = sys.argv[1], 0
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for moment in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-5 * (moment % 100))
                while signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0):
                    with space.lock(name, timeout=60):
                        rounds += 1
                # Its handler runs meanwhile at the latest.
                time.sleep(2)
                say("the signal was swallowed")
                break
            except KeyboardInterrupt:
                pass
        with space.lock(name, timeout=60):
            say("free")
        say("worked" if rounds > 100 else rounds)
    """
    process = start(daemon.socket, program, name)
    assert ended(process) == (0, "free\nworked\n", "")
    eventually_free(space, name)


def test_a_signal_handler_may_lock_while_its_thread_waits(
    daemon: Daemon, space: Lockspace, name: str
) -> None:
    program = """
        name = sys.argv[1]
        def handler(*_):
            with space.lock(f"{name[:50]} other"):
                say("handled")
        signal.signal(signal.SIGUSR1, handler)
        with space.lock(name):
            say("granted")
    """
    with space.lock(name):
        process = start(daemon.socket, program, name)
        eventually(lambda: waiters(space, name) == 1, "it waits")
        process.send_signal(signal.SIGUSR1)
        assert heard(process) == "handled"
    assert ended(process) == (0, "granted\n", "")


def test_ctrl_c_reaches_a_main_thread_among_others_that_wait(
    daemon: Daemon, space: Lockspace, name: str
) -> None:
    program = """
        name = sys.argv[1]
        threads = [threading.Thread(target=lambda: space.lock(name).unlock()) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            space.lock(name)
        except KeyboardInterrupt:
            say("interrupted")
        for thread in threads:
            thread.join()
    """
    with space.lock(name):
        process = start(daemon.socket, program, name)
        eventually(lambda: waiters(space, name) == 4, "they wait")
        process.send_signal(signal.SIGINT)
        assert heard(process) == "interrupted"
        eventually(lambda: waiters(space, name) == 3, "the request is taken back")
    assert ended(process) == (0, "", "")


def test_the_program_ends_while_threads_wait_and_callbacks_run(
    daemon: Daemon, space: Lockspace, name: str
) -> None:
    program = """
        name = sys.argv[1]
        space.on_lost(print)
        for _ in range(3):
            threading.Thread(target=lambda: space.lock(name), daemon=True).start()
        def heard(lock, mode):
            time.sleep(0.001)
        kept = [space.lock(f"{name[:50]} {i}", on_block=heard) for i in range(50)]
        say("ready")
        sys.stdin.readline()
        say("ending")
    """
    with space.lock(name):
        process = start(daemon.socket, program, name)
        assert heard(process) == "ready"
        eventually(lambda: waiters(space, name) == 3, "they wait")
        assert process.stdin is not None
        # Notices keep coming while the interpreter ends.
        takers = [
            threading.Thread(target=lambda i=i: space.lock(f"{name[:50]} {i}", timeout=LIMIT).unlock())
            for i in range(50)
        ]
        for taker in takers:
            taker.start()
        code, out, err = ended(process) if process.stdin.write("\n") else (1, "", "")
        assert (code, out) == (0, "ending\n"), err
        for taker in takers:
            taker.join(LIMIT)
            assert not taker.is_alive()


def test_os_fork_in_a_thread_that_does_not_lock(daemon: Daemon, space: Lockspace, name: str) -> None:
    """Others lock meanwhile: whatever mutexes they have at the fork, the child does not wait for them."""
    program = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
        name, stop = sys.argv[1], threading.Event()
        def work(i):
            while not stop.is_set():
                space.lock(f"{name[:50]} {i}").unlock()
                space.lock(f"{name[:50]} {i}")
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    space.lock(name)
                except lockify.Forked:
                    del space, session
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        say("done")
    """
    assert ended(start(daemon.socket, program, name)) == (0, "done\n", "")
