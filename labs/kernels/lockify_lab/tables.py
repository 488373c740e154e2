"""The DLM's tables of every node, and what they must never say.

Read from /sys/kernel/debug/dlm/LOCKSPACE_all (resources in use, with their locks) and
LOCKSPACE_toss (records without locks that are kept for a while). Nodes are read one after the other,
so tables of a cluster that works meanwhile are no snapshot: let it come to rest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = {-1: "IV", 0: "NL", 1: "CR", 2: "CW", 3: "PR", 4: "PW", 5: "EX"}

# VMS's table: row and column are modes that may be granted together.
_COMPATIBLE = {
    "NL": {"NL", "CR", "CW", "PR", "PW", "EX"},
    "CR": {"NL", "CR", "CW", "PR", "PW"},
    "CW": {"NL", "CR", "CW"},
    "PR": {"NL", "CR", "PR"},
    "PW": {"NL", "CR"},
    "EX": {"NL"},
}
_QUEUES = {0: "lookup", 1: "waiting", 2: "granted", 3: "converting"}  # DLM_LKSTS_*


@dataclass(frozen=True)
class Lock:
    """One lock as one node sees it. `holder` is the node that has it."""

    id: int
    holder: int
    granted: str
    requested: str
    queue: str
    wait: int  # lkb_wait_type: which reply is awaited; 0: none
    copy: bool  # the master's copy of a lock that another node has
    remote_id: int  # of the same lock at the master or, for a copy, at the holder


@dataclass(frozen=True)
class Resource:
    """One resource as one node sees it. `master` is None while it is being looked up."""

    node: int
    name: str
    master: int | None
    active: bool
    directory: int | None = None
    locks: tuple[Lock, ...] = ()


@dataclass
class Tables:
    """All nodes' views of one lockspace."""

    resources: list[Resource] = field(default_factory=list)

    def by_name(self) -> Mapping[str, list[Resource]]:
        names: dict[str, list[Resource]] = {}
        for resource in self.resources:
            names.setdefault(resource.name, []).append(resource)
        return names

    def masters(self, name: str) -> list[int]:
        """The nodes that say of themselves that they are the master."""
        return [view.node for view in self.by_name().get(name, []) if view.master == view.node]

    def granted(self, name: str) -> list[tuple[int, str]]:
        """Node and mode of every granted lock, as its holder sees it."""
        return _granted(self.by_name().get(name, []))


def parse(node: int, active: str, inactive: str) -> list[Resource]:
    """One node's two files."""
    return [*_parse_active(node, active), *_parse_inactive(node, inactive)]


def check_single_master(tables: Tables) -> list[str]:
    """Everything that is wrong, as sentences: two masters of a resource, incompatible grants."""
    wrong = []
    for name, views in sorted(tables.by_name().items()):
        masters = [view.node for view in views if view.master == view.node]
        if len(masters) > 1:
            wrong.append(f"resource {name!r} has {len(masters)} masters: nodes {masters}")
        wrong += _incompatible(name, _granted(views))
    return wrong


def check_copies(tables: Tables) -> list[str]:
    """Returns true if masters and holders agree about every lock; they do when nothing is under way.

    A copy without its lock blocks others for ever; a lock without its copy protects nothing.
    """
    wrong = []
    for name, views in sorted(tables.by_name().items()):
        own, copies = _granted_pairs(views)
        for key in sorted(copies.keys() - own.keys()):
            wrong.append(f"resource {name!r}: the master has {copies[key]} for node {key[0]}, which has none")
        for key in sorted(own.keys() - copies.keys()):
            wrong.append(f"resource {name!r}: node {key[0]} has {own[key]}, of which the master has no copy")
        for key in sorted(own.keys() & copies.keys()):
            if own[key] != copies[key]:
                wrong.append(
                    f"resource {name!r}: node {key[0]} has {own[key]}, the master has {copies[key]} for it"
                )
    return wrong


def _granted(views: Iterable[Resource]) -> list[tuple[int, str]]:
    return [
        (view.node, lock.granted)
        for view in views
        for lock in view.locks
        if lock.holder == view.node and lock.queue in ("granted", "converting")
    ]


def _granted_pairs(
    views: Iterable[Resource],
) -> tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]]:
    """Modes of locks at remote holders and of their copies at masters, both by holder and its lock id."""
    own, copies = {}, {}
    for view in views:
        for lock in view.locks:
            if lock.queue not in ("granted", "converting"):
                continue
            if lock.copy:
                copies[lock.holder, lock.remote_id] = lock.granted
            elif view.master != view.node:
                own[view.node, lock.id] = lock.granted
    return own, copies


def _incompatible(name: str, granted: list[tuple[int, str]]) -> Iterable[str]:
    for index, (node, mode) in enumerate(granted):
        if mode == "IV":
            yield f"resource {name!r}: node {node} holds a lock without a mode"
            continue
        for other, other_mode in granted[index + 1 :]:
            if other_mode != "IV" and other_mode not in _COMPATIBLE[mode]:
                yield f"resource {name!r}: node {node} holds {mode}, node {other} holds {other_mode}"


def _parse_active(node: int, text: str) -> list[Resource]:
    """`rsb ptr nodeid first_lkid flags root recover count len str|hex name`, then its lkb lines."""
    resources: list[Resource] = []
    head: dict[str, Any] = {}
    locks: list[Lock] = []

    def close() -> None:
        if head:
            resources.append(Resource(node=node, active=True, locks=tuple(locks), **head))
        locks.clear()

    for line in text.splitlines():
        words = line.split(" ")
        if words[0] == "rsb" and words[1] != "ptr":
            close()
            head = {"master": _master(node, int(words[2])), "name": _name(line)}
        elif words[0] == "lkb":
            locks.append(_lock(node, words))
    close()
    return resources


def _parse_inactive(node: int, text: str) -> list[Resource]:
    """`rsb ptr nodeid master_nodeid dir_nodeid our_nodeid toss_time flags len str|hex name`."""
    resources = []
    for line in text.splitlines():
        words = line.split(" ")
        if words[0] != "rsb" or words[1] == "ptr":
            continue
        name = _name(line)
        # Here, too, 0 in `nodeid` is "this node"; master_nodeid is plain and 0 if unknown.
        master = int(words[3]) or None
        resources.append(Resource(node, name, master, False, int(words[4]) or None))
    return resources


def _lock(node: int, words: list[str]) -> Lock:
    """`lkb id nodeid remid pid xid exflags flags status grmode rqmode bastmode lookup wait_type ...`.
    On the master `nodeid` is the holder of a copy; on the holder it is the master; 0 is this node."""
    other, lookup, flags = int(words[2]), int(words[12]), int(words[7], 16)
    master_copy = bool(flags & 0x00010000)
    return Lock(
        id=int(words[1], 16),
        holder=other if master_copy else node,
        granted=MODES[int(words[9])],
        requested=MODES[int(words[10])],
        queue="lookup" if lookup else _QUEUES[int(words[8])],
        wait=int(words[13]),
        copy=master_copy,
        remote_id=int(words[3], 16),
    )


def _master(node: int, nodeid: int) -> int | None:
    """dlm_rsb.res_nodeid: 0 is this node, -1 is unknown."""
    return node if nodeid == 0 else nodeid if nodeid > 0 else None


def _name(line: str) -> str:
    """The name is all that follows the ninth space, because it may contain spaces itself."""
    rest = line.split(" ", 9)[9]
    if rest.startswith("str "):
        return rest[4:]
    return "0x" + rest.removeprefix("hex").replace(" ", "")
