"""docs/cli.md says what the command says."""

from __future__ import annotations

import cli


def test_the_page_is_what_the_command_prints() -> None:
    assert cli.PAGE.read_text() == cli.page(cli.PROGRAM), "run docs/cli.py"


def test_subcommands_are_found() -> None:
    text = "Usage: a\n\nCommands:\n  run    Hold a lock\n  array  Shared\n  help   Print\n\nOptions:\n  -h  Print\n"
    assert cli.names(text) == ["run", "array"]
    assert cli.names("Usage: a\n\nOptions:\n  -h  Print\n") == []
