"""Writes docs/figures.md from the runs that are kept in docs/figures/.

    docs/figures.py                          writes the page
    docs/figures.py add NAME REPORT.jsonl PART TITLE COMMAND
                                             keeps the report of a run that has just ended, and writes the page

A run is NAME.json: the command, the date, the machine, and, as `show`, the rows that the page has. The figures are
in NAME.jsonl, the report that `lockify bench`, `lockify demo`, `lockify sim` or `labs/kernels/lab bench` wrote
(crates/measure/report). Runs without a report were recorded by hand: their figures are in NAME.json itself, and the
page says so.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RUNS = DOCS / "figures"
PAGE = DOCS / "figures.md"

# The page's parts, in order.
PARTS = [
    "Creating in user space",
    "The claim in the Linux kernel",
    "Locks through the daemon",
    "Beside other lock managers",
    "Locks in remote memory",
    "Shared arrays",
    "Proof",
]
NEEDED = {"part", "title", "command", "machine", "date", "commit"}
KNOWN = NEEDED | {"order", "takes", "notes", "figures", "show"}
COLUMNS = {
    "what": "what",
    "case": "case",
    "ours": "Lockify",
    "spread": "rounds",
    "published": "published",
    "goal": "goal",
    "met": "",
}

BEGIN = """# Figures

`docs/figures.py` writes this page from the runs in `docs/figures/`. Each run says which command printed it.
Run the command for figures of your own machine. *Published* is the figure of the protocol's paper.
*Goal* is the project's own. **Falls short** marks a figure that misses one of them.

A ratio compares two figures of the same run. On another machine it changes less than the figures themselves.
"""


class Wrong(Exception):
    """A run cannot be shown."""


def rows_of(report: Path) -> list[dict[str, Any]]:
    """The rows of a report: one metric of one case each (crates/measure/report/src/row.rs)."""
    return [json.loads(line) for line in report.read_text().splitlines() if line.strip()]


def number(value: float) -> str:
    """With four significant digits at least."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.1f}".removesuffix(".0")
    return f"{value:.4g}"


def selected(row: dict[str, Any], show: list[dict[str, Any]]) -> bool:
    """True if the page shows a row. All that one of the selections names has to agree."""

    def agrees(wanted: dict[str, Any]) -> bool:
        properties = {**row["case"], "bench": row["bench"], "metric": row["metric"]}
        lists = {name: value if isinstance(value, list) else [value] for name, value in wanted.items()}
        return all(properties.get(name) in values for name, values in lists.items())

    return not show or any(agrees(wanted) for wanted in show)


def figure(row: dict[str, Any], alike: set[str]) -> dict[str, str]:
    """A row of a report as a line of the page, without the properties that are alike in all."""
    told = {name: value for name, value in row["case"].items() if name not in alike}
    case = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told.items())
    unit = {"1": "", "1/s": " /s", "us": " µs", "B": " bytes"}.get(row["unit"], f" {row['unit']}")
    what = row["metric"].removesuffix(f"_{row['unit']}").replace("_", " ").removeprefix("bytes ")
    line = {"what": what, "case": case, "ours": f"{number(row['value'])}{unit}"}
    rounds = row.get("rounds") or []
    if len(rounds) > 1:
        line["spread"] = f"{number(min(rounds))} to {number(max(rounds))} in {len(rounds)}"
    if row.get("published") is not None:
        line["published"] = f"{number(row['published'])}{unit}"
    return line


def figures_of(run: dict[str, Any], file: Path) -> list[dict[str, str]]:
    report = file.with_suffix(".jsonl")
    if report.exists() == ("figures" in run):
        raise Wrong(f"{file.name}: figures are either in it or in {report.name}, by hand or as a report")
    if "figures" in run:
        by_hand: list[dict[str, str]] = run["figures"]
        return by_hand
    rows = [row for row in rows_of(report) if selected(row, run.get("show", []))]
    if not rows:
        raise Wrong(f"{report.name}: nothing of it is selected by `show`")
    first = rows[0]["case"]
    alike = {name for name in first if all(row["case"].get(name) == first[name] for row in rows)} if rows[1:] else set()
    # A metric's cases one below the other, in the report's order.
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    return [figure(row, alike) for row in sorted(rows, key=lambda row: metrics.index(row["metric"]))]


def read(file: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(file.read_text())
    if not NEEDED <= run.keys() <= KNOWN:
        raise Wrong(f"{file.name}: missing or unknown: {sorted(NEEDED - run.keys() | run.keys() - KNOWN)}")
    if run["part"] not in PARTS:
        raise Wrong(f"{file.name}: no part of the page is called {run['part']!r}")
    for line in run.get("figures", []):
        if not {"what", "ours"} <= line.keys() <= COLUMNS.keys():
            raise Wrong(f"{file.name}: {line}: a figure has {', '.join(COLUMNS)}")
    return run


def table(lines: list[dict[str, str]]) -> Iterator[str]:
    columns = [name for name in COLUMNS if any(line.get(name) for line in lines)]
    yield f"| {' | '.join(COLUMNS[name] for name in columns)} |"
    yield f"|{'---|' * len(columns)}"
    before = ""
    for line in lines:
        # The subject stands once, before its cases.
        cells = ["" if name == "what" and line[name] == before else line.get(name, "") for name in columns]
        before = line["what"]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def section(run: dict[str, Any], file: Path) -> Iterator[str]:
    yield f"\n### {run['title']}"
    takes = f", {run['takes']}" if "takes" in run else ""
    yield f"```sh\n{run['command']}\n```"
    source = "recorded by hand" if "figures" in run else f"from [{file.stem}.jsonl](figures/{file.stem}.jsonl)"
    yield f"{run['date']}, commit `{run['commit']}`, {run['machine']}{takes}; {source}.\n"
    yield from table(figures_of(run, file))
    for note in run.get("notes", []):
        yield f"\n{note}"


def page(folder: Path) -> str:
    files = sorted(folder.glob("*.json"))
    runs = [(read(file), file) for file in files]
    lines = [BEGIN.rstrip()]
    for part in PARTS:
        of_part = sorted((run.get("order", 0), file.name, run, file) for run, file in runs if run["part"] == part)
        if of_part:
            lines.append(f"\n## {part}")
        for _, _, run, file in of_part:
            lines.extend(section(run, file))
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The machine that this runs on, in a few words."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} processors ({model[1] if model else platform.machine()}), Linux {platform.release()}"


def add(name: str, report: Path, part: str, title: str, command: str) -> None:
    git = ["git", "-c", "safe.directory=*", "-C", str(DOCS), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    date = datetime.date.fromtimestamp(report.stat().st_mtime).isoformat()
    run: dict[str, Any] = {"part": part, "title": title, "command": command}
    run |= {"machine": machine(), "date": date, "commit": commit}
    if part not in PARTS:
        raise Wrong(f"no part of the page is called {part!r}: {', '.join(PARTS)}")
    file = RUNS / f"{name}.json"
    if file.exists():
        # The choice of rows and the notes stay.
        run = {**json.loads(file.read_text()), **run}
        run.pop("figures", None)
    # Reports have thousands of rows: those that the page shows are kept.
    rows = [row for row in rows_of(report) if selected(row, run.get("show", []))]
    file.with_suffix(".jsonl").write_text("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows))
    file.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")


def main(words: list[str]) -> None:
    match words:
        case []:
            pass
        case ["add", name, report, part, title, command]:
            add(name, Path(report), part, title, command)
        case _:
            raise SystemExit(__doc__)
    PAGE.write_text(page(RUNS))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Wrong as wrong:
        raise SystemExit(f"figures.py: {wrong}") from None
