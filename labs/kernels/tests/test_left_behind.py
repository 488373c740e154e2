"""However a lab ends, no process, network or mount of it is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lockify_lab import Lab, control, host

COMMAND = str(Path(__file__).resolve().parents[1] / "lab")
NAME = f"left-{os.getpid()}"


def _processes(name: str) -> list[Path]:
    """All processes of a lab have its folder in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(host.labs_dir() / name) in words:
            found.append(process)
    return found


def _networks(processes: Iterable[Path]) -> set[str]:
    """The network namespaces that these processes are in, except this test's own."""
    found = set()
    for process in processes:
        try:
            found.add(os.readlink(process / "ns" / "net"))
        except OSError:
            continue
    return found - {os.readlink("/proc/self/ns/net")}


def _nothing_left(name: str) -> None:
    """The kernel takes a moment to end a namespace."""
    end = time.monotonic() + 10
    while _processes(name) and time.monotonic() < end:
        time.sleep(0.05)
    assert _processes(name) == []
    assert str(host.labs_dir() / name) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(NAME) as made:
        yield made
    assert not made.folder.exists()


@pytest.mark.parametrize("moment", ["supervisor", "boot", "membership"])
def test_up_is_killed(lab: Lab, moment: str) -> None:
    words = [COMMAND, "up", "--name", NAME, "--nodes", "2"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    waited_for = {"supervisor": "file system made", "boot": "nodes booted", "membership": "members of"}[
        moment
    ]
    for line in process.stderr:
        if waited_for in line:
            break
    if moment == "supervisor":
        end = time.monotonic() + 10
        while not control.alive(lab.folder) and time.monotonic() < end:
            time.sleep(0.005)
    networks = _networks(_processes(NAME))
    assert networks, "the test must kill something"
    process.kill()
    process.wait(10)
    process.stderr.close()
    _nothing_left(NAME)
    assert not networks & _networks(Path("/proc").glob("[0-9]*"))
    assert "left behind" in lab.status()["state"]
    lab.up(nodes=1, fs="none", stack="none")  # a leftover folder is in nobody's way
    assert lab.run("true")[0].ok


def test_a_lab_ends_with_the_test_that_uses_it() -> None:
    script = f"""
import time
from lockify_lab import Lab
with Lab({NAME!r}) as lab:
    lab.up(nodes=1, fs="none", stack="none")
    print("up", flush=True)
    time.sleep(300)
"""
    words = [sys.executable, "-B", "-c", script]
    process = subprocess.Popen(words, cwd=Path(COMMAND).parent, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    assert _processes(NAME)
    process.kill()
    process.wait(10)
    process.stdout.close()
    _nothing_left(NAME)
    Lab(NAME).down()


@pytest.mark.parametrize("victim", ["outside", "inside"])
def test_the_supervisor_is_killed(lab: Lab, victim: str) -> None:
    lab.up(nodes=2, fs="none", stack="none")
    owner = int((lab.folder / "supervisor.pid").read_text(encoding="ascii").split()[0])
    children = Path(f"/proc/{owner}/task/{owner}/children").read_text(encoding="ascii").split()
    os.kill(owner if victim == "outside" else int(children[0]), signal.SIGKILL)
    _nothing_left(NAME)
    assert "left behind" in lab.status()["state"]


def test_down_ends_a_supervisor_that_does_not_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.up(nodes=1, fs="none", stack="none")
    owner = int((lab.folder / "supervisor.pid").read_text(encoding="ascii").split()[0])
    children = Path(f"/proc/{owner}/task/{owner}/children").read_text(encoding="ascii").split()
    os.kill(int(children[0]), signal.SIGSTOP)
    monkeypatch.setattr(control, "LIMIT", 1.0)
    assert lab.down()
    _nothing_left(NAME)


def test_a_failed_up_ends_everything_and_shows_the_console(lab: Lab) -> None:
    words = [
        COMMAND,
        "up",
        "--name",
        NAME,
        "--nodes",
        "1",
        "--append",
        "init=/no/such/init",
        "--timeout",
        "30",
    ]
    lab.expect("Requested init /no/such/init failed")
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "No working init found" in result.stderr or "Requested init" in result.stderr
    _nothing_left(NAME)


def test_down_all_takes_every_lab(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKIFY_LAB_DIR", str(tmp_path))
    Lab("one").up(nodes=1, fs="none", stack="none")
    (tmp_path / "left-over").mkdir()
    result = subprocess.run([COMMAND, "down", "--all"], capture_output=True, text=True, timeout=60)
    assert result.stdout == "ended: left-over one\n"
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
