"""How tasks of asyncio wait for operations.

The client has one thread for all operations of a session. It tells those that have ended to an
eventfd, which the event loop watches; nothing runs per lock but the task that waits.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref

from . import _lockify


class _Turns:
    """Wakes the tasks of one event loop."""

    def __init__(self) -> None:
        self._wakeups = _lockify.Wakeups()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._ids = itertools.count()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._wakeups.fileno(), self._turn)

    def _turn(self) -> None:
        for number in self._wakeups.take():
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(None)

    async def outcome(self, operation: _lockify.Operation) -> _lockify.Lock | None:
        loop = asyncio.get_running_loop()
        number = next(self._ids)
        try:
            while not operation.poll(self._wakeups, number):
                future = loop.create_future()
                self._waiting[number] = future
                await future
            return operation.result()
        finally:
            self._waiting.pop(number, None)
            # A task can be cancelled when its operation has ended, too: what came of it is given up.
            operation.drop()


# The loop keeps its turns, because it calls them, and nothing here keeps a loop.
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Turns]] = (
    weakref.WeakKeyDictionary()
)


def _of_this_loop() -> _Turns:
    loop = asyncio.get_running_loop()
    known = _turns.get(loop)
    turns = known() if known is not None else None
    if turns is None:
        turns = _Turns()
        turns.watch(loop)
        _turns[loop] = weakref.ref(turns)
    return turns


async def outcome(operation: _lockify.Operation) -> _lockify.Lock | None:
    """Waits for an operation's end; cancelled, takes it back. The lock, if it made one."""
    return await _of_this_loop().outcome(operation)
