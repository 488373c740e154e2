"""docs/figures.py: the page is what the kept runs make of it, and what a run may look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import figures
import pytest

RUN: dict[str, Any] = {
    "part": "Proof",
    "title": "A run",
    "command": "lockify sim",
    "machine": "a machine",
    "date": "2026-11-25",
    "commit": "abc",
}
CREATES = {"bench": "b", "metric": "creates_per_s", "unit": "1/s", "value": 12345.6}
TRIPS = {"bench": "b", "metric": "round_trips_per_create", "unit": "1", "value": 1.6}
REPORT = [
    {**CREATES, "case": {"policy": "claim", "delay_us": 100.0}, "rounds": [12000.0, 13000.0], "published": 11000.0},
    {**TRIPS, "case": {"policy": "home"}, "published": None},
]


def keep(folder: Path, run: dict[str, Any], report: list[dict[str, Any]] | None = None) -> None:
    (folder / "a.json").write_text(json.dumps(run))
    if report is not None:
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in report))


def test_the_page_is_what_the_kept_runs_make_of_it() -> None:
    assert figures.page(figures.RUNS) == figures.PAGE.read_text(), "run docs/figures.py"


def test_a_report_is_shown_with_rounds_and_what_was_published(tmp_path: Path) -> None:
    keep(tmp_path, RUN, REPORT)
    page = figures.page(tmp_path)
    assert "| creates per s | policy claim, delay us 100.0 | 12,346 /s | 12,000 to 13,000 in 2 | 11,000 /s |\n" in page
    assert "| round trips per create | policy home | 1.6 |  |  |\n" in page
    assert "```sh\nlockify sim\n```\n2026-11-25, commit `abc`, a machine; from [a.jsonl](figures/a.jsonl).\n" in page


def test_the_page_shows_what_is_selected(tmp_path: Path) -> None:
    keep(tmp_path, {**RUN, "show": [{"policy": ["home", "none"], "metric": "round_trips_per_create"}]}, REPORT)
    page = figures.page(tmp_path)
    assert "policy home" in page and "policy claim" not in page
    keep(tmp_path, {**RUN, "show": [{"policy": "none"}]})
    with pytest.raises(figures.Wrong, match="nothing of it"):
        figures.page(tmp_path)


def test_what_is_alike_in_all_rows_is_not_repeated(tmp_path: Path) -> None:
    cases = [{"delay_us": 100.0, "policy": "claim"}, {"delay_us": 100.0, "policy": "home"}]
    keep(tmp_path, RUN, [{**row, "case": case} for case in cases for row in REPORT])
    page = figures.page(tmp_path)
    assert "| creates per s | policy claim | 12,346 /s |" in page and "|  | policy home | 12,346 /s |" in page
    assert "| round trips per create | policy claim | 1.6 |" in page


def test_what_was_recorded_by_hand_says_so(tmp_path: Path) -> None:
    short = {"what": "a", "case": "x", "ours": "1", "goal": "2", "met": "**falls short**"}
    lines = [short, {"what": "a", "case": "y", "ours": "3"}]
    keep(tmp_path, {**RUN, "figures": lines, "notes": ["A note."]})
    page = figures.page(tmp_path)
    assert "recorded by hand.\n" in page and page.endswith("\nA note.\n")
    assert "| a | x | 1 | 2 | **falls short** |\n|  | y | 3 |  |  |\n" in page


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"part": "Elsewhere"}, "no part"),
        ({"colour": "red"}, "colour"),
        ({"figures": [{"what": "a"}]}, "a figure has"),
        ({"figures": [{"what": "a", "ours": "1", "colour": "red"}]}, "a figure has"),
        ({}, "by hand or as a report"),
    ],
)
def test_a_run_that_cannot_be_shown_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    keep(tmp_path, {**RUN, **change})
    with pytest.raises(figures.Wrong, match=why):
        figures.page(tmp_path)


def test_figures_by_hand_beside_a_report_are_refused(tmp_path: Path) -> None:
    keep(tmp_path, {**RUN, "figures": [{"what": "a", "ours": "1"}]}, REPORT)
    with pytest.raises(figures.Wrong, match="by hand or as a report"):
        figures.page(tmp_path)


def test_a_report_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RUNS", tmp_path)
    monkeypatch.setattr(figures, "PAGE", tmp_path / "page.md")
    report = tmp_path / "report"
    report.write_text("".join(f"{json.dumps(row)}\n" for row in REPORT))
    # It takes the place of what was recorded by hand, and what was chosen stays.
    keep(tmp_path, {**RUN, "figures": [{"what": "a", "ours": "1"}], "show": [{"policy": "claim"}]})
    figures.main(["add", "a", str(report), "Proof", "Another title", "make run"])
    kept = json.loads((tmp_path / "a.json").read_text())
    assert figures.rows_of(tmp_path / "a.jsonl") == REPORT[:1]
    assert kept["command"] == "make run" and kept["show"] == [{"policy": "claim"}] and "figures" not in kept
    assert "### Another title" in (tmp_path / "page.md").read_text()
