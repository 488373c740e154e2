"""The commands of docs/start and docs/concepts run as they stand, and print what the page says. Needs `cargo build`.

A page's blocks marked `sh` are one script, in an empty folder, in namespaces of its own. The block marked `text` behind
one has its output, but for numbers, times and folders. Blocks marked `console` cannot run on a machine for tests.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parent
PROGRAMS = DOCS.parent / "target" / "debug"
TRIED = [DOCS / "start", DOCS / "concepts"]
PAGES = sorted(page for folder in TRIED for page in folder.glob("*.md"))
LIMIT = 120  # seconds

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AFTER = "-- after block"

# A machine where Lockify was never used: no cluster's files, and no state of this user.
FRESH = """
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
install -d -m 700 /var/lib/lockify/user/$(id -u)
ip link set lo up
"""


class Step(NamedTuple):
    """A block of commands, and what it is said to print."""

    commands: str
    prints: str | None


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    end = -1
    for block in BLOCK.finditer(page):
        kind, content = block.groups()
        if kind == "sh":
            found.append(Step(content, None))
        elif kind == "text" and found and block.start() == end + 1:
            found[-1] = found[-1]._replace(prints=content)
        end = block.end() if kind == "sh" else -1
    return found


def script(page: list[Step]) -> str:
    marked = (f"{step.commands}echo '{AFTER}'\n" for step in page)
    return f'set -eu\n{FRESH}cd "$FOLDER"\n{"".join(marked)}'


def shape(text: str) -> str:
    """A text without what differs from one run to the next."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"/\S+/(?=node\d)", "FOLDER/", text)
    text = re.sub(r"\((?:\d+(?:\.\d+)?(?:[mun]?s|m|h) ?)+\)", "(TIME)", text)
    # Longer than a node's number: processes, tokens, views.
    text = re.sub(r"(?<=pid )\d+|\d{6,}", "NUMBER", text)
    # The table of nodes ends with messages sent.
    text = re.sub(r"(?<=runs)( +\d+) +\d+$", r"\1 NUMBER", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+", " ", text).strip()


def run(page: list[Step], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"], "/usr/sbin", "/sbin"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKIFY_")}
    # Everything ends with its first process.
    alone = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation=private"]
    return subprocess.run(
        ["timeout", "--kill-after=5", str(LIMIT), *alone, "bash", "-c", script(page)],
        cwd=folder, env={**env, "PATH": path, "FOLDER": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip


def test_there_are_pages_with_commands() -> None:
    assert sum(len(steps(page.read_text())) for page in PAGES) > 10


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
@pytest.mark.parametrize("page", [page for page in PAGES if steps(page.read_text())], ids=lambda page: page.stem)
def test_a_pages_commands_do_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = steps(page.read_text())
    done = run(blocks, tmp_path)
    printed = done.stdout.split(f"{AFTER}\n")
    assert done.returncode == 0, f"exit code {done.returncode} in block {len(printed)}\n{done.stdout}\n{done.stderr}"
    for step, found in zip(blocks, printed[:-1], strict=True):
        if step.prints is not None:
            assert shape(found) == shape(step.prints), f"after\n{step.commands}\nprinted\n{found}"


def test_every_command_is_marked_as_one() -> None:
    for page in PAGES:
        kinds = {block[1] for block in BLOCK.finditer(page.read_text())}
        assert kinds <= {"sh", "text", "console", "toml", "rust", "python", "c"}, f"{page.name}: {kinds}"


def test_what_differs_between_runs_is_left_out() -> None:
    one = "  node 1 pid 24 holds EX since 2026-11-25T21:48:26.247Z (1s), token 8070450540837863427\n"
    other = "  node 1 pid 2417 holds EX since 2027-01-02T03:04:05.6Z (1s 20ms), token 8070450540837863999\n"
    assert shape(one) == shape(other)
    assert shape(one) != shape(other.replace("EX", "PR"))
    assert shape(one) != shape(other.replace("node 1", "node 2"))


def test_blocks_are_told_apart() -> None:
    page = "```sh\na\n```\n```text\n1\n```\n\n```sh\nb\n```\n\n```text\nnot of b\n```\n```console\n$ c\n```\n"
    assert steps(page) == [Step("a\n", "1\n"), Step("b\n", None)]
