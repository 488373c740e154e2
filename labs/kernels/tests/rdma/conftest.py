"""Three nodes with Soft-RoCE, for all tests of this folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockify_lab import Lab, programs

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("test-rdma") as made:
        # The largest packet of RDMA is 4096 bytes, and its headers.
        made.up(nodes=3, fs="none", stack="none", memory="512M", mtu=4300)
        made.sh("rdma link add rxe0 type rxe netdev vec0")
        for program in (programs.need("lockify"), programs.need("examples/verbs"), HERE / "inside.py"):
            shutil.copy(program, made.folder)  # the nodes see this folder as /run/lab
        compiled = ["cc", "-O2", "-Wall", "-o", made.folder / "clock", HERE / "clock.c"]
        subprocess.run(compiled, check=True, timeout=60)
        yield made
