"""The kernel's selftest of the claim's switch and counters (kernel/src/tools/testing/selftests/dlm) in a node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lockify_lab import Kernel, Lab, host, sources

PROGRAM = host.REPOSITORY / "kernel/src/tools/testing/selftests/dlm/claim.c"
MOUNTED = """
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
"""


def _compile(folder: Path) -> None:
    """Beside the kernel's header for selftests, as in its tree."""
    tree = host.cache_dir() / f"tree-{sources.find(Kernel.default().version).package}"
    (folder / "dlm").mkdir()
    shutil.copy(tree / "source/tools/testing/selftests/kselftest.h", folder)
    shutil.copy(PROGRAM, folder / "dlm")
    command = ["cc", "-Wall", "-Werror", "-O2", "-o", folder / "claim", folder / "dlm/claim.c"]
    subprocess.run(command, check=True, timeout=60)


def test_the_switch_and_the_counters(lab: Lab) -> None:
    lab.up(nodes=1, fs="none", stack="none")
    # The node sees this folder as /run/lab.
    _compile(lab.folder)
    # Twice: the first run leaves nothing behind.
    for _ in range(2):
        lab.sh(f"{MOUNTED}timeout 60 /run/lab/claim >/run/lab/claim.out", timeout=120)
        said = (lab.folder / "claim.out").read_text("utf-8")
        assert "# Totals: pass:10 fail:0" in said, said
        assert "skip:0" in said and "not ok" not in said, said
