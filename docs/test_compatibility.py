"""The versions on the page of compatibility are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"

# | what | between whom, perhaps | 3 to 5 | `OLDEST` and `VERSION` in `FILE` |
ROW = re.compile(r"\| (?P<told>[^|]+) \| [^|]*`(?:\w+::)?VERSION` in `(?P<file>[^`]+)` \|$", re.MULTILINE)
CONSTANT = re.compile(r"const VERSION: \w+ = (\d+);")


def test_versions_are_those_of_the_code() -> None:
    rows = list(ROW.finditer(PAGE.read_text()))
    assert len(rows) >= 5, "the page names hardly any version"
    wrong = {}
    for row in rows:
        constant = CONSTANT.search((ROOT / row["file"]).read_text())
        assert constant, f"{row['file']} has no VERSION"
        if constant[1] not in re.findall(r"\d+", row["told"]):
            wrong[row["file"]] = (row["told"], constant[1])
    assert not wrong
