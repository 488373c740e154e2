"""The benchmark's counting and judging; that it measures is shown by `labs/kernels/lab bench paper --smoke`."""

import argparse
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockify_lab import build, programs
from lockify_lab.bench import cluster, command, dlmtrace, effort, figures, gates, generators, load, locks
from lockify_lab.bench.packets import attach
from lockify_lab.bench.rows import Row, Rows, quartiles, ratios
from lockify_lab.cluster import MOUNTED
from lockify_lab.errors import LabError, UsageError

LAB = Path(__file__).resolve().parents[1] / "lab"
BUILT = ("kernels", "lockify", "libdlm.so", "libdlm_lt.so")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    made = Rows(tmp_path / "report.jsonl")
    yield made
    made.close()


def _case(**more: str | int) -> dict[str, str | int]:
    case: dict[str, str | int] = {"fs": "gfs2", "stack": "dlm", "claim": "on", "nodes": 5, "active": 1}
    return {**case, "delay_us": 100, "workload": "files", **more}


# -- packets ---------------------------------------------------------------------------------------


def _tp_packets(capture: socket.socket) -> int:
    return int.from_bytes(capture.getsockopt(263, 6, 8)[:4], "little")


def test_only_segments_with_payload_on_the_port_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as capture:
            attach(capture, port)
            capture.bind(("lo", 0))
            _tp_packets(capture)
            client = socket.create_connection(("127.0.0.1", port))
            peer, _ = server.accept()
            with client, peer:
                assert _tp_packets(capture) == 0, "a handshake has no payload"
                for _ in range(50):
                    client.sendall(b"question")
                    assert peer.recv(100) == b"question"
                    peer.sendall(b"a")
                    assert client.recv(100) == b"a"
                # The loopback device shows each packet twice: as sent and as received.
                assert _tp_packets(capture) == 200
            attach(capture, 1)
            _tp_packets(capture)
            with socket.create_connection(("127.0.0.1", port)) as again:
                again.sendall(b"x")
            assert _tp_packets(capture) == 0, "another port"


# -- traces ----------------------------------------------------------------------------------------

_TRACE = """
  load-210  [000] .....  100.000100: dlm_lock_start: lkb_id=10 mode=PR flags= res_name=2061
  load-210  [000] .....  100.000103: dlm_send_message: dst=2 h_cmd=MSG m_type=LOOKUP res_name=0x2061
  <idle>-0  [000] ..s..  100.000500: dlm_recv_message: dst=1 h_cmd=MSG m_type=LOOKUP_REPLY res_name=0x
  <idle>-0  [000] ..s..  100.000600: dlm_ast: lkb_id=10 sb_flags= sb_status=0 res_name=2061
  load-210  [000] .....  100.001000: dlm_lock_start: lkb_id=11 mode=EX flags=VALBLK res_name=2062
  load-210  [000] .....  100.001020: dlm_ast: lkb_id=11 sb_flags= sb_status=0 res_name=2062
  load-210  [000] .....  100.001030: dlm_send_message: dst=3 h_cmd=MSG m_type=0x20 res_name=0x
  kworker-9  [000] .....  100.002000: dlm_lock_start: lkb_id=11 mode=PR flags=CONVERT|VALBLK res_name=2062
  kworker-9  [000] .....  100.003000: dlm_ast: lkb_id=11 sb_flags= sb_status=0 res_name=2062
# entries-in-buffer/entries-written: 9/9   #P:1
"""


def test_a_trace_tells_waits_of_new_locks_and_messages() -> None:
    trace = dlmtrace.parse(_TRACE)
    assert trace.waits_us == pytest.approx([500, 20]), "a conversion is no new lock"
    assert trace.typical_wait_us == pytest.approx(520)
    assert trace.waiting_us == pytest.approx(520)
    assert trace.messages == {"sent LOOKUP": 1, "received LOOKUP_REPLY": 1, "sent CLAIM": 1}
    assert trace.synchronous == 1


def test_locks_waited_for_together_are_waited_for_once() -> None:
    waits = [(0.0, 100.0), (10.0, 50.0), (90.0, 120.0), (200.0, 210.0)]
    trace = dlmtrace.Trace(waits=waits)
    assert sum(trace.waits_us) == 180 and trace.waiting_us == 130


def test_a_trace_that_lost_events_is_refused() -> None:
    with pytest.raises(LabError, match="too small"):
        dlmtrace.parse(_TRACE.replace("9/9", "9/12"))


# -- loads -----------------------------------------------------------------------------------------


