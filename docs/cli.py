"""Writes docs/cli.md from what the command itself says: `docs/cli.py [PROGRAM]`, by default target/debug/lockify."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "cli.md"
PROGRAM = DOCS.parent / "target" / "debug" / "lockify"

COMMANDS = re.compile(r"^Commands:\n((?:  .*\n|\n(?=  ))*)", re.MULTILINE)
ALL, RUN = r"^Exit codes:\n(?P<all>(?:  .*\n)*?)", r"  run ends as [^\n]*\n(?P<run>(?:  \d+ .*\n)*)"
EXIT_CODES = re.compile(ALL + RUN, re.MULTILINE)

BEGIN = """# The command

`docs/cli.py` writes this page from the output of `lockify help`. The [packages](packages.md) have manual pages, too.

Every command finds its daemon by itself; `--socket` and `LOCKIFY_SOCKET` name another one ([which daemon](domain.md)).

## Exit codes
"""

BETWEEN = """
`lockify run` ends as its command does (128 + N if signal N ended it), or with

"""


def help_of(program: Path, words: tuple[str, ...]) -> str:
    # Neither the reader's settings nor the width of a terminal.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKIFY_")}
    asked = [str(program), *words, "--help"]
    done = subprocess.run(asked, env=env, check=True, capture_output=True, text=True)
    return str(done.stdout)


def names(text: str) -> list[str]:
    """The subcommands that a help text lists."""
    listed = COMMANDS.search(text)
    found = re.findall(r"^  ([a-z][a-z-]*)(?: |$)", listed[1], re.MULTILINE) if listed else []
    return [name for name in found if name != "help"]


def helps(program: Path, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """A command's help and that of all its subcommands."""
    text = help_of(program, words)
    yield words, text
    for name in names(text):
        yield from helps(program, (*words, name))


def table(codes: str) -> str:
    rows = re.findall(r"^  (\d+) +(.+)$", codes, re.MULTILINE)
    return "| code | meaning |\n|---|---|\n" + "".join(f"| {code} | {meaning} |\n" for code, meaning in rows)


def page(program: Path) -> str:
    texts = dict(helps(program))
    codes = EXIT_CODES.search(texts[()])
    assert codes, "lockify --help lists no exit codes"
    parts = [BEGIN, table(codes["all"]), BETWEEN, table(codes["run"])]
    for words, text in texts.items():
        # Each command repeats the codes.
        text = text.partition("\nExit codes:")[0].rstrip()
        level = "##" if len(words) < 2 else "###"
        text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
        parts.append(f"\n{level} {' '.join(('lockify', *words))}\n```text\n{text}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(Path(sys.argv[1]) if sys.argv[1:] else PROGRAM))
