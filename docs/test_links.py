"""Every page is in the book's table of contents. Every link from one text of the repository to another leads somewhere.

Anchors follow GitHub's rules: a heading in lower case, without punctuation, with hyphens for spaces. The second heading
of the same text gets `-1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"

FENCE = re.compile(r"^ *(```+|~~~+)")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$")
NAMED = re.compile(r'<a (?:id|name)="([^"]+)">')
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target><[^>]*>|[^)\s]*)(?: +\"[^\"]*\")?\)")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1(?!`)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def pages() -> list[Path]:
    own = [path for path in DOCS.rglob("*.md") if path != SUMMARY]
    top = [*ROOT.glob("*.md"), *ROOT.glob("crates/**/README.md")]
    others = [path for part in ("kernel", "labs", "python") for path in (ROOT / part).glob("**/*.md")]
    return sorted({*own, *top, *others})


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not in a block of code, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def anchors_of(text: str) -> frozenset[str]:
    found: set[str] = set()
    times: dict[str, int] = {}
    for _, line in prose(text):
        found.update(NAMED.findall(line))
        if heading := HEADING.match(line):
            name = slug(heading[1])
            found.add(f"{name}-{times[name]}" if name in times else name)
            times[name] = times.get(name, 0) + 1
    return frozenset(found)


@cache
def anchors(page: Path) -> frozenset[str]:
    return anchors_of(page.read_text())


def links(text: str) -> Iterator[tuple[int, str]]:
    """The targets of a page's links, with their lines."""
    for number, line in prose(text):
        # Backticks make no link, but a link's text may have them.
        spans = [code.span() for code in CODE.finditer(line)]
        for link in LINK.finditer(line):
            if not any(begin < link.start() < end for begin, end in spans):
                yield number, link["target"].strip("<>")


def complaints(page: Path, text: str) -> list[str]:
    name = page.relative_to(ROOT)
    wrong = []
    for number, target in links(text):
        if ELSEWHERE.match(target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or ROOT not in (there, *there.parents):
            wrong.append(f"{name}:{number}: {target}: there is no {path}")
        elif anchor and there.suffix == ".md" and anchor not in (anchors(there) if path else anchors_of(text)):
            wrong.append(f"{name}:{number}: {target}: it has no heading #{anchor}")
    return wrong


def test_every_link_leads_somewhere() -> None:
    wrong = [complaint for page in [*pages(), SUMMARY] for complaint in complaints(page, page.read_text())]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_page_is_in_the_table_of_contents_once() -> None:
    listed = sorted((DOCS / target).resolve() for _, target in links(SUMMARY.read_text()))
    there = sorted(path for path in DOCS.rglob("*.md") if path != SUMMARY)
    assert listed == there, f"SUMMARY.md differs from docs/ by {sorted(map(str, set(listed) ^ set(there)))}"


def test_every_page_begins_with_its_title() -> None:
    for page in DOCS.rglob("*.md"):
        assert page.read_text().startswith("# "), f"{page.name} begins with no heading"


PAGE = """# A `page`: its *title*, 2(N-1)/N
## Same
## Same
```sh
# not a heading
```
<a id="here"></a>
"""


def test_anchors_are_those_of_github() -> None:
    assert anchors_of(PAGE) == {"a-page-its-title-2n-1n", "same", "same-1", "here"}
    assert slug("`[[nodes]]`: every node of the cluster") == "nodes-every-node-of-the-cluster"
    assert slug("[A link](there.md) and `a_name`") == "a-link-and-a_name"


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("[a](nowhere.md)", "there is no nowhere.md"),
        ("[a](docs/run.md#nowhere)", "no heading #nowhere"),
        ("[a](#nowhere)", "no heading #nowhere"),
        ("[`a`](nowhere.md)", "there is no nowhere.md"),
        ("![a](nowhere.png)", "there is no nowhere.png"),
        ("[a](../../etc/passwd)", "there is no"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, why: str) -> None:
    assert [why in complaint for complaint in complaints(ROOT / "README.md", f"# Title\n\n{link}\n")] == [True]


@pytest.mark.parametrize(
    "text",
    ["[a](#title)", "[a](docs/run.md)", "[a](https://a.example/#a)", "`[a](nowhere.md)`", "```\n[a](nowhere.md)\n```"],
)
def test_a_link_that_leads_somewhere_passes(text: str) -> None:
    assert complaints(ROOT / "README.md", f"# Title\n\n{text}\n") == []
