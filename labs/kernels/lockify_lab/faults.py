"""A fault, as a script in a node. Crash, stall and resume are signals: see node.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import net
from .errors import UsageError
from .options import check_delay


def blackhole(others: Sequence[int]) -> str:
    """Drops what this node sends to others; what they send still arrives."""
    return _each(f"ip route replace blackhole {net.cluster_address(other)}" for other in others)


def unblackhole(others: Sequence[int]) -> str:
    return _each(f"ip route del blackhole {net.cluster_address(other)} 2>/dev/null || :" for other in others)


def netem(delay: str, loss: str) -> str:
    """Delays and loses what this node sends to the cluster's network. Nothing given: as it was."""
    words = []
    if delay:
        check_delay(delay)
        words += ["delay", delay]
    if loss:
        number = loss.removesuffix("%")
        try:
            percent = float(number)
        except ValueError:
            percent = -1
        if not 0 <= percent <= 100:
            raise UsageError(f"{loss!r} is no loss: write a percentage, for example 1%")
        words += ["loss", f"{percent:g}%"]
    if not words:
        return "tc qdisc del dev vec0 root 2>/dev/null || :"
    # The default queue of 1000 packets would itself lose packets under a long delay.
    return f"tc qdisc replace dev vec0 root netem limit 100000 {' '.join(words)}"


def _each(lines: Iterable[str]) -> str:
    return "set -e\n" + "\n".join(lines) + "\n"
