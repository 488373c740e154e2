"""How the nemesis's clients run: promptly, and no longer than it does."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """The process that has started this one takes it along."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def be_prompt() -> None:
    """Runs before what has no real-time priority: what a client is slow with on a busy machine is not the lock
    manager's fault. Its children inherit that."""
    end_with_parent()
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        pass  # where that is not to be had, an idle machine serves as well
