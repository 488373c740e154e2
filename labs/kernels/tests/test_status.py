"""`status` tells of every lab, whatever other commands do to labs meanwhile."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockify_lab import Lab, control
from lockify_lab.host import locked

COMMAND = Path(__file__).resolve().parents[1] / "lab"
NAME = f"status-{os.getpid()}"


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The only one, so that `--all` speaks of no other."""
    monkeypatch.setenv("LOCKIFY_LAB_DIR", str(tmp_path_factory.mktemp("labs")))
    with Lab(NAME) as made:
        yield made


def _all() -> str:
    result = subprocess.run([COMMAND, "status", "--all"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_lab_has_a_state_at_every_moment_of_its_life(lab: Lab) -> None:
    """Also where files of it are not there yet, or gone already."""
    told: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            told.add(_all().splitlines()[0])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(3):
            lab.up(nodes=1, fs="none", stack="none")
            lab.down()
        lab.up(nodes=1, fs="none", stack="none")
    finally:
        over.set()
        watcher.join()
    states = ("being set up", "up", "being ended", "left behind: `labs/kernels/lab down` removes it", "down")
    assert told <= {"no lab runs"} | {f"lab {NAME}: {state}" for state in states}
    assert f"lab {NAME}: up" in _all()
    # Above, a slow `status` may look at no moment of it.
    with locked(lab.folder.parent / f".{NAME}.lock", 10, "the lab"):
        assert f"lab {NAME}: being set up" in _all()


def test_a_lab_without_its_options_is_told(lab: Lab) -> None:
    lab.up(nodes=1, fs="none", stack="none")
    (lab.folder / "options.json").rename(lab.folder / "options.gone")
    assert control.alive(lab.folder)
    assert _all() == f"lab {NAME}: being ended\n"
    (lab.folder / "options.gone").rename(lab.folder / "options.json")
    assert _all().startswith(f"lab {NAME}: up\n")
    control.end(lab.folder, 30)
    assert _all() == "no lab runs\n"
