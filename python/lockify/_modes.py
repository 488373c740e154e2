"""The modes of locks."""

from __future__ import annotations

import enum


class Mode(enum.IntEnum):
    """How a lock excludes others, from NL, which excludes nobody, to EX, which excludes all but NL."""

    NL = 0
    """Null: holds nothing; keeps a place, to convert from."""
    CR = 1
    """Concurrent read: others may do anything but EX."""
    CW = 2
    """Concurrent write: others may hold CR and CW."""
    PR = 3
    """Protected read, or shared: others may read."""
    PW = 4
    """Protected write: others may hold CR."""
    EX = 5
    """Exclusive."""


NL, CR, CW, PR, PW, EX = Mode


def number(mode: Mode) -> int:
    """Its number in the daemon's protocol."""
    if not isinstance(mode, Mode):
        raise TypeError(f"{mode!r} is no mode: give one of lockify.NL, CR, CW, PR, PW, EX")
    return int(mode)
