"""docs/array-tour.sh, with real processes and fio: what docs/array.md promises of arrays."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

DOCS = Path(__file__).parent
TARGET = DOCS.parent / "target"
LIMIT = 300  # seconds
PORTS = 5


def free_ports() -> int:
    """The first of some ports in a row that nobody uses."""
    for first in range(20000, 30000, PORTS):
        with ExitStack() as held:
            try:
                for port in range(first, first + PORTS):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("there are no free ports")


@pytest.mark.skipif("LOCKIFY_TEST_NBD" not in os.environ, reason="needs fio; LOCKIFY_TEST_NBD=1 runs it")
def test_the_tour_ends_with_a_clean_scrub() -> None:
    # On a disk: what is in memory may refuse direct I/O.
    with tempfile.TemporaryDirectory(dir=TARGET) as folder:
        env = {**os.environ, "LOCKIFY": str(TARGET / "debug" / "lockify"), "PORT": str(free_ports())}
        tour = subprocess.run(
            [DOCS / "array-tour.sh", folder],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
        )  # fmt: skip
        logs = "".join(f"-- {log.name}\n{log.read_text()}" for log in sorted(Path(folder).glob("*.log")))
    assert tour.returncode == 0, f"{tour.stdout}\n{logs}"
    assert "fio on host 1 has noticed nothing" in tour.stdout
    assert tour.stdout.endswith("stripes: all fit\n")
