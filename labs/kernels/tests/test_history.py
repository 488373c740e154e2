"""Tracepoints to histories: by hand-made lines, and by a real cluster that `lockify check` judges."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockify_lab import Lab, LabError, history, programs

BUILT = ("lockify",)  # the checker

NAME = b"       2              17".hex()


def traced(*events: str) -> list[str]:
    """Lines as the kernel prints them, a microsecond apart."""
    return [f"  cp-70 [000] ..... 1700000000.{i:06}: {event}" for i, event in enumerate(events)]


def events_of(number: int, lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in history.histories({number: lines})]


def test_a_lock_from_request_to_unlock() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags=NOQUEUE|VALBLK|0x80000 res_name={NAME}",
        f"dlm_lock_end: ls_id=1 lkb_id=a mode=EX flags=NOQUEUE|VALBLK error=0 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_unlock_start: ls_id=1 lkb_id=a flags= res_name={NAME}",
        f"dlm_unlock_end: ls_id=1 lkb_id=a flags= error=0 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=-65538 res_name={NAME}",
    )
    events = events_of(3, lines)
    assert [e["event"] for e in events] == ["request", "grant", "unlock", "complete"]
    assert events[0]["flags"] == ["noqueue", "valblk"] and events[0]["node"] == 3
    assert events[1] == {
        "t": 1700000000000002000, "node": 3, "lock": 1, "op": 1, "event": "grant", "mode": "EX",
        "status": 0, "resource": "       2              17",
    }  # fmt: skip


def test_the_kernels_ids_are_used_again_before_an_unlock_is_told() -> None:
    request = f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name={NAME}"
    lines = traced(
        request,
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_unlock_start: ls_id=1 lkb_id=a flags= res_name={NAME}",
        request,
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=-65538 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
    )
    events = events_of(1, lines)
    assert [(e["event"], e["lock"]) for e in events] == [
        ("request", 1), ("grant", 1), ("unlock", 1), ("request", 2), ("complete", 1), ("grant", 2),
    ]  # fmt: skip


def test_calls_that_were_refused_are_no_events() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags=CONVERT res_name={NAME}",
        f"dlm_lock_end: ls_id=1 lkb_id=a mode=EX flags=CONVERT error=-16 res_name={NAME}",
    )
    assert events_of(1, lines) == []


def test_a_claim_makes_its_grant_provisional_until_it_is_settled() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=claim nodeid=2 res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=confirmed nodeid=1 res_name={NAME}",
    )
    events = events_of(1, lines)
    assert [e["event"] for e in events] == ["request", "claim", "grant", "confirm", "settled"]
    assert events[2]["provisional"] and events[4]["lock"] == events[0]["lock"]


def test_a_call_that_waited_at_the_barrier_was_made_before() -> None:
    lines = traced(
        f"dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name={NAME}",
        f"dlm_ast: ls_id=1 lkb_id=a sb_flags= sb_status=0 res_name={NAME}",
        f"dlm_claim: ls_id=1 ordinal=7 how=claim nodeid=2 res_name={NAME}00",
        "dlm_claim_barrier: ls_id=1 lkb_id=a waited_us=2",
        f"dlm_unlock_start: ls_id=1 lkb_id=a flags= res_name={NAME}",
    )
    assert [e["event"] for e in events_of(1, lines)] == ["request", "grant", "unlock", "claim"]


def test_clocks_are_set_by_the_quickest_messages_each_way() -> None:
    """Node 2's clock is 50 us ahead, and messages take 10 us."""
    def at(us: int, event: str) -> str:
        return f"  cp-70 [000] ..... 1700000000.{us:06}: {event}"

    def message(kind: str, sender: int, receiver: int) -> str:
        return f"dlm_{kind}_message: dst={receiver} h_seq=9 h_version=3.2 h_nodeid={sender}"

    request = "dlm_lock_start: ls_id=1 lkb_id=a mode=EX flags= res_name=" + NAME
    traces = {
        1: [at(100, message("send", 1, 2)), at(210, message("recv", 2, 1)), at(220, request)],
        2: [at(160, message("recv", 1, 2)), at(250, message("send", 2, 1)), at(251, request)],
    }
    events = [json.loads(line) for line in history.histories(traces)]
    assert [(e["node"], e["t"] % 1_000_000) for e in events] == [(2, 201_000), (1, 220_000)]


def test_a_trace_that_lost_its_beginning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.1.stats").write_text("overrun: 5\n")
    with pytest.raises(LabError, match="no beginning"):
        history.check_complete(tmp_path, 1)


@pytest.mark.parametrize(
    ("fs", "claim"), [pytest.param("gfs2", "off", marks=pytest.mark.long), ("gfs2", "on"), ("ocfs2", "on")]
)
def test_the_history_of_a_real_cluster_is_clean(lab: Lab, tmp_path: Path, fs: str, claim: str) -> None:
    lab.up(nodes=3, fs=fs, claim=claim, trace=True)
    script = "mkdir -p $MNT/d && for i in $(seq 100); do echo $NODE.$i > $MNT/d/$NODE.$i; done && cat $MNT/d/*"
    lab.sh(script, timeout=120)
    lab.sh("rm -f $MNT/d/$NODE.*", timeout=120)
    out = tmp_path / "history.jsonl"
    assert lab.history(out) > 1000
    if claim == "on":
        assert any(json.loads(line)["event"] == "claim" for line in out.open()), "nothing was claimed"
    words = [programs.need("lockify"), "check", out]
    checked = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr
