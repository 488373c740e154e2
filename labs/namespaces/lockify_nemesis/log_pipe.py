"""A daemon's standard error: a pipe that somebody reads into a file, or does not."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

# Seconds that the reader may take for its last piece.
PATIENCE = 10.0


class LogPipe:
    def __init__(self, log: Path) -> None:
        self.log = log
        self.read, self.write = os.pipe()
        fcntl.fcntl(self.write, fcntl.F_SETPIPE_SZ, 4096)
        self.reads, self.rests = threading.Event(), threading.Event()
        self.reads.set()
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        with self.log.open("ab", buffering=0) as log:
            while text := os.read(self.read, 1 << 16):
                log.write(text)
                if not self.reads.is_set():
                    self.rests.set()
                    self.reads.wait()

    def mute(self) -> None:
        """From now on nobody reads, and it is full."""
        self.rests.clear()
        self.reads.clear()
        # Opened anew, so that the daemon's own end goes on to block.
        full = os.open(f"/proc/self/fd/{self.write}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            # The reader takes a last piece.
            self._fill(full)
            self.rests.wait(PATIENCE)
            self._fill(full)
        finally:
            os.close(full)

    @staticmethod
    def _fill(full: int) -> None:
        """To the last byte."""
        for piece in (b"(nobody reads this)\n", b"\n"):
            try:
                while True:
                    os.write(full, piece)
            except BlockingIOError:
                pass

    def unmute(self) -> None:
        self.reads.set()
