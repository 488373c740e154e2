"""The wings of ARCHITECTURE.md are those of the packages' Cargo.toml, and no dependency leads where none may.

Only what a package is built from counts: tests of a wing may know the checker and the simulator.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PRODUCTS = ("lock", "rdma", "array")
SERVANTS = ("proof", "measure")

# Dependencies that a rule below forbids and that are there all the same. No other may come.
EXCEPTIONS = {
    # A daemon offers locks in remote memory as lockspaces of its own.
    ("daemon", "remote"),
    ("daemon", "fabric"),
    ("daemon", "onesided"),
    # The devices of an array use the membership of the lock manager.
    ("volume", "membership"),
}

# State machines: their decisions follow from their inputs alone.
MACHINES = ("core", "onesided", "array")

# What a state machine may be made of. None of these has sockets, a clock or threads, or draws randomness of its own.
HARMLESS = {
    "bitflags",
    "bytes",
    "hashbrown",
    "indexmap",
    "postcard",
    "rand",
    "rand_xoshiro",
    "serde",
    "slab",
    "thiserror",
    "xxhash-rust",
}

ROW = re.compile(
    r"^\| (?P<floor>\d+) \| `(?P<room>[^`]+)` \| `(?P<package>[^`]+)` \| [^|]+ \| (?P<knows>[^|]+) \|$",
    re.MULTILINE,
)


class Package:
    """A package of the workspace."""

    def __init__(self, told: dict) -> None:
        folder = Path(told["manifest_path"]).parent.relative_to(ROOT)
        self.name = short(told["name"])
        crates = folder.parts[0] == "crates"
        self.room = "/".join(folder.parts[1:] if crates else ("..", *folder.parts))
        self.wing = folder.parts[1] if crates else ""
        needs = [need for need in told["dependencies"] if need["kind"] is None]
        self.knows = {short(need["name"]) for need in needs if need.get("path")}
        self.foreign = {need["name"] for need in needs if not need.get("path")}


def short(name: str) -> str:
    """A package's name as pages have it."""
    return name.removeprefix("lockify-")


@cache
def packages() -> dict[str, Package]:
    """The packages of the workspace, by name."""
    asked = ["cargo", "metadata", "--no-deps", "--offline", "--locked", "--format-version=1"]
    told = json.loads(subprocess.run(asked, cwd=ROOT, check=True, capture_output=True).stdout)
    found = [Package(package) for package in told["packages"]]
    return {package.name: package for package in found}


def floor(name: str) -> int:
    """One above the highest floor of the packages that it knows."""
    return max((floor(known) + 1 for known in packages()[name].knows), default=0)


def is_allowed(of: Package, to: Package) -> bool:
    """A package may be built from another one."""
    if (of.name, to.name) in EXCEPTIONS:
        return True
    if {of.name, to.name} == {"client", "daemon"}:
        return False
    if of.wing == "base":
        return to.wing == "base"
    if of.wing in PRODUCTS:
        return to.wing in (of.wing, "base")
    # A checker that shared code with the checked program would repeat its mistakes.
    return of.name != "check" or to.wing == "base"


def arrows() -> list[tuple[Package, Package]]:
    """Each dependency between packages."""
    return [(package, packages()[known]) for package in packages().values() for known in sorted(package.knows)]


def test_no_dependency_leads_where_none_may() -> None:
    wrong = [f"{of.name} -> {to.name}" for of, to in arrows() if not is_allowed(of, to)]
    assert not wrong, "ARCHITECTURE.md says which wing may depend on which"


def test_every_exception_is_needed() -> None:
    assert {(of.name, to.name) for of, to in arrows()} >= EXCEPTIONS


@pytest.mark.parametrize(
    ("of", "to"),
    [
        ("trust", "core"),
        ("history", "check"),
        ("volume", "node"),
        ("remote", "core"),
        ("remote", "membership"),
        ("node", "report"),
        ("node", "check"),
        ("client", "daemon"),
        ("daemon", "client"),
        ("check", "core"),
        ("check", "array"),
        ("core", "sim"),
    ],
)
def test_a_wrong_dependency_is_found(of: str, to: str) -> None:
    assert not is_allowed(packages()[of], packages()[to])


@pytest.mark.parametrize("name", MACHINES)
def test_state_machines_have_no_sockets_clocks_or_threads(name: str) -> None:
    machine = packages()[name]
    assert not machine.knows
    assert machine.foreign <= HARMLESS


def test_the_table_of_rooms_is_that_of_the_packages() -> None:
    rows = {row["package"]: row for row in ROW.finditer((ROOT / "ARCHITECTURE.md").read_text())}
    assert rows.keys() == packages().keys()
    for name, package in packages().items():
        row = rows[name]
        knows = set() if row["knows"] == "nothing" else set(row["knows"].split(", "))
        assert (row["room"], knows, int(row["floor"])) == (package.room, package.knows, floor(name)), name


def test_every_folder_of_a_wing_has_a_package() -> None:
    """A folder that was left behind would look like a room."""
    rooms = {package.room for package in packages().values()}
    for wing in ("base", *PRODUCTS, *SERVANTS):
        for folder in filter(Path.is_dir, (ROOT / "crates" / wing).iterdir()):
            assert f"{wing}/{folder.name}" in rooms, folder


PATH = re.compile(r"`([\w./{},*-]+)`")


def expanded(path: str) -> list[str]:
    """A path with alternatives, `a/{b,c}.rs`, as its paths."""
    head, brace, rest = path.partition("{")
    if not brace:
        return [path]
    choices, _, tail = rest.partition("}")
    return [found for choice in choices.split(",") for found in expanded(head + choice + tail)]


WINGS = [*sorted((ROOT / "crates").glob("*/README.md")), ROOT / "labs" / "README.md"]


@pytest.mark.parametrize("page", WINGS, ids=lambda page: page.parent.name)
def test_a_wings_page_names_places_that_are_there(page: Path) -> None:
    """The first path of each row of "To change X, go to Y"."""
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| ") and line.count("|") == 3]
    places = [PATH.search(cells[2]) for cells in rows if "go to" not in cells[2]]
    paths = [path for place in places if place and "/" in place[1] for path in expanded(place[1])]
    assert paths
    missing = [path for path in paths if not list(page.parent.glob(path)) and not (page.parent / path).exists()]
    assert not missing, f"{page.relative_to(ROOT)} names what is not there"