def _phase(begin: float, seconds: float, operations: int) -> load.Phase:
    return load.Phase(operations, seconds, seconds, begin, {})


def test_loads_that_ran_together_count_from_the_first_begin_to_the_last_end() -> None:
    assert load.together([_phase(10, 2, 100), _phase(11, 4, 100)]) == pytest.approx(40)


def test_a_load_without_a_result_is_an_error() -> None:
    with pytest.raises(LabError, match="no space left"):
        load.phases("lockify-load: cannot create f: no space left\n")


# -- programs of others ----------------------------------------------------------------------------


def _program(folder: Path, name: str, text: str) -> Path:
    """Stands for a program that this machine may not have."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return path


def _programs(folder: Path, mdtest: bool = False, filebench: bool = False) -> load.Programs:
    return load.Programs(
        Path("/bin/lockify-load"),
        _program(folder, "mdtest", "") if mdtest else None,
        _program(folder, "fb", "") if filebench else None,
        "/usr/bin/postmark",
    )


def test_programs_are_found_on_path_or_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _program(tmp_path, "lockify-load", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = load.find(ours, None, None, smoke=True)
    assert found.mdtest is None and found.filebench is None
    _program(tmp_path, "mdtest", "")
    other = _program(tmp_path, "fb", "")
    found = load.find(ours, None, str(other), smoke=True)
    assert (found.mdtest, found.filebench) == (tmp_path / "mdtest", other)
    with pytest.raises(UsageError, match="--filebench: /nowhere is no program"):
        load.find(ours, None, "/nowhere", smoke=True)


def test_rows_say_who_made_the_load(tmp_path: Path) -> None:
    ours, others = _programs(tmp_path), _programs(tmp_path, mdtest=True, filebench=True)
    workloads = ("files", "directories", "rm -r", "postmark", "fileserver", "webproxy")
    assert [ours.generator(workload, 1) for workload in workloads] == [
        *["lockify-load"] * 3, "postmark", *["lockify-load"] * 2,
    ]  # fmt: skip
    assert [others.generator(workload, 1) for workload in workloads] == [
        "mdtest", "mdtest", "lockify-load", "postmark", "filebench", "filebench",
    ]  # fmt: skip
    assert others.generator("files", 5) == "lockify-load", "several processes of mdtest need MPI"


class _Told(cluster.Cluster):
    """A cluster that runs nothing: it notes what it is told, and answers as programs do."""

    answer = ""

    def _sh(self, script: str, nodes: int | list[int] = 1) -> str:
        self.scripts.append(script)
        return self.answer


def _told(programs: load.Programs, answer: str) -> _Told:
    setup = cluster.Setup("gfs2-claim", "gfs2", "dlm", "on", 5)
    made = _Told(setup, None, programs, [1, 2, 3, 4, 5], 5)  # type: ignore[arg-type]  # no lab
    made.scripts, made.answer = [], answer
    return made


_EXEC = (
    '{"workload":"exec","phases":[{"phase":"exec","kind":"","operations":0,"seconds":4.0,'
    '"settled_seconds":4.5,"begin":1.0,"latency_us":null}]}\n'
)
_MDTEST = """
SUMMARY rate: (of 1 iterations)
   Operation                      Max            Min           Mean        Std Dev
   ---------                      ---            ---           ----        -------
   Directory creation:          0.000          0.000          0.000          0.000
   File creation     :       2100.000       2100.000       2100.000          0.000
   Tree creation     :      28785.200      28785.200      28785.200          0.000
