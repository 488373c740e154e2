"""Comments and pages name sections of docs/design, and every section that they name is there.

In comments: `docs/design/claim.md 4.6`, and for several: `docs/design/array.md 3.1 and 3.5`. In pages: a link. A
published paper's sections are named as in `the Lockify paper, section 5`. D1, D2 and so on are the holes of the
published claim, which docs/design/kernel-claim.md defines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DESIGN = Path("docs/design")
HOLES = DESIGN / "kernel-claim.md"

# Texts of others, and lists made by programs.
FOREIGN = ("LICENSE-", "Cargo.lock")

# From one word to the next: a space, or the end of a line with the beginning of the next comment line.
GAP = r"(?:[ \t]*\n[ \t]*(?://[/!]?|#+|\*|>)?[ \t]*| +)"
NUMBER = r"\d+(?:\.\d+)*"
NUMBERS = rf"{NUMBER}(?:(?:,{GAP}|{GAP}and{GAP}|{GAP}to{GAP}){NUMBER})*"

PAGE = re.compile(rf"docs/design/(?P<page>[\w-]+\.md)(?:{GAP}(?P<numbers>{NUMBERS}))?")
SECTION = re.compile(rf"(?P<paper>\bpaper(?:{GAP}\([^)]*\))?,{GAP})?(?:\b[Ss]ections?{GAP}|§ ?)(?P<numbers>{NUMBERS})")
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"^#+ (?P<title>(?P<number>\d+(?:\.\d+)*)\.? .+)$", re.MULTILINE)
HOLE = re.compile(r"\bD\d+\b")


def slug(title: str) -> str:
    """The anchor that renderers of Markdown give a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@cache
def sections(page: Path) -> dict[str, str]:
    """The anchors of a page's sections, by their numbers."""
    found = HEADING.finditer((ROOT / page).read_text())
    return {heading["number"]: slug(heading["title"]) for heading in found}


@cache
def holes() -> frozenset[str]:
    """The published claim's holes: each has a heading, and an anchor before it."""
    text = (ROOT / HOLES).read_text()
    found = re.finditer(r'^<a id="(d\d+)"></a>\n\n### [\d.]+ (D\d+): ', text, re.MULTILINE)
    return frozenset(hole[2] for hole in found if hole[1] == hole[2].lower())


def is_page(path: Path) -> bool:
    return path.parent == DESIGN and (ROOT / path).is_file()


def missing(page: Path, numbers: str) -> Iterator[str]:
    for number in re.findall(NUMBER, numbers):
        if number not in sections(page):
            yield f"{page} has no section {number}"


def wrong_pages(text: str) -> Iterator[tuple[int, str]]:
    for named in PAGE.finditer(text):
        page = DESIGN / named["page"]
        if not is_page(page):
            yield named.start(), f"there is no {page}"
        elif named["numbers"]:
            yield from ((named.start(), why) for why in missing(page, named["numbers"]))


def wrong_sections(path: Path, text: str) -> Iterator[tuple[int, str]]:
    for named in SECTION.finditer(text):
        if named["paper"]:
            continue
        if is_page(path):
            yield from ((named.start(), why) for why in missing(path, named["numbers"]))
        else:
            example = "write docs/design/claim.md 4.6 in a comment, a link in a page, or: the Lockify paper, section 5"
            yield named.start(), f"{' '.join(named[0].split())} of which page? {example}"


def wrong_links(path: Path, text: str) -> Iterator[tuple[int, str]]:
    if path.suffix != ".md":
        return
    for link in LINK.finditer(text):
        target = (ROOT / path).parent.joinpath(link["path"]).resolve()
        if not link["path"] or (ROOT / DESIGN) not in target.parents:
            continue
        page = target.relative_to(ROOT)
        number = re.search(rf"(?<![\w.]){NUMBER}", link["text"])
        if not is_page(page):
            yield link.start(), f"there is no {page}"
        elif link["anchor"] and link["anchor"].upper() in holes():
            continue
        elif link["anchor"] and link["anchor"] not in sections(page).values():
            yield link.start(), f"{page} has no section #{link['anchor']}"
        elif number and sections(page).get(number[0]) != link["anchor"]:
            yield link.start(), f"{link[0]} says {number[0]} and leads elsewhere"


