"""Tests of debug kernels: run there, and elsewhere no part of the run, which is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lockify_lab import build

LAB = Path(__file__).resolve().parent.parent
FILE = "test_no_memory.py"


def collected(kernel: str) -> str:
    command = [sys.executable, "-B", "-m", "pytest", "--collect-only", "-q", f"tests/defects/{FILE}", __file__]
    env = os.environ | {build.DEFAULT_VARIABLE: kernel}
    done = subprocess.run(command, cwd=LAB, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_are_no_part_of_a_run_with_others() -> None:
    told = collected("6.12")
    assert f"tests need a debug kernel (labs/kernels/lab test --debug): {FILE}" in told
    assert f"{FILE}::" not in told and " deselected)" in told
    told = collected("6.12-debug")
    assert f"{FILE}::test_claims_are_not_sent" in told
    assert " deselected)" not in told
