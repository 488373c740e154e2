"""The DLM's tracepoints on one node: how long new locks waited, and which messages there were."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from dataclasses import dataclass, field

from ..errors import LabError

_TRACING = "/sys/kernel/tracing"
_LINE = re.compile(r"\s(\d+\.\d+): (dlm_\w+): (.*)$")
_NAME = re.compile(r"res_name=(?:0x)?([0-9a-f ]*)")
_TYPE = re.compile(r" m_type=(\w+)")
# The names of claim messages in a kernel that prints unknown types as numbers (kernel/README.md).
_CLAIM_TYPES = {"0x20": "CLAIM", "0x21": "CLAIM_REPLY"}
# A thread waits for these answers; a claim's goes on meanwhile.
SYNCHRONOUS = ("LOOKUP", "REQUEST", "CONVERT")

BEGIN = f"""
cd {_TRACING} && echo 0 >tracing_on && echo 32768 >buffer_size_kb && echo mono >trace_clock && : >trace
for event in lock_start ast send_message recv_message; do echo 1 >events/dlm/dlm_$event/enable; done
echo 1 >tracing_on
cd /
"""
# Extra data of messages is long and of no use here: the agent need not carry it.
END = f"""
cd {_TRACING} && echo 0 >tracing_on && echo 0 >events/dlm/enable
sed -e '/^#/d' -e 's/ m_extra=[^ ]*//' -e 's/m_exflags=.*res_name/res_name/' trace
grep -E 'entries-in-buffer' trace
: >trace
cd /
"""


@dataclass
class Trace:
    """The sums of one run's events."""

    waits: list[tuple[float, float]] = field(default_factory=list)  # of new locks, from call to completion, in us
    messages: Counter[str] = field(default_factory=Counter)  # by type, sent and received

    @property
    def waits_us(self) -> list[float]:
        return [end - begin for begin, end in self.waits]

    @property
    def waiting_us(self) -> float:
        """How long at least one lock was waited for. OCFS2 asks for a new inode's locks together and creates the
        next one meanwhile: their waits add up to several times what the creations took."""
        total, done = 0.0, 0.0
        for begin, end in sorted(self.waits):
            total += max(end - max(begin, done), 0)
            done = max(done, end)
        return total

    @property
    def typical_wait_us(self) -> float:
        """All waits, were each the median one: what is left without the moments in which the host's CPUs
        were busy elsewhere."""
        return statistics.median(self.waits_us) * len(self.waits_us) if self.waits_us else 0.0

    @property
    def synchronous(self) -> int:
        """Round trips that a thread of this node waited for; its own questions only."""
        return sum(self.messages[f"sent {kind}"] for kind in SYNCHRONOUS)


def parse(text: str) -> Trace:
    """Adds up a trace that `END` printed."""
    trace = Trace()
    asked: dict[str, float] = {}
    for line in text.splitlines():
        if "entries-in-buffer" in line:
            _check_complete(line)
        found = _LINE.search(line)
        if not found:
            continue
        time, event, rest = float(found[1]), found[2], found[3]
        if event in ("dlm_send_message", "dlm_recv_message"):
            kind = _TYPE.search(rest)
            direction = "sent" if event == "dlm_send_message" else "received"
            name = kind[1] if kind else "unknown"
            trace.messages[f"{direction} {_CLAIM_TYPES.get(name, name)}"] += 1
            continue
        name = _name(rest)
        if event == "dlm_lock_start" and "CONVERT" not in rest.split("res_name=")[0]:
            asked[name] = time
        elif event == "dlm_ast" and name in asked:
            trace.waits.append((asked.pop(name) * 1e6, time * 1e6))
    return trace


def _name(rest: str) -> str:
    found = _NAME.search(rest)
    return found[1] if found else ""


def _check_complete(line: str) -> None:
    """`entries-in-buffer/entries-written: A/B`: less than written means that some were lost."""
    numbers = re.search(r"(\d+)/(\d+)", line)
    if not numbers or numbers[1] != numbers[2]:
        raise LabError(f"the trace buffer was too small ({line.strip('# ')}): use fewer items")
