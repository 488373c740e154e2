"""The file that all clients write to while they hold a lock: the thing that the locks protect.

Each line is one write with O_APPEND, so the order of the lines is the order in which clients used what they had
locked. `enter` follows the grant and `leave` precedes the release, so that whatever overlaps in the file was held
at the same time.

    TIME NODE CLIENT WORD NAME MODE TOKEN

TIME is CLOCK_MONOTONIC of the one machine, in nanoseconds. Words: enter; still (it holds); mode (a conversion was
granted); keep (it relies on this mode while it converts, or after a conversion that was not granted); leave (it is
about to release); lost (it was told); gone (its process has ended, says somebody else).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

WORDS = ("enter", "still", "mode", "keep", "leave", "lost", "gone")


class BadLine(ValueError):
    """A line that no client writes."""


@dataclass(frozen=True)
class Line:
    t: int
    node: int
    client: str
    word: str
    name: str
    mode: str
    token: int

    @classmethod
    def parse(cls, text: str) -> Line:
        try:
            t, node, client, word, name, mode, token = text.split()
            line = cls(int(t), int(node), client, word, name, mode, int(token))
        except ValueError as error:
            raise BadLine(f"not a line of the record: {text!r}") from error
        if word not in WORDS:
            raise BadLine(f"an unknown word: {text!r}")
        return line

    def __str__(self) -> str:
        return f"[{self.t} node {self.node} {self.client}: {self.word} {self.name} {self.mode} {self.token}]"


class Writer:
    """One client's pen."""

    def __init__(self, path: Path | str, node: int, client: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.node, self.client = node, client

    def write(self, word: str, name: str = "-", mode: str = "-", token: int = 0, client: str = "") -> None:
        line = f"{time.monotonic_ns()} {self.node} {client or self.client} {word} {name} {mode} {token}\n"
        os.write(self.file, line.encode())
