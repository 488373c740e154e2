"""The benchmark's counting and judging; that it measures is shown by `lab/lab bench paper --smoke`."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockify_lab.bench import dlmtrace, gates, load
from lockify_lab.bench.packets import attach
from lockify_lab.bench.rows import Row, Rows, quartiles, ratios
from lockify_lab.errors import LabError

LAB = Path(__file__).resolve().parents[1] / "lab"


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
    assert trace.messages == {"sent LOOKUP": 1, "received LOOKUP_REPLY": 1, "sent CLAIM": 1}
    assert trace.synchronous == 1


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
        ("bench paper --fs ext4", "invalid choice: 'ext4'"),
        ("bench relock --rounds 0", "--rounds is at least 1"),
        ("bench relock --seconds 0", "--seconds more than 0"),
        ("bench relock --lockify /nowhere", "/nowhere is missing: `make release`"),
        ("bench", "required: BENCH"),
    ],
)
def test_bad_input_is_refused(words: str, told: str) -> None:
    result = subprocess.run([LAB, *words.split()], capture_output=True, text=True, timeout=60)
    assert told in result.stderr
    assert result.returncode == 2
