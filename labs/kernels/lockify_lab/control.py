"""Talking to a lab's supervisor, starting and ending it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .errors import Exit, LabError
from .host import PACKAGE, is_locked
from .node import wait_gone

LIMIT = 10.0  # the supervisor answers at once; a machine under load needs some of this


def request(folder: Path, do: str, **more: Any) -> dict[str, Any]:
    reply, handed = request_with_sockets(folder, do, **more)
    for fd in handed:
        os.close(fd)
    return reply


def request_with_sockets(folder: Path, do: str, **more: Any) -> tuple[dict[str, Any], list[int]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(LIMIT)
        try:
            connection.connect(str(folder / "control.sock"))
            connection.sendall(json.dumps({"do": do, **more}).encode())
            data, handed, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        except TimeoutError as error:
            raise LabError(
                f"the supervisor of lab {folder.name} does not answer: "
                f"run `labs/kernels/lab down --name {folder.name}`"
            ) from error
        except OSError as error:
            raise LabError(
                f"lab {folder.name} is not running: start it with `labs/kernels/lab up --name {folder.name}`"
            ) from error
    if not data:
        raise LabError(f"the supervisor of lab {folder.name} has ended: start the lab again")
    reply = json.loads(data)
    if "error" in reply:
        raise LabError(reply["error"])
    return reply, handed


def alive(folder: Path) -> bool:
    """Returns true if a supervisor owns the folder: it holds a lock on `alive` for as long as it lives."""
    return is_locked(folder / "alive")


def start(folder: Path, limit: float) -> socket.socket:
    """Starts a supervisor. It ends when the returned leash is closed, until it is released."""
    ours, theirs = socket.socketpair()
    words = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    words += ["--propagation", "private"]
    # The bytecode cache of the package stays out of the clone.
    words += [sys.executable, "-B", "-m", "lockify_lab.supervisor", str(folder), str(theirs.fileno())]
    (folder / "alive").touch()
    with open(folder / "supervisor.log", "wb") as log, theirs:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    (folder / "supervisor.pid").write_text(f"{process.pid} {_begin(process.pid)}\n", encoding="ascii")
    ours.settimeout(limit)
    try:
        told = ours.recv(65536).decode(errors="replace").strip()
    except TimeoutError:
        told = f"failed: not ready after {limit:g} s"
    if told != "ready":
        ours.close()
        log_text = (folder / "supervisor.log").read_text(encoding="utf-8", errors="replace")
        raise LabError(f"the lab's supervisor {told or 'ended'}\n{log_text.strip()}")
    return ours


def release(folder: Path, leash: socket.socket) -> None:
    """From now on the supervisor lives until `end`, whatever becomes of the process that started it."""
    request(folder, "release")
    leash.close()


def end(folder: Path, limit: float) -> None:
    """Ends a lab with everything in it, and removes its folder."""
    if alive(folder):
        try:
            request(folder, "end")
        except LabError:
            pass  # it ends as we ask, or below
        if not _wait_dead(folder, min(limit, 5)):
            _kill(folder)
            if not _wait_dead(folder, limit):
                raise LabError(
                    f"the supervisor of lab {folder.name} does not end: see "
                    f"{folder / 'supervisor.pid'} for its process, and kill that",
                    Exit.TIMEOUT,
                )
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise LabError(f"cannot remove {folder}: remove it by hand")


def _wait_dead(folder: Path, limit: float) -> bool:
    """The lock is free, and the process outside the namespace, which waits for all inside, is gone."""
    stop = time.monotonic() + limit
    while alive(folder):
        if time.monotonic() > stop:
            return False
        time.sleep(0.01)
    pid = _owner(folder)
    return pid is None or wait_gone(pid, max(0.0, stop - time.monotonic()))


def _kill(folder: Path) -> None:
    if (pid := _owner(folder)) is not None:
        os.kill(pid, signal.SIGKILL)


def _owner(folder: Path) -> int | None:
    """The process that holds the namespaces, if it still is the one we started."""
    try:
        pid, begin = (folder / "supervisor.pid").read_text(encoding="ascii").split()
        return int(pid) if _begin(int(pid)) == begin else None
    except (OSError, ValueError):
        return None


def _begin(pid: int) -> str:
    """When a process started, in ticks since boot: tells it from a later one with its number."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rsplit(") ", 1)[1].split()[19]
