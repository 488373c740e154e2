# SPDX-License-Identifier: GPL-2.0-only
"""kernel/apply fits every hook or changes nothing, and says which and why."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent


def skeleton(applier: ModuleType, tree: Path, kernel: str = "6.12") -> None:
    """A tree with nothing but what the hooks look for."""
    version, patchlevel = kernel.split(".")
    tree.mkdir(exist_ok=True)
    (tree / "Makefile").write_text(f"VERSION = {version}\nPATCHLEVEL = {patchlevel}\n")
    definitions: dict[tuple[str, str | None], list[str]] = {}
    for hook in applier.load_hooks(kernel):
        lines = definitions.setdefault((hook.file, hook.within), [])
        if hook.anchor and list(hook.anchor) not in [
            lines[i : i + len(hook.anchor)] for i in range(len(lines))
        ]:
            lines.extend(hook.anchor)
    for file in {file for file, _ in definitions} - set(applier.load_sources(kernel)):
        write_file(tree / file, {w: a for (f, w), a in definitions.items() if f == file})


def write_file(path: Path, definitions: dict[str | None, list[str]]) -> None:
    inner = {within for within in definitions if within}
    lines = []
    for within in inner:
        lines += [within if within.endswith("{") else within + "void)\n{"]
        lines += ["\t" + anchor for anchor in definitions[within]] + ["}"]
    lines += [line for line in definitions.get(None, []) if line not in inner]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def contents(tree: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(tree.rglob("*")) if path.is_file()}


@pytest.fixture
def tree(applier: ModuleType, tmp_path: Path) -> Path:
    skeleton(applier, tmp_path / "linux")
    return tmp_path / "linux"


@pytest.mark.parametrize("kernel", ["7.2", "6.12", "6.1"])
def test_every_hook_is_applied_and_every_file_copied(
    applier: ModuleType, tmp_path: Path, kernel: str
) -> None:
    tree = tmp_path / "linux"
    skeleton(applier, tree, kernel)
    before = contents(tree)
    hooks = applier.load_hooks(kernel)
    assert applier.apply(tree) == len(hooks)
    changed = {path for path, text in before.items() if path.read_text() != text}
    sources = applier.load_sources(kernel)
    assert changed == {tree / hook.file for hook in hooks if hook.file not in sources}
    hooked = {hook.file for hook in hooks}
    assert set(sources) == {str(path.relative_to(KERNEL / "src")) for path in (KERNEL / "src").rglob("*") if path.is_file()}
    for name, text in sources.items():
        assert ((tree / name).read_text() == text) != (name in hooked)


def test_each_hook_that_does_not_fit_is_named_and_nothing_changes(
    applier: ModuleType, tree: Path
) -> None:
    for hook in applier.load_hooks("6.12"):
        if not hook.anchor or hook.file in applier.load_sources("6.12"):
            continue
        path = tree / hook.file
        good = path.read_text()
        path.write_text(good.replace(hook.anchor[-1], "something else"))
        before = contents(tree)
        with pytest.raises(applier.Refused) as refused:
            applier.apply(tree)
        assert hook.file in str(refused.value)
        assert "hooks.toml" in str(refused.value)
        assert contents(tree) == before
        path.write_text(good)


def test_an_anchor_that_occurs_twice_is_refused(applier: ModuleType, tree: Path) -> None:
    path = tree / "fs/dlm/lock.c"
    anchor = "\tswitch (ms->m_type) {"
    path.write_text(path.read_text().replace(anchor, f"{anchor}\n{anchor}"))
    with pytest.raises(applier.Refused, match="claim-messages.*2 times"):
        applier.apply(tree)


def test_a_missing_file_is_refused(applier: ModuleType, tree: Path) -> None:
    (tree / "fs/gfs2/rgrp.c").unlink()
    with pytest.raises(applier.Refused, match="fs/gfs2/rgrp.c.*no such file"):
        applier.apply(tree)


def test_a_tree_that_has_the_claim_is_refused(applier: ModuleType, tree: Path) -> None:
    applier.apply(tree)
    before = contents(tree)
    with pytest.raises(applier.Refused, match="already"):
        applier.apply(tree)
    assert contents(tree) == before


def test_another_version_is_refused(applier: ModuleType, tree: Path) -> None:
    with pytest.raises(applier.Refused, match="is Linux 6.12, not 6.1"):
        applier.apply(tree, "6.1")
    (tree / "Makefile").write_text("VERSION = 5\nPATCHLEVEL = 10\n")
    with pytest.raises(applier.Refused, match="5.10.*hooks for 7.2, 6.12 and 6.1 only"):
        applier.apply(tree)


def test_what_is_no_kernel_is_refused(applier: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(applier.Refused, match="no kernel source"):
        applier.apply(tmp_path)
    (tmp_path / "Makefile").write_text("all:\n")
    with pytest.raises(applier.Refused, match="does not tell a version"):
        applier.apply(tmp_path)


def test_hooks_go_where_they_say(applier: ModuleType, tree: Path) -> None:
    applier.apply(tree)
    lines = (tree / "fs/dlm/lock.c").read_text().split("\n")
    at = lines.index("\tswitch (ms->m_type) {")
    assert lines[at - 3 : at] == ["\tif (dlm_claim_receive(ls, ms))", "\t\treturn;", ""]
    assert "int dlm_stock_lock(dlm_lockspace_t *lockspace," in lines
    assert "int dlm_lock(dlm_lockspace_t *lockspace," not in lines


def test_a_part_of_a_tree_gets_what_is_compiled(applier: ModuleType, tree: Path) -> None:
    for path in contents(tree):
        if path.relative_to(tree).parts[0] not in ("Makefile", "fs", "include"):
            path.unlink()
    with pytest.raises(applier.Refused, match="MAINTAINERS.*no such file"):
        applier.apply(tree)
    applier.apply(tree, code=True)
    assert {path.relative_to(tree).parts[0] for path in contents(tree)} == {"Makefile", "fs", "include"}
    assert (tree / "fs/dlm/claim.c").exists()


def test_a_kernel_gets_its_own_lines_of_the_sources(applier: ModuleType) -> None:
    text = "a\n#if LINUX_6_1\nold\n#ifdef X\nx\n#else\ny\n#endif\n#else\nnew\n#endif\n#if Z\nz\n#else\nw\n#endif\nb\n"
    kept = "#if Z\nz\n#else\nw\n#endif\nb\n"
    assert applier.for_kernel(text, "6.1") == "a\nold\n#ifdef X\nx\n#else\ny\n#endif\n" + kept
    assert applier.for_kernel(text, "6.12") == applier.for_kernel(text, "7.2") == "a\nnew\n" + kept
    for kernel in applier.KERNELS:
        assert not any("if LINUX_" in text for text in applier.load_sources(kernel).values())


def test_one_definition_may_have_two_first_lines(applier: ModuleType) -> None:
    hook = applier.Hook(
        name="x", patch="p", file="f", within="int f(", anchor=("a();",), place="before", text="b();"
    )
    lines = ["#ifdef X", "int f(int a)", "#else", "int f(void)", "#endif", "{", "\ta();", "}"]
    assert applier.apply_hook(lines, hook)[6:8] == ["\tb();", "\ta();"]


def test_declarations_are_no_definitions(applier: ModuleType) -> None:
    hook = applier.Hook(
        name="x", patch="p", file="f", within="int f(", anchor=("a();",), place="before", text="b();"
    )
    lines = ["int f(int a,", "\tint b);", "int f(int a,", "\tint b)", "{", "\ta();", "}"]
    assert applier.apply_hook(lines, hook)[5] == "\tb();"


def test_command_line_tells_success_and_failure(applier: ModuleType, tree: Path) -> None:
    command = [str(KERNEL / "apply"), str(tree)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert first.returncode == 0, first.stderr
    assert f"{len(applier.load_hooks('6.12'))} hooks applied" in first.stdout
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert second.stderr.startswith("kernel/apply: nothing was changed:")
