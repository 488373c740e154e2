"""Wrong arguments are refused in words."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import lockify
from lockify import EX, Lockspace


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("",), ValueError, "1 to 64 bytes"),
        (("x" * 65,), ValueError, "1 to 64 bytes"),
        ((7,), TypeError, "str or bytes"),
        ((None,), TypeError, "str or bytes"),
        (("a", 5), TypeError, "is no mode"),
        (("a", "EX"), TypeError, "is no mode"),
    ],
)
def test_names_and_modes(
    space: Lockspace, arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        space.lock(*arguments)
    with pytest.raises(error, match=text):
        space.try_lock(*arguments)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e30])
def test_time_limits(space: Lockspace, timeout: float) -> None:
    with pytest.raises(ValueError, match="time limit of"):
        space.lock("a", timeout=timeout)
    with space.lock("a") as lock, pytest.raises(ValueError, match="time limit of"):
        lock.convert(EX, timeout=timeout)


def test_other_types(space: Lockspace) -> None:
    wrong: Any = "soon"
    with pytest.raises(TypeError):
        space.lock("a", timeout=wrong)
    with pytest.raises((TypeError, OverflowError)):
        space.lock("a", transaction=-1)
    with space.lock("a") as lock, pytest.raises(TypeError):
        lock.convert(lockify.PR, lvb=wrong)


def test_value_blocks_of_another_length(space: Lockspace) -> None:
    with space.lock("a") as lock:
        with pytest.raises(ValueError, match="32 bytes"):
            lock.convert(lockify.PR, lvb=b"short")
        with pytest.raises(ValueError, match="32 bytes"):
            lock.unlock(lvb=b"short")
        # It is still held, and can be released.
        lock.unlock(lvb=bytes(32))


def test_a_failed_call_leaves_nothing(space: Lockspace, name: str) -> None:
    with pytest.raises(ValueError):
        space.lock(name, timeout=-1)
    assert space.who(name).resources == ()


def test_sockets_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(lockify.NoDaemon, match="lockify serve"):
        lockify.connect(tmp_path / "nothing")
    with pytest.raises(ConnectionError):
        lockify.connect(str(tmp_path))
    wrong: Any = 7
    with pytest.raises(TypeError):
        lockify.connect(wrong)


def test_the_environment_names_the_socket(
    daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKIFY_SOCKET", str(tmp_path / "nothing"))
    with pytest.raises(lockify.NoDaemon, match="nothing"):
        lockify.connect()
    monkeypatch.setenv("LOCKIFY_SOCKET", str(daemon.socket))
    lockify.connect().close()


def test_nothing_is_pickled(session: lockify.Session, space: Lockspace) -> None:
    for thing in (session, space, space.lock("a")):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing)


def test_a_closed_session_says_so(daemon: Any) -> None:
    session = lockify.connect(daemon.socket)
    space = session.lockspace("default")
    lock = space.lock("a")
    session.close()
    session.close()
    with pytest.raises(lockify.Disconnected, match="it ended while the lock was held"):
        lock.check()
    for call in (lock.unlock, lambda: space.lock("b"), lambda: session.lockspace("default"), space.locks):
        with pytest.raises(lockify.Disconnected, match="this program closed it"):
            call()


def test_every_error_is_one(space: Lockspace) -> None:
    errors = [e for e in vars(lockify).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 16
    assert all(issubclass(e, lockify.LockifyError) and e.__doc__ for e in errors)
