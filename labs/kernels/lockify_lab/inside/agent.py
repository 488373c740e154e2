"""Runs jobs inside a node: one TCP connection is one job.

The host sends one line of JSON (script, limit in seconds, env), the agent answers with frames: one
byte of type (o stdout, e stderr, x end), four bytes of length, the payload. The payload of `x` is
JSON: {"status": N} or {"timeout": true}. A job whose connection closes is killed.
Stand-alone: a node has Python's standard library and this file.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time

PORT = 7400
FOLDER = "/run/jobs"
DISK = "/dev/ubda"
LOOKERS, PERIOD = 4, 1.0  # seconds


def send(connection: socket.socket, kind: bytes, payload: bytes) -> None:
    connection.sendall(kind + struct.pack("!I", len(payload)) + payload)


def receive_job(connection: socket.socket) -> dict[str, object]:
    connection.settimeout(10)
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("the host closed before it sent a job")
        data += piece
    connection.settimeout(None)
    job = json.loads(data)
    assert isinstance(job, dict)
    return job


def stacks(session: int) -> bytes:
    """Where the kernel holds each process of a job: what a reader needs to see about a hang."""
    told = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                stat = file.read()
            name, rest = stat[stat.index("(") + 1 :].rsplit(") ", 1)
            state, _parent, _group, sid = rest.split()[:4]
            if int(sid) != session:
                continue
            with open(f"/proc/{entry}/stack", encoding="ascii", errors="replace") as file:
                stack = file.read()
        except OSError:
            continue  # it ended meanwhile
        told.append(f"process {entry} ({name}), state {state}:\n{stack}")
    return "\n".join(told).encode()


def run(connection: socket.socket, number: int) -> None:
    job = receive_job(connection)
    path = f"{FOLDER}/{number}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(job["script"]))
    os.chmod(path, 0o700)
    argv = [path] if str(job["script"]).startswith("#!") else ["/bin/bash", path]
    environment = os.environ | dict(job.get("env") or {})  # type: ignore[call-overload]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    assert process.stdout and process.stderr
    pidfd = os.pidfd_open(process.pid)
    try:
        end = follow(connection, process, pidfd, time.monotonic() + float(str(job["limit"])))
        send(connection, b"x", json.dumps(end).encode())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(pidfd)
        process.stdout.close()
        process.stderr.close()
        os.unlink(path)


def follow(
    connection: socket.socket, process: subprocess.Popen[bytes], pidfd: int, end: float
) -> dict[str, object]:
    """Passes the output on until the process ends. A daemon that it left behind may keep the pipes."""
    assert process.stdout and process.stderr
    pipes = {process.stdout.fileno(): b"o", process.stderr.fileno(): b"e"}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
        selector.register(pidfd, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        ended = False
        while not ended:
            left = end - time.monotonic()
            if left <= 0:
                send(connection, b"e", stacks(process.pid))
                return {"timeout": True}
            for key, _ in selector.select(left):
                if key.fd == pidfd:
                    ended = True
                elif key.fd in pipes:
                    if not pass_on(connection, key.fd, pipes[key.fd]):
                        selector.unregister(key.fd)
                elif not connection.recv(1):
                    raise ConnectionError("the host gave the job up")
        for pipe, kind in pipes.items():
            while pass_on(connection, pipe, kind):
                pass
    return {"status": process.wait()}


def pass_on(connection: socket.socket, pipe: int, kind: bytes) -> bool:
    """Sends what the pipe holds. False if nothing is there."""
    try:
        data = os.read(pipe, 65536)
    except BlockingIOError:
        return False
    if data:
        send(connection, kind, data)
    return bool(data)


def serve(connection: socket.socket, number: int) -> None:
    with connection:
        try:
            run(connection, number)
        except (ConnectionError, TimeoutError):
            pass  # nobody is left to tell
        except Exception as error:
            try:
                send(connection, b"e", f"the agent failed: {error!r}\n".encode())
                send(connection, b"x", json.dumps({"status": 125}).encode())
            except OSError:
                pass


def look_at_disk() -> None:
    """Reads a block of the shared disk again and again, so that no other request's end goes unnoticed.

    User-mode Linux waits for edges of its disk's pipe, and loses one now and then when a packet arrives at
    that moment. The request then seems to last until the next one ends, which may be half a minute: the
    period of the file systems' own threads. The reads get lost as any other, so there are some.
    """
    if not os.path.exists(DISK) or os.fork():
        return
    disk = os.open(DISK, os.O_RDONLY | os.O_DIRECT)
    for _ in range(LOOKERS - 1):
        threading.Thread(target=look_from_time_to_time, args=(disk,)).start()
        time.sleep(PERIOD / LOOKERS)
    look_from_time_to_time(disk)


def look_from_time_to_time(disk: int) -> None:
    with mmap.mmap(-1, 4096) as aligned:
        while True:
            os.preadv(disk, [aligned], 0)
            time.sleep(PERIOD)


def main() -> None:
    look_at_disk()
    with socket.create_server(("0.0.0.0", PORT), backlog=64) as server:
        number = 0
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number += 1
            threading.Thread(target=serve, args=(connection, number), daemon=True).start()


main()
