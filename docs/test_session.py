"""docs/session.py, and with it docs/protocol.md, against a real daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import session

DOCS = Path(__file__).parent
LOCKIFY = DOCS.parent / "target" / "debug" / "lockify"
LIMIT = 60  # seconds


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """The socket of the daemon of a cluster of one."""
    where = tmp_path / "socket"
    config = tmp_path / "lockify.toml"
    node = '[[nodes]]\nid = 1\naddress = "127.0.0.1:1"\n'
    config.write_text(f'node = 1\nsocket = "{where}"\n{node}')
    with subprocess.Popen([LOCKIFY, "serve", "--config", config]) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not where.exists():
                assert process.poll() is None and time.monotonic() < deadline, "the daemon does not run"
                time.sleep(0.02)
            yield where
        finally:
            process.terminate()
            process.wait(LIMIT)


def client(where: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DOCS / "session.py", where, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def who(where: Path, name: str) -> str:
    asked = [LOCKIFY, "who", "--socket", where, name]
    return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=LIMIT).stdout


def token(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    word, value = process.stdout.readline().split()
    assert word == "token"
    return int(value)


def test_a_lock_is_taken_seen_and_given_up(daemon: Path) -> None:
    with client(daemon, "default", "a name") as holder:
        assert token(holder) > 0
        seen = who(daemon, "a name")
        assert "EX" in seen and str(holder.pid) in seen
        out, _ = holder.communicate(timeout=LIMIT)
    assert (out, holder.returncode) == ("done\n", 0)
    assert str(holder.pid) not in who(daemon, "a name")


def test_a_holder_hears_that_somebody_waits(daemon: Path) -> None:
    with client(daemon, "default", "b") as first:
        before = token(first)
        with client(daemon, "default", "b", "PW") as second:
            after = token(second)
            assert after > before
            assert first.stdout is not None and first.stdout.readline() == "wanted\n"
            assert first.wait(LIMIT) == 0
            second.communicate(timeout=LIMIT)
        assert second.returncode == 0


# The layouts of "What answers contain" in docs/protocol.md: a struct is a list, a list of something a tuple of one.
NUMBER, BYTE, BYTES = "number", "byte", "bytes"
Layout = object


class Option(NamedTuple):
    of: Layout


class Enum(NamedTuple):
    variants: list[Layout]


NOTHING: list[Layout] = []
WAIT = Enum([NOTHING] * 6 + [NUMBER])
OPTION = Option(NUMBER)
LOCK_INFO = [NUMBER, OPTION, NUMBER, NUMBER, OPTION, OPTION, NUMBER, NUMBER, WAIT, NUMBER, NUMBER, NUMBER]
RESOURCE = [BYTES, OPTION, BYTE, (LOCK_INFO,), Option([BYTES, NUMBER]), BYTE]
RECOVERY = [NUMBER, (NUMBER,)]
SPACE = [BYTES, BYTES, NUMBER, (NUMBER,), BYTE, Option(RECOVERY), *[NUMBER] * 4, OPTION, *[NUMBER] * 25]
PEER = [NUMBER, BYTE, OPTION, NUMBER, Option(BYTES)]
STANDING = [BYTES, Option(BYTE), NUMBER, (BYTES,)]
NODE = [NUMBER, NUMBER, NUMBER, NUMBER, (NUMBER,), *STANDING, (SPACE,), (PEER,), (NUMBER,), *[NUMBER] * 14]
ANSWER = Enum([[NUMBER] * 4, NOTHING, NODE, (RESOURCE,), NUMBER, (NUMBER,)])


def read(reader: session.Reader, layout: Layout) -> object:
    match layout:
        case "number":
            return reader.number()
        case "byte":
            return reader.byte()
        case "bytes":
            return bytes(reader.byte() for _ in range(reader.number()))
        case Option(of):
            return read(reader, of) if reader.byte() else None
        case Enum(variants):
            number = reader.number()
            return number, read(reader, variants[number])
        case (of,) if isinstance(layout, tuple):
            return [read(reader, of) for _ in range(reader.number())]
        case list():
            return [read(reader, part) for part in layout]
    raise AssertionError(layout)


def answers(client: session.Session, query: bytes) -> list[object]:
    """The parts of an answer, each read to its last byte."""
    client.send(session.number(session.QUERY) + session.number(7) + query)
    parts = []
    while True:
        reader = client.wait_for(session.ANSWER)
        assert reader.number() == 7
        parts.append(read(reader, ANSWER))
        more = reader.byte()
        assert reader.at == len(reader.content)
        if not more:
            return parts


def test_answers_have_the_layout_of_the_page(daemon: Path) -> None:
    client = session.Session(str(daemon))
    space, _ = client.open("default")
    lock, token = client.lock(space, "d", session.MODES.index("PW"))
    (kind, resources), done = answers(client, session.number(6) + session.number(space) + session.text(b"d"))
    assert (kind, done) == (3, (1, []))
    ((name, master, pending, (info,), lvb, invalid),) = resources
    assert (name, master, pending, lvb, invalid) == (b"d", 1, 0, None, 0)
    node, owner, number, queue, granted, requested, its_token, since, wait, *_ = info
    assert (node, owner >> 32, number, queue) == (1, os.getpid(), lock, 0)
    assert (granted, requested, its_token, wait) == (4, None, token, (0, []))
    assert abs(since / 1e9 - time.time()) < LIMIT
    assert answers(client, session.number(5) + session.number(space))[1] == (1, [])
    (kind, status), done = answers(client, session.number(4))
    assert (kind, done) == (2, (1, []))
    assert (status[0], status[2], status[4], status[5]) == (1, 0, [1], b"log")
    (there,) = status[9]
    assert (there[:2], there[7:10]) == ([b"default", b"claim"], [1, 0, 1])


def test_a_wrong_lockspace_is_refused(daemon: Path) -> None:
    with client(daemon, "elsewhere", "c") as refused:
        refused.communicate(timeout=LIMIT)
    assert refused.returncode == 1
