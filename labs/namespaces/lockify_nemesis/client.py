"""One client process: takes locks of all modes, converts them, gives up waiting, and writes down what it holds.

    client.py SOCKET RECORD NODE CLIENT SEED LEASE

Ends in order at SIGTERM.
"""

from __future__ import annotations

import random
import signal
import sys
import time

from .modes import MODES, common
from .prompt import be_prompt
from .record import Writer
from .session import AGAIN, GRANTED, NOQUEUE, TIMED_OUT, Done, Ended, Session

BEAT = 0.015
PAUSE = 0.05
# How often each mode is asked for.
WEIGHTS = {"NL": 1, "CR": 3, "CW": 3, "PR": 5, "PW": 3, "EX": 8}


class Client:
    def __init__(self, path: str, pen: Writer, rng: random.Random, lease: float) -> None:
        self.path, self.pen, self.rng, self.lease = path, pen, rng, lease
        self.stopping = False
        self.holding = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            session = None
            try:
                session = Session(self.path)
                while not self.stopping:
                    self._cycle(session)
                    session.pump(self.rng.uniform(0, 2 * PAUSE))
            except (OSError, Ended):
                self._lost()
                time.sleep(PAUSE)
            finally:
                if session is not None:
                    session.close()

    def _lost(self) -> None:
        if self.holding:
            self.pen.write("lost")
        self.holding = False

    def _cycle(self, session: Session) -> None:
        rng = self.rng
        long = rng.random() < 0.05
        name = f"long-{rng.randrange(3)}" if long else f"hot-{rng.randrange(3)}" if rng.random() < 0.7 else (
            f"cold-{rng.randrange(100)}")
        mode = rng.choices(MODES, [WEIGHTS[m] for m in MODES])[0]
        flags = NOQUEUE if rng.random() < 0.2 else 0
        timeout = None if flags or rng.random() < 0.3 else rng.choice((0.0, 0.2, 1.0)) * self.lease
        granted = self._lock(session, name, mode, flags, timeout)
        if granted is None or granted.status != GRANTED:
            # Not a busy loop: a daemon without quorum refuses at once.
            session.pump(PAUSE)
            return
        # The daemon may have said more in the meantime.
        session.pump(0)
        tag = session.tag
        if tag in session.lost:
            session.unlock(granted.lock)
            return
        Hold(self, session, name, granted, long).run()

    def _lock(self, session: Session, name: str, mode: str, flags: int, timeout: float | None) -> Done | None:
        halts = session.halts
        granted = session.lock(name, mode, flags, timeout, give_up=2 * self.lease)
        # A halt in the same breath: it holds nothing.
        return granted if session.halts == halts else None


class Hold:
    """A lock, from its grant to its end."""

    def __init__(self, client: Client, session: Session, name: str, granted: Done, long: bool) -> None:
        self.client, self.session, self.pen, self.rng = client, session, client.pen, client.rng
        self.name, self.lock, self.mode, self.token = name, granted.lock, granted.mode or "NL", granted.token
        self.halts, self.tags = session.halts, {session.tag}
        most = client.lease * 3 if long else 0.06
        self.until = time.monotonic() + self.rng.uniform(0, most)

    def run(self) -> None:
        self._write("enter")
        self.client.holding = True
        while self._holds() and time.monotonic() < self.until and not self.client.stopping:
            if self.rng.random() < 0.1 and not self._convert():
                return
            if not self._holds():
                break
            self._write("still")
            # Received events are handled before the next line says that the lock is held.
            self.session.pump(BEAT)
            if self.tags & self.session.wanted and self.rng.random() < 0.3:
                self.until = 0.0
        self._end()

    def _write(self, word: str) -> None:
        self.pen.write(word, self.name, self.mode, self.token)

    def _holds(self) -> bool:
        while self.session.pump(0):
            pass
        return self.session.halts == self.halts and not self.tags & self.session.lost

    def _end(self) -> None:
        if self._holds():
            self._write("leave")
            self.client.holding = False
            self.session.unlock(self.lock)
            return
        self.client._lost()
        if self.session.halts == self.halts:
            self.session.unlock(self.lock)

    def _convert(self) -> bool:
        """False when nothing is left to hold."""
        wanted = self.rng.choice(MODES)
        flags = self.rng.choice((0, 0, NOQUEUE))
        before, token = self.mode, self.token
        if not self._holds():
            return True
        self.mode = common(before, wanted)
        self._write("keep")
        # Two that convert up wait for each other: a time limit ends that.
        done = self.session.convert(self.lock, wanted, flags, None if flags == NOQUEUE else 0.3 * self.client.lease)
        if done is None or self.session.halts != self.halts:
            self.client._lost()
            return False
        self.tags.add(self.session.tag)
        if not self._holds():
            return True
        if done.status == GRANTED:
            self.mode, self.token = done.mode or wanted, done.token
            self._write("mode")
        elif done.status in (AGAIN, TIMED_OUT):
            self.mode, self.token = before, token
            self._write("keep")
        return True


def main() -> None:
    path, record, node, client, seed, lease = sys.argv[1:]
    be_prompt()
    pen = Writer(record, int(node), client)
    Client(path, pen, random.Random(f"{seed}/{client}"), float(lease)).run()


if __name__ == "__main__":
    main()
