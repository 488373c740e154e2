"""Locks, their requests and their releases."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import _aio, _lockify, _modes
from ._errors import Disconnected, LockifyError, Released
from ._modes import Mode

if TYPE_CHECKING:
    from ._session import Lockspace, Session

OnBlock = Callable[["Lock", Mode], object]


@dataclass(frozen=True, slots=True)
class Wish:
    """A request, as the extension module reads it."""

    mode: int
    wait: bool
    timeout: float | None
    notify: bool
    read_lvb: bool
    transaction: int
    relay: Callable[[int], None] | None = None


class Lock:
    """A lock that is held; made by `Lockspace.lock` and its like.

    As a context manager it is released at the end. A lock that is dropped without having been
    released is released by the garbage collector, soon and without waiting.
    """

    __slots__ = ("_native", "_space", "_name", "_on_block", "_last_token", "__weakref__")

    _native: _lockify.Lock

    def __init__(self, space: Lockspace, name: bytes, on_block: OnBlock | None) -> None:
        # Keeps the session. The lock has its callback, and not the extension module, so that the
        # garbage collector can see a callback that refers to its lock.
        self._space = space
        self._name = name
        self._on_block = on_block
        self._last_token: int | None = None

    @property
    def name(self) -> bytes:
        """The name that is locked."""
        return self._name

    @property
    def space(self) -> Lockspace:
        """The lockspace that it is in."""
        return self._space

    @property
    def mode(self) -> Mode:
        """The mode held."""
        return Mode(self._native.mode)

    @property
    def token(self) -> int:
        """The fencing token of PW and EX, else 0: larger than that of every earlier such grant of this name.

        Hand it to what the lock protects (docs/fencing-tokens.md). While `provisional`, it may
        still be replaced by a larger one. It is known after the release, too.
        """
        return self._native.token if self._last_token is None else self._last_token

    @property
    def provisional(self) -> bool:
        """True if it was granted on a claim (`notify`) that has not been confirmed yet."""
        return self._native.provisional

    @property
    def lvb(self) -> bytes | None:
        """The value block, if the last operation read it and it has ever been written."""
        return self._native.lvb

    @property
    def lvb_valid(self) -> bool:
        """False if the value block is not to be trusted: a holder died before it wrote it."""
        return self._native.lvb_valid

    @property
    def blocked(self) -> Mode | None:
        """The mode that somebody has waited for since the last grant; known only with `on_block`."""
        mode = self._native.blocked
        return None if mode is None else Mode(mode)

    @property
    def released(self) -> bool:
        """True if this program has released it."""
        return self._last_token is not None

    @property
    def lost(self) -> bool:
        """True if it is no longer held, though not released: the protected data may have changed."""
        try:
            self.check()
        except Released:
            return False
        except LockifyError:
            return True
        return False

    def check(self) -> None:
        """Raises what says why if the lock is not held: Lost, Disconnected, Released, Forked."""
        self._native.check()

    def convert(self, mode: Mode, *, timeout: float | None = None, lvb: bytes | None = None) -> None:
        """Converts the lock, and waits for that; if it fails, the present mode is kept.

        With `lvb`, transfers the value block: from PW or EX to a lower mode (or the same) it is
        written, else it is read into `self.lvb`. It has `Lockspace.lvb_len` bytes.
        """
        self._native.convert(_modes.number(mode), True, timeout, self._block(lvb))

    def try_convert(self, mode: Mode, *, lvb: bytes | None = None) -> None:
        """Converts the lock if that needs no waiting; else WouldBlock."""
        self._native.convert(_modes.number(mode), False, None, self._block(lvb))

    async def convert_async(
        self, mode: Mode, *, timeout: float | None = None, lvb: bytes | None = None
    ) -> None:
        """As `convert`. A cancelled task cancels the conversion; `mode` then tells what came of it."""
        await _aio.outcome(self._native.begin_convert(_modes.number(mode), True, timeout, self._block(lvb)))

    def unlock(self, *, lvb: bytes | None = None, invalidate_lvb: bool = False) -> None:
        """Releases the lock and waits until that is done.

        From PW or EX, `lvb` writes the value block, and `invalidate_lvb` says that it is not to
        be trusted. Raises Lost or Disconnected if the lock had been lost before.
        """
        block = self._block(lvb)
        with _session_may_end(self._space.session, block):
            self._let_go()
            self._native.unlock(block, invalidate_lvb)

    async def unlock_async(self, *, lvb: bytes | None = None, invalidate_lvb: bool = False) -> None:
        """As `unlock`. A task that is cancelled meanwhile does not take the release back."""
        block = self._block(lvb)
        with _session_may_end(self._space.session, block):
            self._let_go()
            await _aio.outcome(self._native.begin_unlock(block, invalidate_lvb))

    def _block(self, lvb: bytes | None) -> bytes | None:
        if lvb is None:
            return None
        if not isinstance(lvb, bytes):
            raise TypeError(f"a value block is bytes, not {type(lvb).__name__}")
        if len(lvb) != self._space.lvb_len:
            raise ValueError(
                f"a value block of this lockspace has {self._space.lvb_len} bytes, not {len(lvb)}"
            )
        return lvb

    def _let_go(self) -> None:
        if self._last_token is not None:
            raise Released("the lock was released already: lock again")
        self._last_token = self._native.token

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        try:
            self.unlock()
        except Released:
            pass  # just now, by its callback
        except LockifyError:
            # An error inside the block counts more.
            if kind is None:
                raise

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else self.mode.name
        return f"<lockify.Lock {self._name!r} {state}>"

    def _call_back(self, mode: Mode) -> None:
        if self._on_block is not None and not self.released:
            self._on_block(self, mode)


@contextmanager
def _session_may_end(session: Session, block: bytes | None) -> Iterator[None]:
    """While a lock is being released: a session that its program ends meanwhile releases it as well."""
    ended_before = session.closed
    try:
        yield
    except Disconnected:
        if ended_before or block is not None or not session.closed:
            raise


def lock(
    space: Lockspace, native: _lockify.Lockspace, name: bytes, wish: Wish, on_block: OnBlock | None
) -> Lock:
    """Waits for a lock."""
    made = Lock(space, name, on_block)
    if on_block is None:
        made._native = native.lock(name, wish)
        return made
    weak = weakref.ref(made)
    ready = threading.Event()

    def relay(mode: int) -> None:
        # A lock can block somebody from its grant on, which is before its program has it.
        ready.wait()
        blocking = weak()
        if blocking is not None:
            blocking._call_back(Mode(mode))

    try:
        made._native = native.lock(name, replace(wish, relay=relay))
    except BaseException:
        made._last_token = 0
        raise
    finally:
        ready.set()
    return made


class Acquisition:
    """A lock to be waited for: `async with` it, which releases it at the end, or `await` it."""

    __slots__ = ("_space", "_native", "_name", "_wish", "_on_block", "_lock")

    def __init__(
        self, space: Lockspace, native: _lockify.Lockspace, name: bytes, wish: Wish, on_block: OnBlock | None
    ) -> None:
        self._space = space
        self._native = native
        self._name = name
        self._wish = wish
        self._on_block = on_block
        self._lock: Lock | None = None

    def __await__(self) -> Generator[object, None, Lock]:
        return self._acquire().__await__()

    async def __aenter__(self) -> Lock:
        self._lock = await self._acquire()
        return self._lock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock, self._lock = self._lock, None
        if lock is None or lock.released:
            return
        try:
            await lock.unlock_async()
        except Released:
            pass  # just now, by its callback
        except LockifyError:
            # An error inside the block counts more.
            if kind is None:
                raise

    async def _acquire(self) -> Lock:
        made = Lock(self._space, self._name, self._on_block)
        notices = _Notices(made) if self._on_block is not None else None
        wish = self._wish if notices is None else replace(self._wish, relay=notices.relay)
        native = await _aio.outcome(self._native.begin_lock(self._name, wish))
        assert native is not None  # a request makes a lock
        made._native = native
        if notices is not None:
            notices.open()
        return made


class _Notices:
    """Hands blocking notices to a lock's callback, in the event loop and when its program has it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = weakref.ref(lock)
        self._loop = weakref.ref(asyncio.get_running_loop())
        self._ready = False
        self._early: int | None = None

    def relay(self, mode: int) -> None:
        """Called by the client's thread for callbacks."""
        loop = self._loop()
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._deliver, mode)
        except RuntimeError:
            # The loop is closed, and nobody left to be asked.
            pass

    def _deliver(self, mode: int) -> None:
        lock = self._lock()
        if lock is None:
            return
        if self._ready:
            lock._call_back(Mode(mode))
        else:
            self._early = mode

    def open(self) -> None:
        """The lock is granted, and its task about to have it."""
        self._ready = True
        if self._early is not None:
            asyncio.get_running_loop().call_soon(self._deliver, self._early)