def wrong_holes(text: str) -> Iterator[tuple[int, str]]:
    for named in HOLE.finditer(text):
        if named[0] not in holes():
            yield named.start(), f"{HOLES} defines no {named[0]}"


def complaints(path: Path, text: str) -> list[str]:
    """The errors in a file, with their lines."""
    wrong = [*wrong_pages(text), *wrong_sections(path, text), *wrong_links(path, text), *wrong_holes(text)]
    return [f"{path}:{text.count(chr(10), 0, at) + 1}: {why}" for at, why in sorted(wrong)]


def files() -> Iterator[tuple[Path, str]]:
    """The repository's own texts: what is committed, or will be."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    this = Path(__file__).relative_to(ROOT)
    for name in filter(None, listed.split("\0")):
        path = Path(name)
        # The samples below are wrong on purpose.
        if path == this or path.name.startswith(FOREIGN) or not (ROOT / path).is_file():
            continue
        try:
            yield path, (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue


def test_every_section_that_is_named_is_there() -> None:
    wrong = [why for path, text in files() for why in complaints(path, text)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_sections_are_numbered_in_order() -> None:
    for page in sorted((ROOT / DESIGN).glob("*.md")):
        numbers = [heading["number"] for heading in HEADING.finditer(page.read_text())]
        assert numbers, f"{page} has no numbered sections"
        for before, number in zip(["0", *numbers], numbers):
            *parent, last = (int(part) for part in number.split("."))
            former = [int(part) for part in before.split(".")]
            first = former == parent and last == 1
            next_one = former[: len(parent)] == parent and last == [*former, 0][len(parent)] + 1
            assert first or next_one, f"{page.name}: {number} comes after {before}"


def test_the_holes_are_numbered() -> None:
    assert holes() == {f"D{number}" for number in range(1, 12)}


RIGHT = [
    ("a.rs", "//! The barrier (docs/design/claim.md 4.6): what weakens waits."),
    ("a.rs", "/// As docs/design/semantics.md 4.1, rules 2 and 7, and docs/design/array.md 2.1, 2.2 and 3.6 say."),
    ("a.rs", "/// Wrapped: docs/design/claim.md\n    /// 4.6. Or docs/design/array.md 3.1\n    /// and 3.5."),
    ("a.py", "# The Lockify paper (FAST '26), section 5; the array paper, section 99.9."),
    ("a.py", '"""The hole D7, of docs/design/kernel-claim.md."""'),
    ("kernel/README.md", "See [the barrier](../docs/design/claim.md#46-the-barrier)."),
    ("kernel/README.md", "See [D2](../docs/design/kernel-claim.md#d2)."),
    ("docs/design/claim.md", "The barrier (section 4.6) and sections 1.1 and 4.2."),
]

WRONG = [
    ("a.rs", "//! docs/design/claim.md 4.99", "has no section 4.99"),
    ("a.rs", "//! docs/design/claim.md 4.6 and 12", "has no section 12"),
    ("a.rs", "//! docs/design/claim.md\n//! 77", "has no section 77"),
    ("a.rs", "//! docs/design/locks.md 4", "there is no docs/design/locks.md"),
    ("a.rs", "//! The barrier (section 4.6).", "of which page?"),
    ("a.rs", "//! As in sections\n//! 2 and 3.", "of which page?"),
    ("a.c", "/* \u00a7 4.6 */", "of which page?"),
    ("a.py", "# A paper says so. Section 5 does, too.", "of which page?"),
    ("README.md", "[The barrier](docs/design/claim.md#46-the-gate)", "has no section #46-the-gate"),
    ("README.md", "[claim 4.5](docs/design/claim.md#46-the-barrier)", "leads elsewhere"),
    ("README.md", "[it](docs/design/kernel-claim.md#d12)", "has no section #d12"),
    ("README.md", "[claim](docs/design/claims.md)", "there is no docs/design/claims.md"),
    ("docs/design/claim.md", "See section 99.", "has no section 99"),
    ("labs/kernels/README.md", "the hole D12", "defines no D12"),
]


@pytest.mark.parametrize(("path", "text"), RIGHT)
def test_what_is_right_passes(path: str, text: str) -> None:
    assert complaints(Path(path), text) == []


@pytest.mark.parametrize(("path", "text", "why"), WRONG)
def test_what_is_wrong_is_found(path: str, text: str, why: str) -> None:
    assert any(why in complaint for complaint in complaints(Path(path), text))
