"""The versions on the page of compatibility are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"

# | what | between whom, perhaps | 3 to 5 | `OLDEST` and `VERSION` in `FILE` |
ROW = re.compile(r"\| (?P<told>[^|]+) \| [^|]*`(?:\w+::)?(?P<name>VERSION|SPOKEN)` in `(?P<file>[^`]+)` \|$", re.MULTILINE)
CONSTANT = {
    "VERSION": re.compile(r"const VERSION: \w+ = (\d+);"),
    "SPOKEN": re.compile(r"const SPOKEN: Versions = Versions(?:::only\(| \{ oldest: \d+, newest: )(\d+)"),
}


def test_versions_are_those_of_the_code() -> None:
    rows = list(ROW.finditer(PAGE.read_text()))
    assert len(rows) >= 6, "the page names hardly any version"
    wrong = {}
    for row in rows:
        constant = CONSTANT[row["name"]].search((ROOT / row["file"]).read_text())
        assert constant, f"{row['file']} has no {row['name']}"
        if constant[1] not in re.findall(r"\d+", row["told"]):
            wrong[row["file"]] = (row["told"], constant[1])
    assert not wrong
