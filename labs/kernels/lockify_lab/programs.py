"""Programs of this repository that nodes, tests and benchmarks run: cargo builds them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import LabError
from .host import REPOSITORY, command, say

# The build target of each: of a package one program or example, so that nothing else is compiled.
_CARGO = {
    "lockify": ("-p", "lockify-cli", "--bin", "lockify", "--features", "ublk"),
    "lockify-load": ("-p", "lockify-load"),
    "libdlm.so": ("-p", "libdlm"),
    "libdlm_lt.so": ("-p", "libdlm_lt"),
    "examples/verbs": ("-p", "lockify-fabric", "--example", "verbs"),
}


def built(name: str) -> Path | None:
    """The program that was built last, if there is one."""
    found = [_target() / kind / name for kind in ("release", "debug")]
    found = [path for path in found if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def need(name: str) -> Path:
    """The program, or an error that tells how to get it."""
    path = built(name)
    if path is None:
        raise LabError(f"{name} is missing: run `{' '.join(_cargo('cargo', name))}`")
    return path


def build(name: str, limit: float) -> Path:
    """Builds for release what is missing or older than its sources."""
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo" / "bin" / "cargo")
    if not os.access(cargo, os.X_OK):
        raise LabError(f"cargo is missing, which makes {name}: install Rust, as https://rustup.rs says")
    say(f"building {name}")
    # Ends with this process, however that ends.
    command(["setpriv", "--pdeathsig", "TERM", *_cargo(cargo, name)], limit, cwd=REPOSITORY)
    return _target() / "release" / name


def _cargo(cargo: str, name: str) -> list[str]:
    return [cargo, "build", "--release", "--locked", "-q", *_CARGO[name]]


def _target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
