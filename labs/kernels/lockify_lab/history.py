"""The nodes' tracepoints about locks, as one history that `lockify check` judges.

Every node's wall clock (`tai`) runs at the rate of the host's clock, but is set at its boot, some microseconds
off. The messages between two nodes say by how much: none is received before it was sent, and the
quickest take the same time each way. A call that was refused at once is no event. A call that was put aside at the
claim barrier was made when it was put aside.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import LabError

EVENTS = (
    "dlm/dlm_lock_start", "dlm/dlm_lock_end", "dlm/dlm_unlock_start", "dlm/dlm_unlock_end",
    "dlm/dlm_ast", "dlm/dlm_bast", "dlm/dlm_send_message", "dlm/dlm_recv_message", "dlm_claim",
)  # fmt: skip
BUFFER_KB = 65536
TRACING = "/sys/kernel/tracing"

# The fate of a claim, and its name in the history (claim.c, settle and trace).
_CLAIM = {"claim": "claim", "confirmed": "confirm", "refused": "refuse", "merged": "merge",
          "recovery": "resend", "dropped": "drop"}  # fmt: skip
_SETTLED = ("confirmed", "merged", "dropped")
_FLAGS = {"NOQUEUE", "VALBLK", "QUECVT", "IVVALBLK", "CONVDEADLK", "PERSISTENT", "NODLCKWT", "EXPEDITE",
          "NOQUEUEBAST", "HEADQUE", "NOORDER", "ORPHAN", "ALTPR", "ALTCW"}  # fmt: skip
_EUNLOCK = 0x10002

_LINE = re.compile(
    r"^\s*.+-(?P<task>\d+)\s+\[\d+\]\s+\S+\s+(?P<s>\d+)\.(?P<us>\d{6}): (?P<event>\w+): (?P<fields>.*)$"
)
_FIELD = re.compile(r"(\w+)=(\S*)")

Event = dict[str, Any]
Traced = list[tuple[int, str, str, dict[str, str]]]  # time, task, event, fields


def start_script() -> str:
    """Starts tracing on a node. The kernel forgets the oldest events when the buffer is full."""
    enable = "".join(f"[ ! -d events/{event} ] || echo 1 >events/{event}/enable\n" for event in EVENTS)
    return (
        f"set -e\ncd {TRACING}\necho 0 >tracing_on\necho tai >trace_clock\n"
        f"echo {BUFFER_KB} >buffer_size_kb\n: >trace\n{enable}echo 1 >tracing_on\n"
    )


def stop_script() -> str:
    """Ends tracing on a node and leaves the trace in the lab's folder."""
    return (
        f"set -e\ncd {TRACING}\necho 0 >tracing_on\ngrep -h '^overrun:' per_cpu/*/stats >/run/lab/trace.$NODE.stats\n"
        f"cat trace >/run/lab/trace.$NODE\nsync\n"
    )


def check_complete(folder: Path, number: int) -> None:
    """Refuses a trace that the kernel has forgotten the beginning of."""
    counts = re.findall(r"overrun: (\d+)", (folder / f"trace.{number}.stats").read_text("utf-8"))
    if any(int(count) for count in counts):
        raise LabError(
            f"node {number} traced more than its buffer of {BUFFER_KB >> 10} MiB holds, so its history has no "
            "beginning: trace a shorter run"
        )


@dataclass
class _Node:
    """One node's locks, as far as its trace tells."""

    number: int
    calls: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    operations: int = 0
    resources: dict[int, str] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    provisional: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    # Locks under each of the kernel's ids, which it gives to the next lock before the completion of
    # the last one's unlock is delivered.
    lives: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    begun: int = 0

    def begin(self, lkid: int) -> int:
        self.begun += 1
        self.lives[lkid].append(self.begun)
        return self.begun

    def lock(self, lkid: int) -> int:
        """The present lock; one from before the trace has no number yet."""
        return self.lives[lkid][-1] if self.lives[lkid] else self.begin(lkid)

    def unlocked(self, lkid: int) -> int:
        """The lock that a completed unlock was of, for the last time."""
        lives = self.lives[lkid]
        unlocking = [lock for lock in lives if any(call["event"] == "unlock" for call in self.calls[lock])]
        if not unlocking:
            return self.lock(lkid)
        lives.remove(unlocking[0])
        return unlocking[0]


