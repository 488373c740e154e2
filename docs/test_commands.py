"""Every command `lockify …` that a page shows is one that docs/cli.md has, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from test_links import ROOT, pages

HELP = ROOT / "docs" / "cli.md"

SECTION = re.compile(r"^###? lockify(?P<words>[a-z -]*)\n```text\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"^ +(?:(-\w), )?(--[a-z-]+)?", re.MULTILINE)
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(lockify [^`]+)`(?!`)")
# Not a part of a path, as in `/etc/lockify`.
IN_LINE = re.compile(r"(?<![\w/.-])lockify (?=[a-z])")
ALWAYS = {"-h", "--help", "-V", "--version"}


class Command(NamedTuple):
    options: set[str]
    takes_arguments: bool


@cache
def commands() -> dict[tuple[str, ...], Command]:
    """Each command of docs/cli.md, by its words."""
    found = {}
    for section in SECTION.finditer(HELP.read_text()):
        options = {name for line in OPTION.findall(section["text"]) for name in line if name}
        found[tuple(section["words"].split())] = Command(options | ALWAYS, "\nArguments:\n" in section["text"])
    return found


def of(words: list[str]) -> tuple[str, ...] | None:
    """The longest command that these words begin with."""
    fits = [words[:length] for length in (2, 1) if tuple(words[:length]) in commands()]
    return tuple(fits[0]) if fits else None


def shown(page: str) -> Iterator[str]:
    """The commands that a page shows, from their name to the end of the line."""
    for block in BLOCK.finditer(page):
        for line in block[1].replace("\\\n", " ").splitlines():
            yield from (line[start.start() :] for start in IN_LINE.finditer(line))
    for span in SPAN.finditer(BLOCK.sub("", page)):
        yield span[1]


def words_of(command: str) -> list[str]:
    """A command's words, without `lockify`, up to the end of the command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()<>"):
                break
            words.append(word)
    except ValueError:
        # A quotation that goes on in the next line: its words are no options.
        pass
    return words[1:]


def complaint(command: str) -> str | None:
    words = words_of(command)
    if not words or words[0] == "help" or not re.fullmatch(r"[a-z][a-z-]*", words[0]):
        # `lockify SUBCOMMAND`, or an option that all have.
        return None
    name = of(words)
    if name is None:
        return f"lockify has no {words[0]}"
    rest = words[len(name) :]
    if rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]) and not commands()[name].takes_arguments:
        return f"lockify {' '.join(name)} has no {rest[0]}"
    for word in rest:
        if word == "--":
            break
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", option) and option not in commands()[name].options:
            return f"lockify {' '.join(name)} has no {option}"
        # The lock's name: the rest is another command's.
        if name == ("run",) and not word.startswith("-") and not re.fullmatch(r"[\d.]+m?s?", word):
            break
    return None


def test_every_command_on_a_page_is_one() -> None:
    wrong = []
    for page in pages():
        if page != HELP:
            found = ((command, complaint(command)) for command in shown(page.read_text()))
            wrong += [f"{page.relative_to(ROOT)}: `{command}`: {why}" for command, why in found if why]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_command_line_is_read() -> None:
    assert len(commands()) > 40
    assert {"-w", "--timeout", "--shared"} <= commands()["run",].options
    assert "--after" not in commands()["who",].options


def test_commands_are_found() -> None:
    page = "```sh\nlockify run -n a -- lockify who a\nA=1 lockify status | grep x\n```\nAs `lockify top` says.\n"
    assert [words_of(command)[0] for command in shown(page)] == ["run", "who", "status", "top"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("lockify hold a", "lockify has no hold"),
        ("lockify status --jsn", "lockify status has no --jsn"),
        ("lockify cluster add 4", "lockify cluster has no add"),
        ("lockify cluster join 4 b:1 --force", "lockify cluster join has no --force"),
        ("lockify run --exclusively a", "lockify run has no --exclusively"),
    ],
)
def test_a_wrong_command_is_found(command: str, why: str) -> None:
    assert complaint(command) == why


@pytest.mark.parametrize(
    "command",
    ["lockify run -w 10 a -- rsync --delete", "lockify run -w 10 a rsync -z", "lockify SUBCOMMAND", "lockify status; x -y"],
)
def test_a_right_command_passes(command: str) -> None:
    assert complaint(command) is None
