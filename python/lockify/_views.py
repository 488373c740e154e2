"""The holders of locks, as the whole cluster reports them. The fields are those of `lockify who --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ._modes import Mode

# The tuples of the extension module (../src/view.rs), in the order of the fields below.
ToldOwner: TypeAlias = tuple[int, int | None, int | None]
ToldLock: TypeAlias = tuple[ToldOwner, int, int | None, int | None, float, int, str, list[ToldOwner]]
ToldResource: TypeAlias = tuple[bytes, int | None, bool, list[ToldLock], list[ToldLock]]
ToldView: TypeAlias = tuple[list[ToldResource], int, list[int]]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lock."""

    node: int
    session: int | None
    """The session, of those of its process; None: an orphan."""
    pid: int | None
    """The process; None: an orphan, or a node inside a process."""


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock, of whomever."""

    owner: Owner
    transaction: int | None
    """The transaction that it belongs to, if not its session's."""
    granted: Mode | None
    """What it holds."""
    requested: Mode | None
    """What it waits for."""
    since: float
    """When the grant or the wait began, in seconds since 1970, on its node's clock."""
    token: int | None
    """The fencing token, of PW and EX."""
    wait: str
    """What its operation waits for: nothing, queue, claims, recovery, merge, master or answer."""
    waits_for: tuple[Owner, ...]
    """Of waiters: whose locks are in the way."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A name that has locks."""

    name: bytes
    master: int | None
    """The node that decides about it, if known."""
    claim_pending: bool
    """Its master has claimed it and that has not been confirmed."""
    holders: tuple[LockInfo, ...]
    waiters: tuple[LockInfo, ...]
    """In the order of the queues. A lock that converts is here and among the holders."""


@dataclass(frozen=True, slots=True)
class View:
    """The cluster's report about some resources."""

    resources: tuple[Resource, ...]
    omitted: int
    """Locks left out because there are too many for one answer: ask for single names."""
    silent: tuple[int, ...]
    """Nodes that did not answer: what only they know is missing."""


def view(told: ToldView) -> View:
    """Names the parts."""
    resources, omitted, silent = told
    return View(tuple(map(_resource, resources)), omitted, tuple(silent))


def _resource(told: ToldResource) -> Resource:
    name, master, claim_pending, holders, waiters = told
    return Resource(name, master, claim_pending, tuple(map(_lock, holders)), tuple(map(_lock, waiters)))


def _lock(told: ToldLock) -> LockInfo:
    owner, transaction, granted, requested, since, token, wait, waits_for = told
    return LockInfo(
        owner=Owner(*owner),
        transaction=transaction or None,
        granted=None if granted is None else Mode(granted),
        requested=None if requested is None else Mode(requested),
        since=since,
        token=token or None,
        wait=wait,
        waits_for=tuple(Owner(*other) for other in waits_for),
    )
