"""The nemesis finds what is planted, says nothing of what is right, and repeats a plan.

Its runs on real daemons are in .ci/run and .ci/long; these tests need neither root nor a daemon.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path

import pytest

from lockify_nemesis import faults, histories
from lockify_nemesis.cli import main
from lockify_nemesis.excuses import Excuses, Stop
from lockify_nemesis.faults import Setting
from lockify_nemesis.judge import Judge
from lockify_nemesis.log_pipe import LogPipe
from lockify_nemesis.modes import MODES, common, compatible
from lockify_nemesis.plan import BadPlan, Plan, draw
from lockify_nemesis.progress import Progress, Steadiness
from lockify_nemesis.record import BadLine, Line, Writer

LEASE = 2_000_000_000


def judged(text: str, excuses: Excuses | None = None) -> Judge:
    """Lines are `t node client word name mode token`."""
    judge = Judge(excuses) if excuses else Judge()
    for line in text.strip().splitlines():
        judge.feed(Line.parse(line))
    return judge


# The modes that clients may hold together.


def test_the_modes_are_those_of_vms() -> None:
    table = {
        "NL": "NL CR CW PR PW EX", "CR": "NL CR CW PR PW", "CW": "NL CR CW", "PR": "NL CR PR", "PW": "NL CR", "EX": "NL",
    }  # fmt: skip
    for one in MODES:
        for other in MODES:
            assert compatible(one, other) == (other in table[one].split()), (one, other)
    assert common("PR", "CW") == "CR"
    assert common("PW", "CW") == "CW"
    assert common("EX", "PR") == "PR"
    for one in MODES:
        assert common(one, one) == one
        assert common("NL", one) == "NL"


def test_holders_one_after_the_other_and_side_by_side_are_right() -> None:
    judge = judged("""
        1 1 a enter x EX 5
        2 1 a still x EX 5
        3 1 a leave x EX 5
        4 2 b enter x PR 0
        5 3 c enter x PR 0
        6 2 b still x PR 0
        7 3 c leave x PR 0
        8 2 b leave x PR 0
        9 1 a enter y EX 6
        10 2 b enter x PW 6
        11 2 b still x PW 6
        12 2 b keep x CR 6
        13 3 c enter x PR 0
        14 2 b mode x CR 0
        15 2 b leave x CR 0
    """)
    assert judge.violations == []
    assert judge.counts["grants"] == 6
    assert judge.counts["conversions"] == 1


@pytest.mark.parametrize("word", ["still", "leave", "keep", "mode"])
def test_who_uses_a_lock_after_another_grant_held_it_too(word: str) -> None:
    judge = judged(f"""
        1 1 a enter x EX 5
        2 2 b enter x PR 0
        3 1 a {word} x EX 5
    """)
    assert judge.counts["overlaps"] == 1
    assert "overlap" in judge.violations[0]


def test_a_conversion_up_beside_a_holder_is_an_overlap() -> None:
    judge = judged("""
        1 1 a enter x PR 0
        2 2 b enter x PR 0
        3 2 b keep x PR 0
        4 2 b mode x EX 7
        5 1 a still x PR 0
    """)
    assert judge.counts["overlaps"] == 1


def test_an_overlap_of_nodes_that_have_one_name_only_counts_there() -> None:
    judge = judged("""
        1 1 a enter x EX 5
        2 2 b enter y EX 5
        3 1 a still x EX 5
        4 2 b still y EX 5
    """)
    assert judge.violations == []


@pytest.mark.parametrize("end", ["lost x EX 5", "gone - - 0"])
def test_whoever_lost_a_lock_or_has_died_overlaps_with_nobody(end: str) -> None:
    judge = judged(f"""
        1 1 a enter x EX 5
        2 1 a {end}
        3 2 b enter x EX 6
        4 2 b leave x EX 6
    """)
    assert judge.violations == []


def test_a_command_that_outlives_its_run_overlaps() -> None:
    """Nobody says that it has gone before its last process has."""
    judge = judged("""
        1 1 run-1-1 enter x EX 5
        2 2 b enter x EX 6
        3 1 run-1-1 still x EX 5
        4 1 run-1-1 gone - - 0
    """)
    assert judge.counts["overlaps"] == 1


@pytest.mark.parametrize(("token", "what"), [(5, "repeats"), (4, "falls"), (0, "no token")])
def test_tokens_rise(token: int, what: str) -> None:
    judge = judged(f"""
        1 1 a enter x EX 5
        2 1 a leave x EX 5
        3 2 b enter x PW {token}
        4 2 b leave x PW {token}
        5 2 b enter y PW 1
    """)
    assert judge.counts["token violations"] == 1
    assert what in judge.violations[0]


def test_a_token_of_a_conversion_counts() -> None:
    judge = judged("""
        1 1 a enter x EX 5
        2 1 a keep x PW 5
        3 1 a mode x PW 5
    """)
    assert judge.counts["token violations"] == 1


def test_lines_of_no_holder_and_no_client_are_told() -> None:
    assert "nothing is held" in judged("1 1 a still x EX 5").violations[0]
    with pytest.raises(BadLine):
        Line.parse("1 1 a dances x EX 5")
    with pytest.raises(BadLine):
        Line.parse("1 1 a enter x EX")


# Daemons that were stopped.


def stopped() -> Excuses:
    """Node 1 stopped from second 10 to 20; the lease is two seconds."""
    excuses = Excuses(LEASE)
    excuses.stopped(1, 10 * LEASE // 2)
    excuses.resumed(1, 20 * LEASE // 2)
    return excuses


def late(at: float, token: int) -> Judge:
    t = int(at * LEASE / 2)
    return judged(
        f"""
        1 1 a enter x EX 5
        {t - 1} 2 b enter x EX {token}
        {t} 1 a still x EX 5
        """,
        stopped(),
    )


@pytest.mark.parametrize(("at", "excused"), [(9, False), (11.9, False), (12.1, True), (19, True), (21.9, True), (22.1, False)])
def test_only_what_comes_after_the_end_of_a_lease_is_excused(at: float, excused: bool) -> None:
    judge = late(at, 6)
    assert judge.counts["excused overlaps"] == excused
    assert judge.counts["overlaps"] == (not excused)
    assert bool(judge.violations) == (not excused)


def test_a_late_write_that_its_token_does_not_tell_is_a_violation() -> None:
    judge = late(15, 4)
    assert judge.counts["excused overlaps"] == 1
    assert any("late write" in violation for violation in judge.violations)


def test_a_short_stop_and_other_nodes_are_not_excused() -> None:
    excuses = stopped()
    assert not excuses(2, 15 * LEASE // 2)
    excuses.stopped(2, 10 * LEASE // 2)
    assert excuses(2, 15 * LEASE // 2), "it is still stopped"
    excuses.resumed(2, 11 * LEASE // 2)
    assert not excuses(2, 15 * LEASE // 2)


def test_a_new_grant_of_a_stopped_daemon_is_not_excused() -> None:
    judge = judged(
        f"""
        1 2 b enter x EX 6
        {15 * LEASE // 2} 1 a enter x EX 7
        {15 * LEASE // 2 + 1} 2 b still x EX 6
        """,
        stopped(),
    )
    assert judge.counts["overlaps"] == 1


# Progress.


def test_progress_is_a_grant_on_every_node_after_the_mending() -> None:
    progress = Progress([1, 2], since=10 * LEASE)
    for line in ("1 1 a enter x EX 5", f"{11 * LEASE} 1 a still x EX 5", f"{11 * LEASE} 2 b enter y EX 5"):
        progress(Line.parse(line))
    assert progress.missing == {1} and not progress.all.is_set()
    progress(Line.parse(f"{13 * LEASE} 1 a enter x EX 6"))
    assert progress.all.is_set()
    assert progress.longest == 6.0


def test_steadiness_counts_in_its_time_only() -> None:
    steady = Steadiness(begin=5, end=15)
    steady.shift(5)
    for line in ("9 1 a lost - - 0", "10 2 b enter x EX 1", "11 2 b lost - - 0", "20 3 c lost - - 0"):
        steady(Line.parse(line))
    assert steady.granted == {2}
    assert [line.t for line in steady.losses] == [11]


# Histories.


def event(t: int, kind: str, **fields: object) -> str:
    return json.dumps({"t": t, "event": kind, "node": 1, "incarnation": 7, **fields}) + "\n"


def test_a_killed_daemon_has_ended_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(event(0, "begin") + event(3, "grant", lock=1, mode="EX") + '{"t":4,"ev', encoding="utf-8")
    events = [json.loads(text) for _, _, text in histories.life(path, 1, [], killed=True)]
    assert [(e["t"], e["event"]) for e in events] == [(3, "grant"), (3, "crash")]
    assert events[1]["incarnation"] == 7
    assert len(list(histories.life(path, 1, [], killed=False))) == 1


def test_a_daemon_that_left_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(event(3, "grant", lock=1, mode="EX") + event(4, "leave"), encoding="utf-8")
    assert [json.loads(e[2])["event"] for e in histories.life(path, 1, [], killed=True)] == ["grant", "leave"]


def test_a_stopped_life_is_over_when_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(event(3, "grant", lock=1, mode="EX") + event(40, "crash"), encoding="utf-8")
    times = [t for t, _, _ in histories.life(path, 1, [Stop(1, 2), Stop(10, 39)], killed=True)]
    assert times == [3, 10]


def test_histories_are_merged_by_time_up_to_the_full_disk(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    paths[0].write_text(event(2, "begin") + event(3, "grant") + event(9, "unlock"), encoding="utf-8")
    paths[1].write_text(event(1, "begin") + event(4, "grant") + event(12, "unlock"), encoding="utf-8")
    out = tmp_path / "merged"
    begin = histories.first_line(paths)
    count = histories.merge((histories.life(p, 1, [], killed=False) for p in paths), begin, out, until=10)
    assert count == 3
    assert [json.loads(line)["t"] for line in out.read_text().splitlines()] == [1, 3, 4, 9]


# Plans.


def plan(nodes: int, membership: str, seed: int, only: list[str] | None = None) -> Plan:
    return draw(nodes, membership, 2.0, seed, 3.0, 1000, only or [])


@pytest.mark.parametrize("membership", ["static", "corosync"])
@pytest.mark.parametrize("nodes", [3, 5, 16])
def test_a_seed_is_a_schedule_that_lasts_as_long_as_asked(nodes: int, membership: str, tmp_path: Path) -> None:
    for seed in range(30):
        drawn = plan(nodes, membership, seed)
        assert drawn == plan(nodes, membership, seed)
        drawn.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == drawn
        length = sum(e.calm + e.length for e in drawn.episodes)
        assert 60 < length < 240, drawn.describe()
    assert plan(nodes, membership, 1) != plan(nodes, membership, 2)


@pytest.mark.parametrize("membership", ["static", "corosync"])
def test_an_hour_has_every_kind_of_fault(membership: str) -> None:
    hour = draw(5, membership, 2.0, 1, 60.0, 1000, [])
    kinds = {fault.kind for episode in hour.episodes for fault in episode.faults}
    assert kinds == set(faults.kinds(Setting(5, membership, 2.0, 1000)))
    assert any(len(episode.faults) == 2 for episode in hour.episodes)


@pytest.mark.parametrize("nodes", [3, 4, 5, 16])
def test_every_fault_mends_what_it_breaks(nodes: int) -> None:
    undo = {"cut": "mend", "pause": "resume", "kill": "start", "stop": "start", "mute": "unmute", "look": "unlook",
            "hoard": "unhoard", "fill": "empty", "fill_state": "empty_state", "save_state": "restore_state", "kill_corosync": "start_corosync", "pause_corosync": "resume_corosync"}
    setting = Setting(nodes, "corosync", 2.0, 1000)
    for kind, make in faults.kinds(setting).items():
        for seed in range(50):
            fault = make(random.Random(seed), setting)
            assert fault.kind == kind and kind in faults.ROOMS
            broken: list[tuple[str, object]] = []
            for step in sorted(fault.steps, key=lambda s: s.at):
                node = step.args.get("node")
                assert node is None or 1 <= node <= nodes
                if step.do in undo:
                    broken.append((undo[step.do], node))
                elif (step.do, node) in broken:
                    broken.remove((step.do, node))
            assert not broken, fault
            assert fault.end >= max(step.at for step in fault.steps)


def test_only_what_is_asked_for_is_drawn() -> None:
    drawn = plan(3, "static", 1, ["kill"])
    assert {fault.kind for episode in drawn.episodes for fault in episode.faults} == {"kill"}
    with pytest.raises(BadPlan, match="bridge"):
        plan(3, "static", 1, ["bridge"])


def test_the_command_prints_a_plan_and_refuses_nonsense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--nodes", "3", "--dry"]) == 0
    first = capsys.readouterr().out
    assert "seed 4" in first
    assert main(["--seed", "4", "--nodes", "3", "--dry"]) == 0
    assert capsys.readouterr().out == first
    assert main(["--only", "meteor", "--dry"]) == 2
    assert "meteor" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    assert main(["--plan", str(tmp_path / "plan.json"), "--dry"]) == 2
    for wrong in (["--nodes", "2"], ["--minutes", "0"]):
        with pytest.raises(SystemExit) as ended:
            main([*wrong, "--dry"])
        assert ended.value.code == 2
        capsys.readouterr()


def test_a_muted_log_blocks_its_writer_and_nothing_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pipe = LogPipe(log)
    os.write(pipe.write, b"before\n")
    pipe.mute()
    writer = threading.Thread(target=os.write, args=(pipe.write, b"meanwhile\n"), daemon=True)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive(), "the pipe took more"
    pipe.unmute()
    writer.join(60)
    os.write(pipe.write, b"after\n")
    limit = time.monotonic() + 60
    while not log.read_bytes().endswith(b"after\n"):
        assert time.monotonic() < limit
        time.sleep(0.01)
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line not in ("(nobody reads this)", "")]
    assert lines == ["before", "meanwhile", "after"]


def test_a_client_writes_what_the_judge_reads(tmp_path: Path) -> None:
    path = tmp_path / "record"
    pen = Writer(path, 2, "client-2-0")
    before = time.monotonic_ns()
    pen.write("enter", "hot-0", "EX", 17)
    pen.write("gone", client="run-2-1")
    first, second = map(Line.parse, path.read_text(encoding="utf-8").splitlines())
    assert first.t >= before
    assert (first.node, first.client, first.word, first.name, first.mode, first.token) == (
        2, "client-2-0", "enter", "hot-0", "EX", 17)  # fmt: skip
    assert (second.client, second.word) == ("run-2-1", "gone")
