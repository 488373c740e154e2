"""Running scripts in nodes, through the agent that each of them has (inside/agent.py)."""

from __future__ import annotations

import concurrent.futures
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import control
from .errors import Exit, LabError
from .node import last_words

# The agent enforces the limit; we wait this much longer before we call the node dead.
GRACE = 5.0


@dataclass(frozen=True)
class Result:
    """The result of a script on one node. `status` is None if the node died or did not answer."""

    node: int
    status: int | None
    out: str
    err: str
    timed_out: bool
    seconds: float
    failure: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def exit(self) -> Exit:
        if self.ok:
            return Exit.OK
        if self.timed_out:
            return Exit.TIMEOUT
        return Exit.NODE if self.status is None else Exit.SCRIPT

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


OnOutput = Callable[[int, str, bytes], None]


def run(
    folder: Path,
    nodes: Sequence[int],
    script: str,
    limit: float,
    environment: Callable[[int], Mapping[str, str]],
    on_output: OnOutput | None = None,
) -> list[Result]:
    """Runs a script on several nodes at once."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(nodes))) as pool:
        futures = [
            pool.submit(run_one, folder, node, script, limit, environment(node), on_output) for node in nodes
        ]
        return [future.result() for future in futures]


def run_one(
    folder: Path,
    node: int,
    script: str,
    limit: float,
    environment: Mapping[str, str],
    on_output: OnOutput | None = None,
) -> Result:
    """Runs a script on one node; whatever happens, it returns soon after the limit."""
    begin = time.monotonic()
    output: dict[bytes, list[bytes]] = {b"o": [], b"e": []}
    status: int | None = None
    timed_out, failure = False, ""

    def check() -> None:
        state = _state(folder, node)
        if state["state"] not in ("running", "stalled"):
            raise LabError(_dead(folder, node, state), Exit.NODE)

    try:
        with _connect(folder, node, begin + limit) as connection:
            job = {"script": script, "limit": limit, "env": dict(environment)}
            connection.sendall(json.dumps(job).encode() + b"\n")
            while True:
                kind, payload = _frame(connection, begin + limit + GRACE, check)
                if kind == b"x":
                    end = json.loads(payload)
                    status, timed_out = end.get("status"), bool(end.get("timeout"))
                    break
                output[kind].append(payload)
                if on_output:
                    on_output(node, "stdout" if kind == b"o" else "stderr", payload)
    except TimeoutError:
        timed_out, failure = True, _why(folder, node, f"node {node} did not answer within {limit:g} s")
    except OSError as error:
        failure = _why(folder, node, f"the connection to node {node} broke ({error})")
    except LabError as error:
        failure = str(error)
    if timed_out and not failure:
        failure = f"the script ran longer than {limit:g} s and was killed"
    texts = {kind: b"".join(parts).decode(errors="replace") for kind, parts in output.items()}
    seconds = round(time.monotonic() - begin, 4)
    return Result(node, status, texts[b"o"], texts[b"e"], timed_out, seconds, failure)


def wait_up(folder: Path, node: int, end: float) -> None:
    """Waits until a booting node's agent answers."""
    _connect(folder, node, end).close()


def _connect(folder: Path, node: int, end: float) -> socket.socket:
    """Tries again and again: while a node boots, packets to it are lost."""
    while True:
        reply, handed = control.request_with_sockets(folder, "connect", node=node)
        if "dead" in reply:
            raise LabError(_dead(folder, node, reply["dead"]), Exit.NODE)
        connection = socket.socket(fileno=handed[0])
        _, writable, _ = select.select([], [connection], [], min(0.1, max(0, end - time.monotonic())))
        if writable and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection.close()
        if time.monotonic() >= end:
            raise TimeoutError
        time.sleep(0.01)


def _frame(connection: socket.socket, end: float, check: Callable[[], None]) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!cI", _exactly(connection, 5, end, check))
    return kind, _exactly(connection, length, end, check)


def _exactly(connection: socket.socket, length: int, end: float, check: Callable[[], None]) -> bytes:
    """Reads so many bytes. A node that dies says nothing any more, so silence is a reason to `check`."""
    data = bytearray()
    while len(data) < length:
        left = end - time.monotonic()
        connection.settimeout(max(0.001, min(1.0, left)))
        try:
            piece = connection.recv(length - len(data))
        except TimeoutError:
            check()
            if left <= 1.0:
                raise
            continue
        if not piece:
            raise ConnectionError("closed by the node")
        data += piece
    return bytes(data)


def _state(folder: Path, node: int) -> dict[str, Any]:
    states: list[dict[str, Any]] = control.request(folder, "status")["nodes"]
    return next(state for state in states if state["node"] == node)


def _why(folder: Path, node: int, otherwise: str) -> str:
    """A broken connection usually means a dead node: says so, with its last words."""
    stop = time.monotonic() + 1  # a panicking kernel takes a moment to end
    while time.monotonic() < stop:
        try:
            state = _state(folder, node)
        except LabError as error:
            return str(error)
        if state["state"] == "stalled":
            return f"{otherwise}: it is stalled, see `labs/kernels/lab fault resume`"
        if state["state"] != "running":
            return _dead(folder, node, state)
        time.sleep(0.05)
    return f"{otherwise}; the last lines of its console:\n" + _last_words(folder, node)


def _dead(folder: Path, node: int, state: Mapping[str, Any]) -> str:
    return (
        f"node {node} is not running ({state['state']}: {state['why'] or 'no reason known'}); "
        f"the last lines of its console:\n" + _last_words(folder, node)
    )


def _last_words(folder: Path, node: int) -> str:
    lines = last_words(folder / "nodes" / f"{node}.console", 25)
    return "\n".join("    " + line for line in lines)
