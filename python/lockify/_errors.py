"""The errors of the package. Each message says what to do."""

from __future__ import annotations


class LockifyError(Exception):
    """The base of all errors of this package, except for wrong arguments: those are ValueError or TypeError."""


class WouldBlock(LockifyError):
    """Somebody holds the lock in a conflicting mode, and the call was not to wait."""


class TimedOut(LockifyError, TimeoutError):
    """The lock was not granted in the time given."""


class Canceled(LockifyError):
    """The operation was taken back, for example because the lock was released meanwhile."""


class Deadlock(LockifyError):
    """The lock would wait for one that waits for this session. Release what you hold and start again."""


class Lost(LockifyError):
    """The lock is no longer held: abandon what it protected."""


class Released(LockifyError):
    """The lock was released, by this program."""


class Busy(LockifyError):
    """Another operation of the lock is under way, or a lockspace to be released has locks."""


class NoDaemon(LockifyError, ConnectionError):
    """No daemon answers on the socket, or one of another version, or something else."""


class Disconnected(LockifyError, ConnectionError):
    """The session has ended, and its locks are lost: abandon what they protected, and connect again."""


class Forked(LockifyError):
    """The session belongs to the process that this one was forked from: connect here."""


class NoSuchLockspace(LockifyError, LookupError):
    """The node is not a member of a lockspace of this name."""


class LockspaceExists(LockifyError):
    """A lockspace of this name exists and was to be new."""


class NotJoined(LockifyError):
    """The node is not in the lockspace now, for lack of a quorum, and the call does not wait for it."""


class NotPermitted(LockifyError, PermissionError):
    """The daemon's configuration does not let this user do that."""


class LimitReached(LockifyError):
    """The session, the user or the node has as many locks or lockspaces as it may."""
