"""A client's session with its daemon, by docs/protocol.md and the pieces of docs/session.py: one lock at a time."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .modes import MODES

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs"))

from session import ANSWER, BAST, COMPLETED, GREETING, LOCK, OPEN, OPENED, QUERY, UNLOCK, VERSION, Reader, number, text  # noqa: E402

CONVERT, CANCEL = 1, 3
REFUSED, LOST, HALTED, GOODBYE = 1, 4, 7, 9
GRANTED, UNLOCKED, AGAIN, CANCELED, DEADLOCK, TIMED_OUT, REFUSED_BY_CORE = range(7)
NOQUEUE = 1
# Seconds. A daemon that is stopped answers when it goes on.
PATIENCE = 120.0


class Ended(Exception):
    """The session is over, and with it all that it held."""


class Done(NamedTuple):
    """How an operation ended."""

    status: int
    lock: int
    mode: str | None
    token: int


class Session:
    def __init__(self, path: str, lockspace: str = "default") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.selector = selectors.DefaultSelector()
        self.received = bytearray()
        self.done: dict[int, Done] = {}
        self.lost: set[int] = set()
        self.wanted: set[int] = set()
        self.opened: tuple[int, int] | None = None
        self.life = self.halts = self.tag = 0
        try:
            self._introduce(path, lockspace)
        except BaseException:
            self.close()
            raise

    def _introduce(self, path: str, lockspace: str) -> None:
        self.socket.settimeout(PATIENCE)
        self.socket.connect(path)
        self.socket.sendall(GREETING.pack(b"lockify\0", VERSION, 0, os.getpid()))
        greeting = b""
        while len(greeting) < GREETING.size:
            more = self.socket.recv(GREETING.size - len(greeting))
            if not more:
                raise Ended("no greeting")
            greeting += more
        magic, version, shards, _ = GREETING.unpack(greeting)
        if (magic, version, shards) != (b"lockify\0", VERSION, 1):
            raise Ended(f"not a daemon for this client: {greeting!r}")
        self.selector.register(self.socket, selectors.EVENT_READ)
        self.send(number(QUERY) + number(1) + number(OPEN) + text(lockspace.encode()))
        limit = time.monotonic() + PATIENCE
        while self.opened is None:
            self._pump_until(limit)
        self.space, self.life = self.opened

    def close(self) -> None:
        self.selector.close()
        self.socket.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(content)) + content)

    def pump(self, seconds: float) -> bool:
        """Handles what has come, or comes within this time; false if that was nothing."""
        if not self.selector.select(seconds):
            return False
        more = self.socket.recv(1 << 18)
        if not more:
            raise Ended("closed by the daemon")
        self.received += more
        at = 0
        while len(self.received) - at >= 4:
            (length,) = struct.unpack_from("<I", self.received, at)
            if len(self.received) - at - 4 < length:
                break
            self._event(Reader(bytes(self.received[at + 4 : at + 4 + length])))
            at += 4 + length
        del self.received[:at]
        return True

    def _pump_until(self, limit: float) -> None:
        left = limit - time.monotonic()
        if left <= 0 or not self.pump(left):
            raise Ended("no answer in time")

    def _event(self, event: Reader) -> None:
        match event.number():
            case 0:  # Accepted
                tag = event.number()
                self.accepted = (tag, event.number())
            case 1:  # Refused
                self.done[event.number()] = Done(REFUSED_BY_CORE, 0, None, 0)
            case kind if kind == COMPLETED:
                self._completed(event)
            case kind if kind == BAST:
                self.wanted.add(event.number())
            case kind if kind == LOST:
                self.lost.add(event.number())
            case kind if kind == ANSWER:
                self._answer(event)
            case kind if kind == HALTED:
                space, life = event.number(), event.number()
                if self.opened is None or space == self.opened[0]:
                    self.life, self.halts = life, self.halts + 1
            case kind if kind == GOODBYE:
                raise Ended("the daemon said goodbye")

    def _completed(self, event: Reader) -> None:
        _space, tag, lock, status = (event.number() for _ in range(4))
        if status == REFUSED_BY_CORE and event.number() == 0:
            event.number()  # the reason of Invalid
        mode = event.option()
        event.byte()  # flags of the status block
        if event.byte():
            for _ in range(event.number()):
                event.byte()
        self.done[tag] = Done(status, lock, None if mode is None else MODES[mode], event.number())

    def _answer(self, event: Reader) -> None:
        event.number()  # the query's id
        if event.number() == OPENED and self.opened is None:
            self.opened = event.number(), event.number()
        elif self.opened is None:
            raise Ended(f"the lockspace is refused: {event.content.hex()}")

    # Operations. They return None when the lockspace has halted: then nothing is held, and they do not end.

    def lock(
        self, name: str, mode: str, flags: int = 0, timeout: float | None = None, give_up: float = PATIENCE
    ) -> Done | None:
        """Cancels what has waited for `give_up` seconds."""
        self.tag += 1
        self.forget()
        self.send(self.request(self.tag, name, mode, flags, timeout))
        return self._wait(give_up)

    def request(self, tag: int, name: str, mode: str, flags: int = 0, timeout: float | None = None) -> bytes:
        """The frame's content of a request for a lock."""
        request = number(LOCK) + number(self.space) + number(tag) + text(name.encode()) + number(MODES.index(mode))
        # No value block; blocking notices.
        return request + number(flags) + b"\0\1" + time_limit(timeout) + number(0)

    def convert(self, lock: int, mode: str, flags: int = 0, timeout: float | None = None) -> Done | None:
        self.tag += 1
        request = number(CONVERT) + self._reference(lock) + number(self.tag) + number(MODES.index(mode))
        self.send(request + number(flags) + b"\0" + time_limit(timeout))
        return self._wait()

    def unlock(self, lock: int) -> Done | None:
        self.tag += 1
        self.send(number(UNLOCK) + self._reference(lock) + number(self.tag) + number(0) + b"\0")
        return self._wait()

    def _reference(self, lock: int) -> bytes:
        return number(self.space) + number(self.life) + number(lock)

    def forget(self) -> None:
        """Nothing is held: what was said of earlier locks does not count."""
        self.lost.clear()
        self.wanted.clear()
        self.done.clear()
        self.accepted = (0, 0)

    def _wait(self, give_up: float = PATIENCE) -> Done | None:
        halts, limit = self.halts, time.monotonic() + PATIENCE
        cancel_at = time.monotonic() + give_up
        while self.halts == halts:
            if self.tag in self.done:
                return self.done.pop(self.tag)
            now = time.monotonic()
            if now < cancel_at:
                self.pump(min(cancel_at, limit) - now)
                continue
            if self.accepted[0] == self.tag:
                self.send(number(CANCEL) + self._reference(self.accepted[1]))
                self.accepted = (0, 0)
            self._pump_until(limit)
        return None


def time_limit(seconds: float | None) -> bytes:
    return b"\0" if seconds is None else b"\1" + number(int(seconds * 1e9))
