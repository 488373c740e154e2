"""The command that `lockify run` runs while it holds a lock; it knows nothing of losses: it is ended then.

    holder.py RECORD NODE CLIENT SECONDS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lockify_nemesis.record import Writer

BEAT = 0.015


def main() -> None:
    record, node, client, seconds = sys.argv[1:]
    pen = Writer(record, int(node), client)
    lock = os.environ["LOCKIFY_NAME"], os.environ["LOCKIFY_MODE"], int(os.environ["LOCKIFY_TOKEN"])
    end = time.monotonic() + float(seconds)
    pen.write("enter", *lock)
    while time.monotonic() < end:
        pen.write("still", *lock)
        time.sleep(BEAT)
    pen.write("leave", *lock)


if __name__ == "__main__":
    main()
