"""Tracepoints to histories: by hand-made lines, and by a real cluster that `lockify check` judges."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lockify_lab import Lab, LabError, history, host

NAME = b"       2              17".hex()


def traced(*events: str) -> list[str]:
    """Lines as the kernel prints them, a microsecond apart."""
    return [f"  cp-70 [000] ..... 1700000000.{i:06}: {event}" for i, event in enumerate(events)]


def test_a_lock_from_request_to_unlock() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags=NOQUEUE|VALBLK|0x80000 res_name={NAME}",
        f"dlm_lock_end: ls_id=1 lkb_id=a mode=EX flags=NOQUEUE|VALBLK error=0 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_unlock_start: ls_id=1 lkb_id=a flags= res_name={NAME}",
        f"dlm_unlock_end: ls_id=1 lkb_id=a flags= error=0 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=-65538 res_name={NAME}",
    )
    events = history.convert(3, lines)
    assert [e["event"] for e in events] == ["request", "grant", "unlock", "complete"]
    assert events[0]["flags"] == ["noqueue", "valblk"] and events[0]["node"] == 3
    assert events[1] == {
        "t": 1700000000000002000, "node": 3, "lock": 10, "op": 1, "event": "grant", "mode": "EX",
        "status": 0, "resource": "       2              17",
    }  # fmt: skip


def test_calls_that_were_refused_are_no_events() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags=CONVERT res_name={NAME}",
        f"dlm_lock_end: ls_id=1 lkb_id=a mode=EX flags=CONVERT error=-16 res_name={NAME}",
    )
    assert history.convert(1, lines) == []


def test_a_claim_makes_its_grant_provisional_until_it_is_settled() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=claim nodeid=2 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=confirmed nodeid=1 res_name={NAME}",
    )
    events = history.convert(1, lines)
    assert [e["event"] for e in events] == ["request", "claim", "grant", "confirm", "settled"]
    assert events[2]["provisional"] and events[4]["lock"] == 10


def test_a_call_that_waited_at_the_barrier_was_made_before() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=claim nodeid=2 res_name={NAME}00",
        "dlm_claim_barrier: ls_id=1 lkb_id=a waited_us=2",
        f"dlm_unlock_start: ls_id=1 lkb_id=a flags= res_name={NAME}",
    )
    assert [e["event"] for e in history.convert(1, lines)] == ["request", "grant", "unlock", "claim"]


def test_a_trace_that_lost_its_beginning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.1.stats").write_text("overrun: 5\n")
    with pytest.raises(LabError, match="no beginning"):
        history.check_complete(tmp_path, 1)


def lockify() -> Path:
    """The checker, which is built with the rest of the project."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or host.REPOSITORY / "target")
    found = [target / kind / "lockify" for kind in ("release", "debug")]
    found = [path for path in found if path.exists()]
    assert found, "the checker is missing: run `cargo build --release` first"
    return found[0]


@pytest.mark.parametrize("claim", ["off", "on"])
def test_the_history_of_a_real_cluster_is_clean(lab: Lab, tmp_path: Path, claim: str) -> None:
    lab.up(nodes=3, claim=claim, trace=True)
    script = "mkdir -p $MNT/d && for i in $(seq 100); do echo $NODE.$i > $MNT/d/$NODE.$i; done && cat $MNT/d/*"
    lab.sh(script, timeout=120)
    lab.sh("rm -f $MNT/d/$NODE.*", timeout=120)
    out = tmp_path / "history.jsonl"
    assert lab.history(out) > 1000
    if claim == "on":
        assert any(json.loads(line)["event"] == "claim" for line in out.open()), "nothing was claimed"
    checked = subprocess.run([lockify(), "check", out], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr
