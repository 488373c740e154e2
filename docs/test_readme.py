"""README.md stays short, and its figures are those of docs/figures.md."""

from __future__ import annotations

import re
from pathlib import Path

import figures

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_it_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def test_its_five_figures_are_on_the_page_of_figures() -> None:
    _, section = README.split("## Five figures\n")
    table = section.partition("\n##")[0]
    lines = re.findall(r"^\| (?!what)[^|]+\| ([^|]+) \| (?:\w+: )?([^|]+) \| `", table, re.MULTILINE)
    assert len(lines) == 5
    page = figures.PAGE.read_text()
    for line in lines:
        for figure in line:
            assert re.search(rf"\| {re.escape(figure)}(?: /s)? \|", page), f"docs/figures.md has no {figure}"