"""
_FILEBENCH = """
3.330: Run took 2 seconds...
createfile1          550ops      271ops/s   0.0mb/s    1.009ms/op [0.000ms - 411.798ms]
3.589: IO Summary:  5927 ops 2963.500 ops/s 264/533 rd/wr  65.7mb/s 1.620ms/op
3.589: Shutting down processes
"""


def test_mdtest_makes_the_tree_of_one_active_node(tmp_path: Path) -> None:
    told = _told(_programs(tmp_path, mdtest=True), _MDTEST + _EXEC)
    run = told.tree(300, ["files"])["files"]
    assert "mdtest -d $MNT/tree1/mdtest-files -C -F -z 2 -b 2 -I 300 2>&1" in told.scripts[-1]
    assert "lockify-load exec --at $MNT/tree1" in told.scripts[-1]
    assert "--witness 10.77.0.2:" in told.scripts[-1]
    assert run.phase.operations == 2100 and run.phase.seconds == pytest.approx(1)
    assert run.phase.settled_seconds == pytest.approx(1.5), "the barrier is lockify-load's"
    with pytest.raises(LabError, match="did not tell a rate of `Directory creation`"):
        told.tree(300, ["directories"])


def test_mdtests_newer_summary_is_read_too() -> None:
    said = generators.mdtest_said("directories", 10)
    assert said("   Directory creation        700.0     700.0   700.0    0.0\n") == (70, pytest.approx(0.1))


def test_filebench_makes_its_loads_by_its_own_language(tmp_path: Path) -> None:
    told = _told(_programs(tmp_path, filebench=True), _FILEBENCH + _EXEC)
    run = told.filebench("webproxy", 500, 30)
    assert run.phase.operations == 5927 and run.phase.rate == pytest.approx(5927 / 2.5)
    file, load_, removed = told.scripts
    assert f"path={MOUNTED}/webproxy1,size=$size,entries=500,dirwidth=1000000,prealloc=80" in file
    assert "instances=100" in file and file.count("readwholefile ") == 5 and "\nrun 30\n" in file
    assert "-- fb -f /run/load.f 2>&1" in load_ and removed == "rm -r $MNT/webproxy1"
    told.answer = _EXEC
    with pytest.raises(LabError, match="IO Summary"):
        told.filebench("fileserver", 500, 3)


def test_filebenchs_file_has_the_fileservers_parameters() -> None:
    text = generators.filebench_file("fileserver", "/mnt/x", 10_000, 3)
    assert "mean:131072;gamma:1.5" in text and "dirwidth=20," in text and "instances=50 {" in text
    assert text.endswith("\nrun 10\n"), "it needs some seconds to begin with"
    assert [line.split()[1] for line in text.splitlines() if "flowop" in line] == [
        "createfile", "writewholefile", "closefile", "openfile", "appendfilerand", "closefile",
        "openfile", "readwholefile", "closefile", "deletefile", "statfile",
    ]  # fmt: skip


def test_an_earlier_filebenchs_summary_is_read_too() -> None:
    said = "12: IO Summary: 303389 ops, 5000.000 ops/s, (1631/163 r/w)"
    assert generators.filebench_said(said) == (303389, pytest.approx(60.6778))


# -- sizes -----------------------------------------------------------------------------------------


class _Fast(_Told):
    """Creates this many a second, without counting the barrier."""

    speed = 0.0

    def tree(self, items: int, kinds: object = (), traced: bool = False) -> dict[str, cluster.Run]:
        self.scripts.append(str(items))
        phases = {
            "directories": _phase(0, items * 7 / (self.speed / 2), items * 7),
            "files": load.Phase(items * 7, items * 7 / self.speed, 1000, 0, {}),
        }
        return {kind: cluster.Run(phase, 0, {}, None) for kind, phase in phases.items()}


@pytest.mark.parametrize(("speed", "items"), [(10_500, 600), (100, 300), (1_000_000, 1500)])
def test_a_quick_run_makes_what_takes_one_node_long_enough(tmp_path: Path, speed: float, items: int) -> None:
    setup = cluster.Setup("gfs2-one", "gfs2", "dlm", "off", 1)
    one = _Fast(setup, None, _programs(tmp_path), [1], 5)  # type: ignore[arg-type]
    one.scripts, one.speed = [], speed
    five = _told(_programs(tmp_path), "")
    assert figures._items([five, one], effort.QUICK) == items
    assert one.scripts == ["300"] and five.scripts == []
    assert figures._items([five], effort.QUICK) == 300, "nothing to measure it by"
    assert figures._items([five, one], effort.FULL) == 5000, "always the paper's"


def test_rounds_given_do_not_make_another_effort() -> None:
    chosen = effort.chosen(quick=False, smoke=False, rounds=2)
    assert (chosen.name, chosen.rounds, chosen.limit) == ("full", 2, effort.FULL.limit)


# -- rows, gates -----------------------------------------------------------------------------------


def test_rows_are_what_the_project_shares(rows: Rows, tmp_path: Path) -> None:
    rows.add("7", _case(), "creates_per_s", [3, 1, 2], 6.4)
    rows.add("7", _case(), "creates_per_s", [])
    (line,) = (tmp_path / "report.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "bench": "7", "case": _case(), "metric": "creates_per_s", "unit": "1/s", "value": 2.0,
        "rounds": [3, 1, 2], "published": 6.4,
    }  # fmt: skip
    assert rows.find("7", "creates_per_s", fs="gfs2") and not rows.find("7", "creates_per_s", fs="ocfs2")


def test_statistics_are_paired() -> None:
    assert ratios([2, 9], [1, 3]) == [2, 3]
    assert quartiles([1, 2, 3, 4, 5]) == (2, 4)
    assert quartiles([7]) == (7, 7)


def _verdicts(rows: Rows, counts_only: bool = False) -> dict[str, bool]:
    found = gates.judge(rows, counts_only)
    return {f"{verdict.bound.kind} {verdict.bound.text}": verdict.passed for verdict in found}


def test_a_gate_is_passed_or_not_by_the_median(rows: Rows) -> None:
    rows.add("packets", _case(), "packets_per_create", [0.3, 0.4, 9])
    rows.add("packets", _case(), "round_trips_per_create", [0.2, 0.2, 0])
    rows.add("packets", _case(claim="off"), "packets_per_create", [3.2])
    rows.add("7", _case(), "ratio_to_one_node", [0.9])
    rows.add("7", _case(delay_us=0), "ratio_to_one_node", [0.1])
    assert _verdicts(rows) == {
        "gate packets a creation": True,
        "goal packets a creation": False,
        "gate synchronous round trips a creation": False,
        "gate creation against one node": True,
        "goal creation against one node": False,
    }
    assert _verdicts(rows, counts_only=True) == {
        "gate packets a creation": True,
        "gate synchronous round trips a creation": False,
    }


def test_fewer_nodes_are_judged_as_five_are(rows: Rows) -> None:
    rows.add("7", _case(nodes=3), "ratio_to_one_node", [0.7])
    assert _verdicts(rows) == {
        "gate creation against one node": False,
        "goal creation against one node": False,
    }


@pytest.mark.parametrize(("explained", "passed"), [(0.3, False), (0.9, True), (1.5, False)])
def test_share_and_throughput_have_to_be_consistent(rows: Rows, explained: float, passed: bool) -> None:
    rows.add("9", _case(), "saving_explained_by_wait", [explained])
    assert _verdicts(rows) == {f"gate {gates._EXPLAINED}": passed}


def test_the_claim_switched_off_has_to_be_the_unpatched_kernel(rows: Rows) -> None:
    off = _case(claim="off", kernel="patched")
    unpatched = {**off, "kernel": "unpatched"}
    rows.add("7", unpatched, "ratio_to_stock", [0.95, 1.02, 1.2])
    rows.add("7", {**unpatched, "delay_us": 0}, "ratio_to_stock", [3])
    rows.add("packets", unpatched, "packets_ratio_to_stock", [1.2])
    rows.add("7", off, "ratio_to_stock", [0.1])
    assert _verdicts(rows) == {f"gate {gates._SAME}rate": True, f"gate {gates._SAME}packets": False}
    assert _verdicts(rows, counts_only=True) == {f"gate {gates._SAME}packets": False}


def test_an_unpatched_kernel_is_of_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.DEFAULT_VARIABLE, raising=False)

    def kernel(*words: str) -> str:
        parser = argparse.ArgumentParser()
        command.arguments(parser)
        given = parser.parse_args(["paper", *words])
        return command._unpatched(given, effort.chosen(given.quick, given.smoke, given.rounds))

    assert kernel("--rounds", "1") == "6.12-stock"
    assert kernel("--quick") == "" and kernel("--quick", "--unpatched") == "6.12-stock"
    assert kernel("--kernel", "6.1-claim") == "6.1-stock" and kernel("--kernel", "/boot/linux") == ""
    with pytest.raises(UsageError, match="by its name"):
        kernel("--kernel", "/boot/linux", "--unpatched")


def test_what_was_measured_becomes_a_report_when_the_time_is_over(rows: Rows, tmp_path: Path) -> None:
    writes = 'echo a table; while [ $# -gt 1 ]; do [ "$1" != --html ] || : >"$2"; shift; done'
    page = _program(tmp_path, "lockify-load", writes)
    report = command._Report(tmp_path, effort.FULL, load.Programs(page, None, None, None), rows)
    report.publish_what_there_is(LabError("the time limit is over"))
    assert not (tmp_path / "report.txt").exists(), "nothing was measured"
    rows.add("7", _case(), "ratio_to_one_node", [0.9])
    report.publish_what_there_is(LabError("the time limit is over"))
    lines = (tmp_path / "report.txt").read_text().splitlines()
    assert lines[0] == "NOT COMPLETE: the time limit is over" and lines[-1] == "a table"
    assert any(line.startswith("pass        gate creation against one node") for line in lines)
    assert (tmp_path / "report.html").exists()


def test_a_lab_that_was_ended_does_not_hide_why(tmp_path: Path) -> None:
    class Ended:
        def sh(self, *_: object, **__: object) -> str:
            raise LabError("the time limit is over")

        def diagnosis(self) -> str:
            raise LabError("the lab is not running")

    setup = cluster.Setup("gfs2-one", "gfs2", "dlm", "off", 1)
    one = cluster.Cluster(setup, Ended(), _programs(tmp_path), [1], 5)  # type: ignore[arg-type]
    with pytest.raises(LabError, match="the time limit is over"):
        one.rest()


def test_a_verdict_says_what_falls_short() -> None:
    row = Row("8", _case(active=5), "ratio_to_stock", [2.0, 2.0, 2.5])
    bound = next(bound for bound in gates.BOUNDS if bound.bench == "8" and bound.kind == "gate")
    line = gates.Verdict(bound, row).line()
    assert line.startswith(
        "FALLS SHORT gate five active against stock: 2 [2 .. 2.25] of 3, wanted >= 3 (gfs2/dlm"
    )


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bench paper --only 77", "there is no figure 77"),
        ("bench paper --quick --smoke", "not allowed with"),
        ("bench paper --rounds -1", "--rounds is at least 1"),
        ("bench paper --timeout 0", "--timeout is more than 0"),
        ("bench paper --filebench /nowhere --load /bin/true", "--filebench: /nowhere is no program"),
        ("bench paper --fs ext4", "invalid choice: 'ext4'"),
        ("bench locks --rounds 0", "--rounds is at least 1"),
        ("bench locks --seconds 0", "--seconds more than 0"),
        ("bench locks --lockify /nowhere", "/nowhere is missing: `make release`"),
        ("bench", "required: BENCH"),
    ],
)
def test_bad_input_is_refused(words: str, told: str) -> None:
    result = subprocess.run([LAB, *words.split()], capture_output=True, text=True, timeout=60)
    assert told in result.stderr
    assert result.returncode == 2


# -- the kernel's lock manager and Lockify's ---------------------------------------------------------


def test_clients_of_a_turn_are_added() -> None:
    slow = "100 1.0\n" + "2000\n" * 100
    quick = "300 1.0\n" + "1000\n" * 300
    turn = locks.together([slow, quick])
    assert (turn.per_second, turn.median_us, turn.tail_us) == (400, 1, 2)
    with pytest.raises(LabError, match="measured nothing, or not all"):
        locks.together([slow, "300 1.0\n1000\n"])
    with pytest.raises(LabError, match="measured nothing, or not all"):
        locks.together(["0 1.0\n"])


def test_hand_overs_are_from_unlock_to_grant() -> None:
    # Half a nanosecond a count. Nobody waited for the third: the next one came when it liked.
    one = "2 1.0 0.5\n1000 2000 1\n9000 10000 0\n"
    two = "2 1.0 0.5\n4000 5000 1\n90000 91000 1\n"
    turn = locks.handed_over([one, two])
    assert (turn.per_second, turn.tail_us) == (1e9 / 1500, 2)
    with pytest.raises(LabError, match="0 hand-overs"):
        locks.handed_over([one, "0 1.0 0.5\n"])
    with pytest.raises(LabError, match="the quickest took -"):
        locks.handed_over([one, "1 1.0 0.5\n1500 1600 1\n"])


@pytest.mark.long
def test_locks_are_measured(tmp_path: Path) -> None:
    """Every task of both lock managers, on one node and on three."""
    for library in ("libdlm", "libdlm_lt"):
        shutil.copy(programs.need(f"{library}.so"), tmp_path / f"{library}.so.3")
    words = ["--lockify", programs.need("lockify"), "--libraries", tmp_path, "--out", tmp_path / "rows"]
    command = [LAB, "bench", "locks", "--rounds", "1", "--seconds", "0.1", *words, "--timeout", "300"]
    subprocess.run(command, check=True, timeout=330)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text("utf-8").splitlines()]
    found = {tuple(row["case"][name] for name in ("nodes", "task", "service", "by")) for row in rows}
    tasks = [(nodes, task.title) for task in locks.TASKS for nodes in task.clusters]
    assert len(tasks) == 15
    expected = {(*task, service, "dlm_lt") for task in tasks for service in ("kernel", "lockify")}
    ways = [("kernel", "dlm"), ("lockify", "dlm"), ("lockify", "embedded")]
    again = {(1, "local re-lock", *way) for way in ways}
    assert found == expected | again
    assert all(value > 0 for row in rows for value in row["rounds"])
