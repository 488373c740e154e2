"""Lock modes: which exclude which. Written anew on purpose, so that a wrong table elsewhere is seen here."""

from __future__ import annotations

MODES = ("NL", "CR", "CW", "PR", "PW", "EX")

_TOGETHER = {
    "NL": {"NL", "CR", "CW", "PR", "PW", "EX"},
    "CR": {"NL", "CR", "CW", "PR", "PW"},
    "CW": {"NL", "CR", "CW"},
    "PR": {"NL", "CR", "PR"},
    "PW": {"NL", "CR"},
    "EX": {"NL"},
}


def compatible(one: str, other: str) -> bool:
    """Returns true if two clients may hold a name in these modes at the same time."""
    return other in _TOGETHER[one]


def has_token(mode: str) -> bool:
    """Returns true if a grant of this mode carries a fencing token."""
    return mode in ("PW", "EX")


def common(one: str, other: str) -> str:
    """The strongest mode that claims no more than either: what a client surely holds while it converts."""
    shared = _TOGETHER[one] | _TOGETHER[other]
    return next(mode for mode in reversed(MODES) if _TOGETHER[mode] >= shared)
