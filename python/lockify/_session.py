"""Sessions and lockspaces."""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from . import _lock, _lockify, _modes, _views
from ._lock import Acquisition, Lock, OnBlock, Wish
from ._modes import EX, Mode


@dataclass(frozen=True, slots=True)
class LostLock:
    """A lock that is no longer held."""

    lockspace: str
    name: bytes
    mode: Mode
    """The mode in which it was held."""
    why: str
    """Why, and what to do."""


OnLost = Callable[[LostLock], object]


def connect(socket: str | os.PathLike[str] | None = None, *, local: bool = False) -> Session:
    """Connects to the daemon on `socket`: a path, or `@NAME` in the abstract namespace.

    Without one, to the daemon that `lockify run` uses: that of LOCKIFY_SOCKET, or the cluster's on a machine
    that belongs to one, or this user's own, which is started if it does not run. With `local`, to this user's
    own in any case.
    """
    if socket is not None and local:
        raise ValueError("give a socket or local=True, not both")
    return Session(_lockify.connect(socket, local))


class Session:
    """A session with a daemon, made by `connect`. Its end is the end of its locks.

    Any thread may use it. It does not survive a fork: a child connects for itself.
    """

    __slots__ = ("_native", "_callbacks", "_numbers", "_closed", "__weakref__")

    def __init__(self, native: _lockify.Session) -> None:
        self._native = native
        # Here and not in the extension module, so that the garbage collector sees what they refer to.
        self._callbacks: dict[int, OnLost] = {}
        self._numbers = itertools.count()
        self._closed = False
        _sessions.add(self)

    def lockspace(self, name: str) -> Lockspace:
        """A lockspace that the node is a member of: one of its configuration, or made at run time."""
        return Lockspace(self, self._native.lockspace(name), name)

    def create_lockspace(self, name: str, *, exclusive: bool = False, mode: int | None = None) -> Lockspace:
        """Makes a lockspace, or uses the one of that name unless `exclusive`; waits until it runs.

        For root and the daemon's user. It stays until it has been released as often as it was made. A new
        one belongs to this process's user and group, with these permission bits, of 0o666, for users of
        this node: 4 is seeing locks, 6 is taking them; 0o600 if none are given.
        """
        return Lockspace(self, self._native.create_lockspace(name, exclusive, mode), name)

    def release_lockspace(self, name: str, *, force: bool = False) -> None:
        """Undoes `create_lockspace`. With `force`, locks that this node's programs have in it are lost."""
        self._native.release_lockspace(name, force)

    @property
    def closed(self) -> bool:
        """True if this program has ended it."""
        return self._closed

    def close(self) -> None:
        """Ends the session: its locks are released, its calls raise Disconnected from now on."""
        self._closed = True
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_lost(self, callback: OnLost) -> int:
        number = next(self._numbers)
        self._callbacks[number] = callback
        return number

    def _lost(self, number: int, lost: LostLock) -> None:
        # Locks of a session that its program ends are not lost.
        callback = None if self._closed else self._callbacks.get(number)
        if callback is not None:
            callback(lost)


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    """In a child: gives up inherited sockets, which would hide the parent's death from the daemon."""
    for session in list(_sessions):
        session._native.forked()


os.register_at_fork(after_in_child=_forked)
atexit.register(_lockify.ending)


class Lockspace:
    """A lockspace: names in different ones have nothing to do with each other. See `Session.lockspace`."""

    __slots__ = ("_session", "_native", "_name")

    def __init__(self, session: Session, native: _lockify.Lockspace, name: str) -> None:
        self._session = session
        self._native = native
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def session(self) -> Session:
        """The session that opened it."""
        return self._session

    @property
    def lvb_len(self) -> int:
        """Length of its value blocks, in bytes."""
        return self._native.lvb_len

    def lock(
        self,
        name: str | bytes,
        mode: Mode = EX,
        *,
        timeout: float | None = None,
        notify: bool = False,
        read_lvb: bool = False,
        transaction: int = 0,
        on_block: OnBlock | None = None,
    ) -> Lock:
        """Locks `name`, 1 to 64 bytes (text: UTF-8), and waits for that; use it in a `with` statement.

        `timeout`: how long to wait, in seconds; then TimedOut.
        `notify`: the caller is creating the locked object, and nobody else can know the name: its
        mastership is claimed without waiting for the network.
        `read_lvb`: read the value block into `Lock.lvb`.
        `transaction`: for the search for deadlocks, which takes a session for one transaction;
        threads that lock independently of each other give numbers of their own.
        `on_block`: called with the lock and the mode wanted when it is in somebody's way, on a
        thread of the package.

        Other threads run meanwhile. Ctrl-C interrupts the wait and takes the request back.
        """
        wish = _wish(mode, True, timeout, notify, read_lvb, transaction)
        return _lock.lock(self, self._native, _bytes(name), wish, on_block)

    def try_lock(
        self,
        name: str | bytes,
        mode: Mode = EX,
        *,
        notify: bool = False,
        read_lvb: bool = False,
        transaction: int = 0,
        on_block: OnBlock | None = None,
    ) -> Lock:
        """As `lock`, but raises WouldBlock instead of waiting for other locks."""
        wish = _wish(mode, False, None, notify, read_lvb, transaction)
        return _lock.lock(self, self._native, _bytes(name), wish, on_block)

    def lock_async(
        self,
        name: str | bytes,
        mode: Mode = EX,
        *,
        timeout: float | None = None,
        notify: bool = False,
        read_lvb: bool = False,
        transaction: int = 0,
        on_block: OnBlock | None = None,
    ) -> Acquisition:
        """As `lock`, for asyncio: `async with space.lock_async(...) as lock:`, or `lock = await ...`.

        A task that is cancelled while it waits takes its request back; a lock that is granted all
        the same is released. `on_block` is called in the event loop.
        """
        wish = _wish(mode, True, timeout, notify, read_lvb, transaction)
        return Acquisition(self, self._native, _bytes(name), wish, on_block)

    def try_lock_async(
        self,
        name: str | bytes,
        mode: Mode = EX,
        *,
        notify: bool = False,
        read_lvb: bool = False,
        transaction: int = 0,
        on_block: OnBlock | None = None,
    ) -> Acquisition:
        """As `try_lock`, for asyncio: what is waited for is the answer only."""
        wish = _wish(mode, False, None, notify, read_lvb, transaction)
        return Acquisition(self, self._native, _bytes(name), wish, on_block)

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback`, on a thread of the package, for each lock of the session here that is lost."""
        session = weakref.ref(self._session)
        number = self._session._on_lost(callback)
        lockspace = self._name

        def relay(name: bytes, mode: int, why: str) -> None:
            living = session()
            if living is not None:
                living._lost(number, LostLock(lockspace, name, Mode(mode), why))

        self._native.on_lost(relay)

    def locks(self) -> _views.View:
        """Every name that has locks, on all nodes."""
        return _views.view(self._native.locks())

    def who(self, name: str | bytes) -> _views.View:
        """The holders of `name`, and who waits for it."""
        return _views.view(self._native.who(_bytes(name)))

    def __repr__(self) -> str:
        return f"<lockify.Lockspace {self._name!r}>"


def _bytes(name: str | bytes) -> bytes:
    if isinstance(name, str):
        return name.encode()
    if isinstance(name, bytes):
        return name
    raise TypeError(f"a lock's name is str or bytes, not {type(name).__name__}")


def _wish(
    mode: Mode, wait: bool, timeout: float | None, notify: bool, read_lvb: bool, transaction: int
) -> Wish:
    return Wish(_modes.number(mode), wait, timeout, notify, read_lvb, transaction)
