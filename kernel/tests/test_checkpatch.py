# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own checkpatch.pl, with --strict, has nothing to say about what kernel/apply makes of a source.

The patch that it judges has all of src/ in it, as new files, and every hook. Needs the packages linux-source-6.12 and
linux-source-6.1, whose hooks differ, and fails without.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

KERNELS = ("6.12", "6.1")
# A patch in a mail has a description and a signature, this one is in none.
NO_MAIL = ("--no-signoff", "--ignore", "COMMIT_MESSAGE")
# Complaints that are not followed: file, type, why.
KEPT = (
    ("fs/dlm/claim_trace.h", "OPEN_ENDED_LINE", "TRACE_EVENT() is written so in every tracing header"),
    ("fs/dlm/claim_trace.h", "PARENTHESIS_ALIGNMENT", "the same"),
)
# The two stock functions get other names; their parameters, lines of the kernel, stay where they were.
RENAMED = re.compile(r"^\+int dlm_stock_(?:lock|unlock)\(")


def unpack(kernel: str, members: tuple[str, ...], into: Path) -> Path:
    tarball = Path(f"/usr/src/linux-source-{kernel}.tar.xz")
    assert tarball.exists(), f"apt install linux-source-{kernel}"
    into.mkdir()
    command = ["tar", "-x", "-f", str(tarball), "-C", str(into), "--strip-components=1"]
    command += ["--wildcards", "--no-wildcards-match-slash", *(f"*/{member}" for member in members)]
    subprocess.run(command, check=True, timeout=600)
    return into


@pytest.fixture(scope="module")
def stock(applier: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hooks' changes for each kernel, and the newest checkpatch with its lists. It reads a whole tarball: 13 s."""
    folder = tmp_path_factory.mktemp("stock")
    tools = ("scripts/checkpatch.pl", "scripts/spelling.txt", "scripts/const_structs.checkpatch")

    def one(kernel: str) -> Path:
        files = sorted({hook.file for hook in applier.load_hooks(kernel)})
        members = ("Makefile", "include/linux/dlm.h", *files, *(tools if kernel == KERNELS[0] else ()))
        return unpack(kernel, members, folder / kernel)

    with ThreadPoolExecutor() as pool:
        return dict(zip(KERNELS, pool.map(one, KERNELS), strict=True))


@pytest.fixture
def patched(
    applier: ModuleType, stock: dict[str, Path], tmp_path: Path
) -> Callable[[str], Path]:
    """A stock source with the claim, beside itself without: `b` and `a`, as in a patch."""

    def make(kernel: str) -> Path:
        (tmp_path / "a").symlink_to(stock[kernel])
        subprocess.run(["cp", "-r", str(stock[kernel]), str(tmp_path / "b")], check=True, timeout=60)
        applier.apply(tmp_path / "b", kernel)
        return tmp_path

    return make


def patch(folder: Path) -> list[str]:
    """Without the lines that tell how it was made, which checkpatch would take for a description."""
    command = ["diff", "-urN", "a/", "b/"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("diff ")]


def said(stock: dict[str, Path], lines: list[str], folder: Path) -> list[str]:
    """The complaints of checkpatch about a patch that are not kept."""
    (folder / "patch").write_text("\n".join(lines) + "\n")
    program = stock[KERNELS[0]] / "scripts/checkpatch.pl"
    command = ["perl", str(program), "--no-tree", "--strict", "--terse", "--show-types", *NO_MAIL, "patch"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert re.search(r"total: .* lines checked", done.stdout), done.stdout + done.stderr
    found = re.findall(r"^patch:(\d+): (\w+:(\w+): .*)$", done.stdout, re.M)
    assert len(found) == done.stdout.count("\npatch:") + done.stdout.startswith("patch:"), done.stdout
    return [
        f"{file_of(lines, int(number))}: {words}: {lines[int(number) - 1]}"
        for number, words, kind in found
        if not kept(lines, int(number), kind)
    ]


def file_of(lines: list[str], number: int) -> str:
    return next(line.split()[1].removeprefix("b/") for line in reversed(lines[:number]) if line.startswith("+++ "))


def kept(lines: list[str], number: int, kind: str) -> bool:
    if kind == "PARENTHESIS_ALIGNMENT" and any(map(RENAMED.match, lines[number - 2 : number])):
        return True
    return (file_of(lines, number), kind) in {(file, kind) for file, kind, _ in KEPT}


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_said(stock: dict[str, Path], patched: Callable[[str], Path], kernel: str) -> None:
    folder = patched(kernel)
    assert said(stock, patch(folder), folder) == []


def test_something_would_be(stock: dict[str, Path], patched: Callable[[str], Path]) -> None:
    """In a file of ours and in a hook, even where some types are kept."""
    folder = patched("6.12")
    source = folder / "b/fs/dlm/claim.c"
    source.write_text(source.read_text() + "static int  x( void )\n{\n    return(1);\n}\n")
    hooked = folder / "b/fs/dlm/lock.c"
    hooked.write_text(hooked.read_text() + "\n\nstatic inline void y(int a,\n int b) {}\n")
    told = "\n".join(said(stock, patch(folder), folder))
    for found in ("ERROR:SPACING", "WARNING:LEADING_SPACE", "ERROR:RETURN_PARENTHESES"):
        assert f"fs/dlm/claim.c: {found}" in told, told
    assert "fs/dlm/lock.c: CHECK:PARENTHESIS_ALIGNMENT" in told, told