def histories(traces: dict[int, Iterable[str]]) -> Iterator[str]:
    """One history of several nodes' traces, as lines."""
    traced = {number: list(_parse(lines)) for number, lines in traces.items()}
    ahead = _clocks(traced)
    events: list[Event] = []
    for number, of_node in traced.items():
        events += [event | {"t": event["t"] - ahead[number]} for event in _convert(number, of_node)]
    for event in sorted(events, key=lambda event: event["t"]):
        yield json.dumps(event, separators=(",", ":"))


def _clocks(traced: dict[int, Traced]) -> dict[int, int]:
    """How far each node's clock is ahead of that of the first, in nanoseconds."""
    sent: dict[tuple[str, str, str], int] = {}
    for of_node in traced.values():
        for t, _, name, fields in of_node:
            if name == "dlm_send_message":
                sent[fields["h_nodeid"], fields["dst"], fields["h_seq"]] = t
    quickest: dict[tuple[int, int], int] = {}
    for of_node in traced.values():
        for t, _, name, fields in of_node:
            message = (fields.get("h_nodeid", ""), fields.get("dst", ""), fields.get("h_seq", ""))
            if name == "dlm_recv_message" and message in sent:
                way = (int(message[0]), int(message[1]))
                quickest[way] = min(t - sent[message], quickest.get(way, 1 << 62))
    ahead = {min(traced, default=0): 0}
    while True:
        known = [
            (a, b) for a, b in quickest if a in ahead and b in traced and b not in ahead and (b, a) in quickest
        ]
        if not known:
            break
        a, b = known[0]
        ahead[b] = ahead[a] + (quickest[a, b] - quickest[b, a]) // 2
    # A node that exchanged no messages has nothing that could be out of order.
    return {number: ahead.get(number, 0) for number in traced}


def _convert(number: int, traced: Traced) -> list[Event]:
    """The history of one node, by its own clock."""
    refused, freed = _refused(traced), _freed(traced)
    calls = _times_of_calls(traced)
    node = _Node(number)
    events: list[Event] = []
    for index, (t, _, name, fields) in enumerate(traced):
        if index not in refused:
            told = _event(node, calls.get(index, t), name, fields)
            if index in freed:
                told = [event | {"freed": True} for event in told]
            events += told
    events.sort(key=lambda event: event["t"])  # stable: what is put earlier are calls that waited
    return events


def _parse(lines: Iterable[str]) -> Iterator[tuple[int, str, str, dict[str, str]]]:
    for line in lines:
        found = _LINE.match(line)
        if found:
            t = int(found["s"]) * 1_000_000_000 + int(found["us"]) * 1000
            yield t, found["task"], found["event"], dict(_FIELD.findall(found["fields"]))


def _refused(traced: Traced) -> set[int]:
    """Calls that ended with an error at once: nothing happened. They are paired by task."""
    begun: dict[tuple[str, str], int] = {}
    refused: set[int] = set()
    for index, (_, task, name, fields) in enumerate(traced):
        if name in ("dlm_lock_start", "dlm_unlock_start"):
            begun[task, name] = index
        elif name in ("dlm_lock_end", "dlm_unlock_end"):
            start = begun.pop((task, name.replace("_end", "_start")), None)
            if start is not None and int(fields["error"]) != 0:
                refused.add(start)
    return refused


def _times_of_calls(traced: Traced) -> dict[int, int]:
    """When calls were made that waited at the barrier; the barrier's event comes before they go on."""
    waited: dict[str, int] = {}
    times: dict[int, int] = {}
    for index, (t, _, name, fields) in enumerate(traced):
        if name == "dlm_claim_barrier":
            waited[fields["lkb_id"]] = t - int(fields["waited_us"]) * 1000
        elif name in ("dlm_lock_start", "dlm_unlock_start") and fields["lkb_id"] in waited:
            times[index] = waited.pop(fields["lkb_id"])
    return times


def _freed(traced: Traced) -> set[int]:
    """Calls for locks whose object is gone, which do not wait at the barrier."""
    flagged: set[str] = set()
    calls: set[int] = set()
    for index, (_, _, name, fields) in enumerate(traced):
        if name == "dlm_claim_freed":
            flagged.add(fields["lkb_id"])
        elif name in ("dlm_lock_start", "dlm_unlock_start") and fields["lkb_id"] in flagged:
            flagged.discard(fields["lkb_id"])
            calls.add(index)
    return calls


