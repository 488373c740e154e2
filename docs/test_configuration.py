"""Every configuration that a page shows has the keys of docs/configuration.md, which are those that the daemon knows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from test_links import ROOT, pages

KEYS = ROOT / "docs" / "configuration.md"

HEADING = re.compile(r"^## (?:`\[+(?P<table>\w+)\]+`)?")
ROW = re.compile(r"^\| `(?P<key>\w+)` \|")
# In a block of commands, a file that a command writes.
WRITTEN = re.compile(r"^ *cat >\S*lockify\.toml <<END\n(.*?)^END$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
# It shows a program's Cargo.toml.
OTHERS = {ROOT / "docs" / "rust.md"}
# A page shows how the daemon refuses it.
MISSPELT = "leese"


@cache
def known() -> frozenset[str]:
    """Each key, with its table before it."""
    found = set()
    table = ""
    for line in KEYS.read_text().splitlines():
        if heading := HEADING.match(line):
            table = f"{heading['table']}." if heading["table"] else ""
        elif row := ROW.match(line):
            found.add(table + row["key"])
    return frozenset(found)


def keys(content: dict[str, Any], table: str = "") -> Iterator[str]:
    for key, value in content.items():
        tables = value if isinstance(value, list) else [value]
        if tables and all(isinstance(one, dict) for one in tables):
            for one in tables:
                yield from keys(one, f"{key}.")
        else:
            yield table + key


def unknown(page: str) -> list[str]:
    blocks = [block[1] for pattern in (BLOCK, WRITTEN) for block in pattern.finditer(page)]
    # A shell puts the number of each node there.
    contents = (tomllib.loads(re.sub(r"\$n\b", "1", block)) for block in blocks)
    return sorted({key for content in contents for key in keys(content)} - known() - {MISSPELT})


def test_every_key_that_a_page_sets_is_known() -> None:
    wrong = {str(page.relative_to(ROOT)): unknown(page.read_text()) for page in pages() if page not in OTHERS}
    assert not {page: names for page, names in wrong.items() if names}


def test_keys_are_found() -> None:
    assert {"node", "lease", "nodes.address", "security.ca", "fencing.command", "lockspace.name"} <= known()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ('```toml\nlaese = "4s"\n```\n', ["laese"]),
        ('```toml\n[[lockspace]]\nnames = "a"\n```\n', ["lockspace.names"]),
        ("```sh\ncat >node$n/lockify.toml <<END\nnode = $n\nnodee = 1\nEND\n```\n", ["nodee"]),
        ('```toml\n[metrics]\naddress = "127.0.0.1:9464"\n```\n', []),
    ],
)
def test_an_unknown_key_is_found(page: str, names: list[str]) -> None:
    assert unknown(page) == names
