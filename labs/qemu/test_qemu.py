# SPDX-License-Identifier: GPL-2.0-only
"""The conclusions of labs/qemu/qemu from its input; the run itself needs many minutes and is not a test."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def qemu() -> ModuleType:
    """The program, which has no suffix, as a module."""
    sys.dont_write_bytecode = True
    loader = SourceFileLoader("qemu", str(Path(__file__).resolve().with_name("qemu")))
    spec = importlib.util.spec_from_loader("qemu", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["qemu"] = module
    loader.exec_module(module)
    return module


def nodes_that_say(qemu: ModuleType, monkeypatch: pytest.MonkeyPatch, *said: str) -> list[Any]:
    monkeypatch.setattr(qemu.Node, "sh", lambda node, script, limit_s=0: said[node.number - 1])
    return [qemu.Node(number, Path("/nonexistent")) for number in range(1, len(said) + 1)]


def test_races_are_of_one_name_on_one_node(qemu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    one = "C 1.0 aa\nR 2.0 aa\nC 2.05 aa\nC 2.06 aa\nR 3.0 bb\n"
    two = "C 3.5 bb\nR 4.0 cc\nC 5.0 cc\n"
    races = qemu.close_races(nodes_that_say(qemu, monkeypatch, one, two))
    assert races == {"claims": 2, "within_100_ms": 1, "closest_ms": 50.0}
    none = qemu.close_races(nodes_that_say(qemu, monkeypatch, "", "C 1.0 aa\n"))
    assert none == {"claims": 0, "within_100_ms": 0, "closest_ms": None}


def test_counters_add_up_but_maxima(qemu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_that_say(
        qemu, monkeypatch, "claims 3\nbarrier_wait_max_us 9\nagreed 1\n", "claims 4\nbarrier_wait_max_us 5\nagreed 1\n"
    )
    assert qemu.counters(nodes) == {"claims": 7, "barrier_wait_max_us": 9, "agreed": 1}


def test_one_that_fails_ends_the_others(qemu: ModuleType) -> None:
    child = subprocess.Popen(["sleep", "60"])
    nodes = [qemu.Node(1, Path("/nonexistent")), qemu.Node(2, Path("/nonexistent"), process=child)]

    def step(node: Any) -> int:
        if node.number == 1:
            raise qemu.Failed("node 1 is broken")
        return int(node.process.wait(timeout=50))

    try:
        with pytest.raises(qemu.Failed, match="node 1 is broken"):
            qemu.together(nodes, step)
        assert child.returncode == -9
    finally:
        nodes[1].end()


def test_a_kernel_that_is_not_installed(qemu: ModuleType, tmp_path: Path) -> None:
    options = argparse.Namespace(image=None, release="6.12.0-none")
    with pytest.raises(qemu.Failed, match="apt download linux-image-6.12.0-none"):
        qemu.find_image(options, tmp_path)


def test_races_of_the_claim_are_told_from_stock_ones(qemu: ModuleType) -> None:
    line = "[    9.1] =================================================================="
    stock = f"{line}\n[ 9.1] BUG: KCSAN: data-race in glock_work_func / run_queue\n[ 9.1]  do_xmote+0x10/0x20\n{line}\n"
    ours = f"{line}\n[ 9.2] BUG: KCSAN: data-race in dlm_lock / dlm_unlock\n[ 9.2]  dlm_claim_settle+0x1/0x2\n{line}\n"
    between = "[ 9.3] dlm_claim: nothing of a race\n"
    counts, found = qemu.races(stock + between + ours + stock)
    assert counts == {"glock_work_func / run_queue": 2, "dlm_lock / dlm_unlock": 1}
    assert found == ["data race in dlm_lock / dlm_unlock"]


def test_a_kernel_that_was_not_built_is_named(qemu: ModuleType, tmp_path: Path) -> None:
    options = argparse.Namespace(kernel=tmp_path / "none")
    with pytest.raises(qemu.Failed, match="labs/qemu/kernel"):
        qemu.find_built(options)
