"""One process that holds many locks, each of a name of its own, until it is ended.

    hoard.py SOCKET COUNT

Says `held N` when it has them all; whatever ends the session, it takes them again.
"""

from __future__ import annotations

import struct
import sys
import time

from .prompt import end_with_parent
from .session import GRANTED, Ended, Session

BATCH = 500


def take(session: Session, count: int) -> int:
    """How many are held in the end."""
    held = asked = 0
    while held < count:
        while asked - held < 4 * BATCH and asked < count:
            requests = [session.request(tag, f"hoard-{tag}", "EX")
                        for tag in range(asked + 1, min(asked + BATCH, count) + 1)]
            session.socket.sendall(b"".join(struct.pack("<I", len(r)) + r for r in requests))
            asked += len(requests)
        if not session.pump(60.0):
            raise Ended("no answer")
        if any(done.status != GRANTED for done in session.done.values()):
            raise Ended("a lock of a name that nobody else uses was not granted")
        held += len(session.done)
        session.done.clear()
    return held


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    end_with_parent()
    while True:
        session = None
        try:
            session = Session(path)
            print(f"held {take(session, count)}", flush=True)
            halts = session.halts
            while session.halts == halts:
                session.pump(1.0)
        except (OSError, Ended) as error:
            print(f"ended: {error}", flush=True)
            time.sleep(0.2)
        finally:
            if session is not None:
                session.close()


if __name__ == "__main__":
    main()