def _event(node: _Node, t: int, name: str, fields: dict[str, str]) -> list[Event]:
    if name == "dlm_claim":
        return _claim(node, t, fields)
    if "lkb_id" not in fields:
        return []
    lkid = int(fields["lkb_id"], 16)
    if name == "dlm_lock_start" and "CONVERT" not in fields["flags"]:
        lock = node.begin(lkid)
    elif name == "dlm_ast" and -int(fields["sb_status"]) == _EUNLOCK:
        lock = node.unlocked(lkid)
    else:
        lock = node.lock(lkid)
    base: Event = {"t": t, "node": node.number, "lock": lock}
    if name in ("dlm_lock_start", "dlm_unlock_start"):
        return [_call(node, base, lock, name, fields)]
    if name == "dlm_bast":
        return [base | {"event": "bast", "mode": fields["mode"]}]
    if name == "dlm_ast":
        return _completion(node, base, lock, fields)
    return []


def _call(node: _Node, base: Event, lock: int, name: str, fields: dict[str, str]) -> Event:
    flags = set(fields["flags"].split("|"))
    if name == "dlm_unlock_start":
        kind = "cancel" if "CANCEL" in flags else "unlock"
        event = base | {"event": kind}
    elif "CONVERT" in flags:
        event = base | {"event": "convert", "mode": fields["mode"]}
    else:
        node.resources[lock] = _name(fields["res_name"])
        event = base | {"event": "request", "mode": fields["mode"], "resource": node.resources[lock]}
    known = sorted(flag.lower() for flag in flags & _FLAGS)
    if "FORCEUNLOCK" in flags:
        known.append("force")
    if known:
        event["flags"] = known
    if event["event"] != "cancel":
        node.operations += 1
        event["op"] = node.operations
        node.calls[lock].append(event)
    return event


def _completion(node: _Node, base: Event, lock: int, fields: dict[str, str]) -> list[Event]:
    status = -int(fields["sb_status"])
    calls = node.calls[lock]
    ending = [call for call in calls if (call["event"] == "unlock") == (status == _EUNLOCK)]
    if not ending:
        return []  # of a call from before the trace began
    call = ending[0]
    calls.remove(call)
    flags = fields.get("sb_flags", "")
    event = base | {"op": call["op"]}
    shown = [flag for flag in ("demoted", "valnotvalid", "altmode") if flag in flags.lower().replace("_", "")]
    if shown:
        event["sb_flags"] = shown
    if status != 0:
        if status == _EUNLOCK:
            node.provisional[node.resources.pop(lock, "")].discard(lock)
        return [event | {"event": "complete", "status": status}]
    event |= {"event": "grant", "mode": call["mode"], "status": 0}
    resource = node.resources.get(lock)
    if resource is not None:
        event["resource"] = resource
        if resource in node.claims:
            node.provisional[resource].add(lock)
            event |= {"provisional": True, "claim_id": node.claims[resource]}
    return [event]


def _claim(node: _Node, t: int, fields: dict[str, str]) -> list[Event]:
    how, ordinal, resource = fields["how"], int(fields["ordinal"]), _name(fields["res_name"])
    if how not in _CLAIM:
        return []
    base: Event = {"t": t, "node": node.number}
    event = base | {"event": _CLAIM[how], "resource": resource, "claim_id": ordinal}
    if how in ("refused", "merged") and int(fields["nodeid"]) > 0:
        event["master"] = int(fields["nodeid"])
    if how == "claim":
        node.claims[resource] = ordinal
    if how not in _SETTLED:
        return [event]
    node.claims.pop(resource, None)
    locks = sorted(node.provisional.pop(resource, set()))
    return [event, *(base | {"event": "settled", "lock": lock, "claim_id": ordinal} for lock in locks)]


def _name(hexadecimal: str) -> str:
    """A resource's name as histories write it: what is not printable as %XX."""
    text = ""
    for byte in bytes.fromhex(hexadecimal):
        text += chr(byte) if 32 <= byte < 127 and byte != ord("%") else f"%{byte:02X}"
    return text
