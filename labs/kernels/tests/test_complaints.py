"""The complaints of a kernel, and that a debug kernel's lab fails by it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lockify_lab import Lab, LabError, Options, build, checks, node

COMPLAINTS = """
[   12.3] WARNING: CPU: 0 PID: 7 at fs/some/file.c:12 function+0x1/0x2
[   12.3] WARNING: possible circular locking dependency detected
[   12.3] WARNING: inconsistent lock state
[   12.3] WARNING: suspicious RCU usage
[   12.3] WARNING: lock held when returning to user space!
[   12.3] BUG: sleeping function called from invalid context at mm/some.h:12
[   12.3] BUG: scheduling while atomic: mount/70/0x00000002
[   12.3] BUG: spinlock bad magic on CPU#0, mount/70
[   12.3] BUG: MAX_LOCKDEP_ENTRIES too low!
[   12.3] turning off the locking correctness validator.
[   12.3] INFO: trying to register non-static key.
[   12.3] INFO: lockdep is turned off.
[   12.3] INFO: task mount:70 blocked for more than 120 seconds.
[   12.3] rcu: INFO: rcu_sched self-detected stall on CPU
[   12.3] Illegal context switch in RCU read-side critical section!
[   12.3] list_add corruption. next->prev should be prev
[   12.3] kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)
[   12.3] kmemleak: Memory pool empty, consider increasing CONFIG_DEBUG_KMEMLEAK_MEM_POOL_SIZE
[   12.3] kmemleak: Kernel memory leak detector disabled
""".strip().splitlines()

TOLD = """lockdep has switched itself off, or is not there: debug_locks: 0
unreferenced object 0x61c0a840 (size 96):
  comm "touch", pid 212, jiffies 4294940312
  hex dump (first 32 bytes):
    00 01 00 00 00 00 ad de 22 01 00 00 00 00 ad de  ........".......
  backtrace (crc 5d3b4c8):
    [<00000000600aa4b5>] stack_trace_save+0x35/0x40
    [<0000000060104a10>] __create_object+0x40/0x80
    [<0000000060104ab6>] kmemleak_alloc+0x56/0x60
    [<00000000600fda11>] __kmalloc_cache_noprof+0x201/0x2a0
    [<0000000060250b5c>] make_claim+0x2c/0x150
    [<0000000060250d64>] dlm_claim_set_master+0xc4/0x1b0
unreferenced object 0x61c0b000 (size 32):
  comm "kworker/0:1", pid 12, jiffies 4294940400
  backtrace (crc 0):
    kmemleak_alloc+0x56/0x60
    some_worker+0x10/0x20
"""


@pytest.mark.parametrize("line", COMPLAINTS)
def test_every_kind_of_complaint_is_found(tmp_path: Path, line: str) -> None:
    console = tmp_path / "1.console"
    console.write_text(f"lab: boot 1\n{line}\n[   12.4] mount used greatest stack depth: 12 bytes left\n")
    assert node.complaints(console) == [line]


def test_leaks_are_told_with_who_allocated() -> None:
    assert checks.findings(TOLD) == [
        "lockdep has switched itself off, or is not there: debug_locks: 0",
        "kmemleak: 96 bytes of touch: make_claim < dlm_claim_set_master",
        "kmemleak: 32 bytes of kworker/0:1: some_worker",
    ]
    assert checks.findings("") == []


def _ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, expected: str = "") -> None:
    """A lab that ends after its only node has died."""
    monkeypatch.setenv("LOCKIFY_LAB_DIR", str(tmp_path))
    monkeypatch.delenv(build.DEFAULT_VARIABLE, raising=False)  # the open part of the kernel's name
    with Lab("ended") as lab:
        (lab.folder / "nodes").mkdir(parents=True)
        (lab.folder / "options.json").write_text(json.dumps(asdict(Options(nodes=1, kernel=kernel))))
        (lab.folder / "nodes" / "1.console").write_text(f"{COMPLAINTS[0]}\n")
        if expected:
            lab.expect(expected)
        assert lab.complaints() == {1: [COMPLAINTS[0]]}
        assert lab.unexpected() == ({} if expected else lab.complaints())


def test_a_debug_kernels_lab_fails_by_a_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match="node 1: .*some/file.c:12"):
        _ended(tmp_path, monkeypatch, "6.12-claim-debug")
    assert not (tmp_path / "ended").exists(), "the lab was not ended"
    _ended(tmp_path, monkeypatch, "6.12-claim-debug", expected="some/file.c")
    _ended(tmp_path, monkeypatch, "6.12-claim")
