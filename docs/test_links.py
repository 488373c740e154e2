"""Every page is in the book's table of contents, and two clicks from README.md. Every link from one text of the repository
to another leads somewhere, and so does every name of a page in a comment or a message.

Anchors follow GitHub's rules: a heading in lower case, without punctuation, with hyphens for spaces. The second heading
of the same text gets `-1`.
"""

from __future__ import annotations

import re
import subprocess
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
# docs/test_sections.py has the sections of docs/design.
NAMED_PAGE = re.compile(r"(?<![\w./-])docs/[\w/-]+\.md\b")
SOURCES = (".c", ".h", ".py", ".rs", ".sh", ".toml")


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


def linked(page: Path) -> set[Path]:
    """The texts that a page links to."""
    targets = (target.partition("#")[0] for _, target in links(page.read_text()) if not ELSEWHERE.match(target))
    return {there for target in targets if (there := (page.parent / target).resolve()).suffix == ".md"}


def test_every_page_is_two_clicks_from_the_readme() -> None:
    first = linked(ROOT / "README.md")
    found = first.union(*(linked(page) for page in first))
    sought = [page for folder in ("docs", "kernel", "labs") for page in (ROOT / folder).rglob("*.md") if page != SUMMARY]
    far = [str(page.relative_to(ROOT)) for page in sorted(sought) if page not in found]
    assert not far, "docs/README.md names all pages"


def sources() -> list[Path]:
    """The programs that are committed, and texts of CI and of packages."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    names = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    kept = (name for name in names if Path(name).suffix in SOURCES or name.startswith((".ci/", "debian/", "packaging/")))
    return [ROOT / name for name in kept if (ROOT / name).is_file()]


def unknown_pages(text: str) -> list[str]:
    return [name for name in NAMED_PAGE.findall(text) if not (ROOT / name).exists()]


def test_every_page_that_a_source_names_is_there() -> None:
    # Some tests name pages that are not there, to see that they are missed.
    read = (path for path in sources() if not path.is_relative_to(DOCS))
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in read for name in unknown_pages(path.read_text())]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_page_that_is_not_there_is_missed() -> None:
    assert unknown_pages("//! See docs/run.md and docs/runs.md; a/docs/there.md is another's.") == ["docs/runs.md"]


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
