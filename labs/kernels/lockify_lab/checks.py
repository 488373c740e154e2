"""A debug kernel's findings about itself that its console does not show.

kmemleak looks for leaks when it is told to, and writes them to a file. lockdep says on the console what it finds,
but a kernel whose lockdep has switched itself off is silent, too.
"""

from __future__ import annotations

import re

# kmemleak judges nothing younger than 5 s, and reports an object only if it has not changed between two scans. The
# first two may report an object whose only pointer is in a register at that moment. The third scan takes such a
# report back.
SCRIPT = """
stats=/proc/lockdep_stats leaks=/sys/kernel/debug/kmemleak
if ! grep -q '^ *debug_locks: *1$' $stats; then
    echo "lockdep has switched itself off, or is not there: $(grep debug_locks: $stats)"
fi
sleep 6
for scan in 1 2 3; do
    echo scan >$leaks || { echo "kmemleak cannot scan"; exit; }
done
cat $leaks
"""
LIMIT = 300.0

_OBJECT = re.compile(r"unreferenced object \S+ \(size (\d+)\):")
_COMM = re.compile(r'\s+comm "([^"]*)"')
_FRAME = re.compile(r"\s+(?:\[<\S+>\] )?([A-Za-z_][\w.]*)\+0x")
# Functions that only allocate, or record the stack for kmemleak.
_ALLOCATORS = re.compile(
    r"kmemleak_|kmem_cache_|__kmalloc|kmalloc_|__kmem|slab_|krealloc|kstrdup|kmemdup"
    r"|save_stack_trace|stack_trace_save|set_track_prepare|__alloc_object|__create_object"
)


def findings(told: str) -> list[str]:
    """The script's output as complaints, one line each: of a leak who allocated it, from inside out."""
    found: list[str] = []
    leak: list[str] = []

    def end() -> None:
        if leak:
            found.append(f"{leak[0]}: {' < '.join(leak[1:7])}")
            leak.clear()

    for line in told.splitlines():
        if match := _OBJECT.match(line):
            end()
            leak.append(f"kmemleak: {match[1]} bytes")
        elif leak and (match := _COMM.match(line)):
            leak[0] += f" of {match[1]}"
        elif leak and (match := _FRAME.match(line)):
            if not _ALLOCATORS.match(match[1]):
                leak.append(match[1])
        elif line and not line[0].isspace():
            end()
            found.append(line)
    end()
    return found
