"""Cluster-wide locks, from Lockify's daemon (docs/python.md).

import lockify

with lockify.connect() as session:
    space = session.lockspace("default")
    with space.lock("the one database") as lock:
        print("writing with fencing token", lock.token)
"""

from ._errors import (
    Busy,
    Canceled,
    Deadlock,
    Disconnected,
    Forked,
    LimitReached,
    LockifyError,
    LockspaceExists,
    Lost,
    NoDaemon,
    NoSuchLockspace,
    NotJoined,
    NotPermitted,
    Released,
    TimedOut,
    WouldBlock,
)
from ._lock import Acquisition, Lock
from ._modes import CR, CW, EX, NL, PR, PW, Mode
from ._session import Lockspace, LostLock, Session, connect
from ._views import LockInfo, Owner, Resource, View

__all__ = [
    "CR", "CW", "EX", "NL", "PR", "PW",
    "Acquisition", "Busy", "Canceled", "Deadlock", "Disconnected", "Forked", "LimitReached", "Lock",
    "LockInfo", "LockifyError", "Lockspace", "LockspaceExists", "Lost", "LostLock", "Mode", "NoDaemon",
    "NoSuchLockspace", "NotJoined", "NotPermitted", "Owner", "Released", "Resource", "Session", "TimedOut",
    "View", "WouldBlock", "connect",
]  # fmt: skip
