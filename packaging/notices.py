"""Writes THIRD-PARTY.md: the crates in the programs and libraries, with their licences. Needs cargo, builds nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "THIRD-PARTY.md"

# The binaries of the packages, and of the wheel.
PROGRAMS = {"lockify-cli", "lockify-daemon", "lockify-capi", "libdlm", "libdlm_lt", "lockify-python"}

BEGIN = """# Third-party notices

This repository contains no source files of others. Its programs and libraries, once they are built, contain these
crates from [crates.io](https://crates.io), each under its own licence. The text of a licence is in the crate's source,
which `cargo vendor` collects. Hand out with binaries the notices that these licences ask for.

Two libraries are loaded at run time, and not contained: corosync's (BSD), and libibverbs (GPL-2.0 or BSD).

`packaging/notices.py` writes this page from Cargo.lock.

"""
TABLE = """| crate | licence |
|---|---|
"""
# Off by default, and in no package (docs/array.md).
UBLK = "lockify-cli/ublk"
MORE = """
## With the feature `ublk`
A program that is built with `--features lockify-cli/ublk` contains these as well. The packages have it without. `bitmaps` is under the MPL-2.0,
unchanged. Whoever hands out such a program also says where the source of `bitmaps` is: https://crates.io/crates/bitmaps.

"""


def metadata(*features: str) -> dict[str, Any]:
    asked = ["cargo", "metadata", "--format-version=1", "--locked"]
    asked.append("--filter-platform=x86_64-unknown-linux-gnu")
    asked += [f"--features={feature}" for feature in features]
    done = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def contained(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The crates of others in the programs: neither for builds and tests only, nor run by the compiler."""
    packages = {package["id"]: package for package in told["packages"]}
    needs = {node["id"]: node["deps"] for node in told["resolve"]["nodes"]}
    left = [name for name, package in packages.items() if package["name"] in PROGRAMS]
    found: set[str] = set()
    while left:
        package = left.pop()
        if package in found or any("proc-macro" in target["kind"] for target in packages[package]["targets"]):
            continue
        found.add(package)
        left.extend(need["pkg"] for need in needs[package] if any(kind["kind"] is None for kind in need["dep_kinds"]))
    return [packages[name] for name in found if packages[name]["source"]]


def table(crates: list[dict[str, Any]]) -> str:
    # Some write a slash for "or".
    lines = {f"| {crate['name']} | {crate['license'].replace('/', ' OR ')} |\n" for crate in crates}
    return TABLE + "".join(sorted(lines))


def page(told: dict[str, Any], with_ublk: dict[str, Any]) -> str:
    """Of the programs as they are by default, and what they contain besides with ublk."""
    plain = contained(told)
    names = {crate["name"] for crate in plain}
    more = [crate for crate in contained(with_ublk) if crate["name"] not in names]
    return BEGIN + table(plain) + MORE + table(more)


if __name__ == "__main__":
    PAGE.write_text(page(metadata(), metadata(UBLK)))
