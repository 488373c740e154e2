#!/usr/bin/env python3
"""A client of Lockify's daemon in another language, written from docs/protocol.md.

    session.py SOCKET LOCKSPACE NAME [MODE]

takes the lock, prints its fencing token, keeps it until standard input ends or somebody else wants
it, and gives it up. One shard, no value blocks, no timeouts: an example, not a library.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
from collections.abc import Iterator

VERSION = 3  # daemons that could speak a newer one speak this, too (docs/compatibility.md)
GREETING = struct.Struct("<8sHHI")
MODES = ["NL", "CR", "CW", "PR", "PW", "EX"]
LOCK, UNLOCK, QUERY = 0, 2, 5
OPEN = 0
COMPLETED, BAST, ANSWER = 2, 3, 6
OPENED = 0
GRANTED, UNLOCKED = 0, 1


def number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


class Reader:
    """The values in a frame."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def option(self) -> int | None:
        return self.number() if self.byte() else None


class Session:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.received = b""
        self.socket.sendall(GREETING.pack(b"lockify\0", VERSION, 0, os.getpid()))
        magic, version, shards, _ = GREETING.unpack(self.take(GREETING.size))
        if (magic, version) != (b"lockify\0", VERSION):
            raise SystemExit(f"the daemon speaks version {version}, this client {VERSION}")
        if shards != 1:
            raise SystemExit(f"the daemon has {shards} shards, and this example knows one")

    def take(self, count: int) -> bytes:
        while len(self.received) < count:
            more = self.socket.recv(65536)
            if not more:
                raise SystemExit("the daemon closed the session")
            self.received += more
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    def send(self, content: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(content)) + content)

    def events(self) -> Iterator[tuple[int, Reader]]:
        """Waits for events, for ever."""
        while True:
            (length,) = struct.unpack("<I", self.take(4))
            reader = Reader(self.take(length))
            yield reader.number(), reader

    def wait_for(self, wanted: int) -> Reader:
        for event, reader in self.events():
            if event == wanted:
                return reader
            # 1 Refused, 4 Lost, 7 Halted, 9 Goodbye
            if event in (1, 4, 7, 9):
                raise SystemExit(f"event {event} instead of {wanted}: {reader.content.hex()}")
        raise AssertionError

    def open(self, lockspace: str) -> tuple[int, int]:
        """The lockspace's number and life."""
        self.send(number(QUERY) + number(1) + number(OPEN) + text(lockspace.encode()))
        answer = self.wait_for(ANSWER)
        answer.number()  # the query's id
        if answer.number() != OPENED:
            raise SystemExit(f"lockspace {lockspace}: refused: {answer.content.hex()}")
        return answer.number(), answer.number()

    def completed(self, wanted: int) -> tuple[int, int]:
        """The lock's id and token when the operation has ended so."""
        done = self.wait_for(COMPLETED)
        done.number(), done.number()  # lockspace, tag
        lock, status = done.number(), done.number()
        if status != wanted:
            raise SystemExit(f"the operation ended with status {status}")
        done.option(), done.byte(), done.byte()  # mode, flags, no value block
        return lock, done.number()

    def lock(self, space: int, name: str, mode: int) -> tuple[int, int]:
        nothing = number(0) * 2  # flags, value block
        request = number(space) + number(1) + text(name.encode()) + number(mode) + nothing
        self.send(number(LOCK) + request + b"\x01" + number(0) * 2)  # notices, time limit, transaction
        return self.completed(GRANTED)

    def unlock(self, space: int, life: int, lock: int) -> None:
        reference = number(space) + number(life) + number(lock)
        self.send(number(UNLOCK) + reference + number(1) + number(0) * 2)
        self.completed(UNLOCKED)

    def wait_until_wanted(self) -> bool:
        """Returns true if a client wants it, or standard input has ended instead."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.socket in ready:
                    self.wait_for(BAST)
                    return True
                if not sys.stdin.buffer.read1(4096):
                    return False


def main() -> None:
    path, lockspace, name, *mode = sys.argv[1:]
    session = Session(path)
    space, life = session.open(lockspace)
    lock, token = session.lock(space, name, MODES.index(mode[0] if mode else "EX"))
    print(f"token {token}", flush=True)
    print("wanted" if session.wait_until_wanted() else "done", flush=True)
    session.unlock(space, life, lock)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    main()
