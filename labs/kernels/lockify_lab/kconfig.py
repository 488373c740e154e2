"""Kernel configuration fragments: what was asked for, and whether Kconfig kept it."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import LabError

_SET = re.compile(r"^(CONFIG_\w+)=(.*)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")


def read(path: Path) -> dict[str, str]:
    """Symbols of a fragment or of a .config; `n` stands for "is not set"."""
    symbols: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _SET.match(line):
            symbols[match[1]] = match[2]
        elif match := _UNSET.match(line):
            symbols[match[1]] = "n"
    return symbols


def lines(symbols: dict[str, str]) -> str:
    """The same as text that Kconfig reads."""
    return "".join(
        f"# {name} is not set\n" if value == "n" else f"{name}={value}\n"
        for name, value in sorted(symbols.items())
    )


def check(wanted: dict[str, str], config: Path) -> None:
    """Fails if Kconfig dropped or changed a wanted symbol: it does so without a word."""
    got = read(config)
    lost = [
        f"  {name}: wanted {value}, got {got.get(name, 'n')}"
        for name, value in sorted(wanted.items())
        if got.get(name, "n") != value
    ]
    if lost:
        raise LabError(
            "the kernel's Kconfig did not accept these symbols (a dependency is missing, or this "
            "version has another name for it; see labs/kernels/config):\n" + "\n".join(lost)
        )
