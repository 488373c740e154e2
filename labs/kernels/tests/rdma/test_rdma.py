"""Locks in remote memory between real kernels, by Soft-RoCE: docs/onesided-verbs.md.

Times mean nothing here, counts do.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from clocks import Difference, differences
from crews import CLOCKED, HOME, PLAIN_TEXT, PROTOCOLS, UNREPAIRED, Worker, judge, run, server

from lockify_lab import Lab, host, programs

HEADER = Path("/usr/include/infiniband/verbs.h")
TABLE = host.REPOSITORY / "crates" / "rdma" / "fabric" / "src" / "verbs" / "abi.txt"

# Not in CI: now and then a client waits for ever (docs/onesided-verbs.md, "What is checked").
pytestmark = pytest.mark.long
BUILT = ("lockify", "examples/verbs")

# Long enough that who lives is rarely evicted because the machine is busy.
LEASE_MS = 400


def test_the_declarations_of_the_library_are_those_of_its_header(tmp_path: Path) -> None:
    assert HEADER.exists(), "run `labs/kernels/lab setup`"
    lines = ["#include <stddef.h>", "#include <infiniband/verbs.h>"]
    for line in TABLE.read_text("utf-8").splitlines():
        what, number = line.rsplit(" ", 1)
        if name := what.removeprefix("sizeof ") if what.startswith("sizeof ") else "":
            value = f"sizeof(struct {name})"
        else:
            value = "offsetof(struct {}, {})".format(*what.split(".", 1))
        lines.append(f'_Static_assert({value} == {number}, "{line}");')
    source = tmp_path / "abi.c"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    subprocess.run(["cc", "-c", "-o", tmp_path / "abi.o", source], check=True, timeout=60)


def test_the_fabric_does_what_it_promises(lab: Lab) -> None:
    told = lab.sh("/run/lab/verbs rxe0 2>&1", 2, timeout=120)
    assert told.endswith("all is well\n"), told


def test_no_protocol_is_left_out() -> None:
    command = [programs.need("lockify"), "memory-server", "--protocol", "none"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    assert tuple(said.split("use one of: ")[1].split("\n")[0].split(", ")) == PROTOCOLS, said


@pytest.mark.parametrize("protocol", [p for p in PROTOCOLS if p != CLOCKED])
def test_clients_of_three_nodes(lab: Lab, tmp_path: Path, protocol: str) -> None:
    """The published protocol, undisturbed; then with leases, and one client killed."""
    before = differences(lab)
    with server(lab, protocol, 0) as address:
        workers = [Worker(node) for node in (1, 2, 3)]
        run(lab, address, workers)
    clocks = during(lab, before)
    report = judge(lab, workers, clocks, tmp_path / "undisturbed.jsonl")
    assert all(worker.done["pairs"] > 0 and worker.done["revoked"] == 0 for worker in workers)
    assert sum(worker.done["pairs"] for worker in workers) == report["counts"]["grants"]
    if protocol == UNREPAIRED:
        return

    with server(lab, protocol, LEASE_MS) as address:
        # The survivors end when each was given a lock after the victim's death.
        survivors = [Worker(node, seconds=50) for node in (1, 2, 3)]
        victim = Worker(2, seconds=50, victim=True)
        run(lab, address, [*survivors, victim])
    report = judge(lab, [*survivors, victim], during(lab, before), tmp_path / "killed.jsonl")
    assert "fencing" in report["checked"], report["off"]
    assert victim.told["status"] == -9
    assert all(worker.done["elapsed_ns"] < 50e9 for worker in survivors), "somebody was given nothing any more"


def during(lab: Lab, before: dict[int, Difference]) -> dict[int, Difference]:
    """The difference of the clocks from then until now."""
    return {node: before[node].or_else(now) for node, now in differences(lab).items()}


# Per lock and unlock that nobody else wants, as in docs/design/onesided.md 1.3; a
# swap is a CAS here. Where `shared` says nothing, locks are exclusive only.
COSTS: dict[str, dict[str, dict[str, int]]] = {
    "srsl": {"exclusive": {"messages": 2}, "shared": {"messages": 2}},  # and a grant, which the home sends
    "dqnl": {"exclusive": {"cas": 2}},
    "n-cosed": {"exclusive": {"cas": 2}, "shared": {"faa": 1, "messages": 1}},
    "cas-spin": {"exclusive": {"cas": 2}},
    "dslr": {"exclusive": {"faa": 2}, "shared": {"faa": 2}},
    "mcs": {"exclusive": {"cas": 2}},
    "shiftlock": {"exclusive": {"cas": 2}, "shared": {"faa": 2}},
    "shiftlock+": {"exclusive": {"cas": 2}, "shared": {"faa": 2}},
    "rma-rw": {"exclusive": {"cas": 2, "read": 3, "faa": 2}, "shared": {"faa": 2}},
    "shiftlock-s": {"exclusive": {"faa": 2}, "shared": {"faa": 2}},
}


@pytest.mark.parametrize("protocol", COSTS)
def test_a_lock_costs_what_the_specification_says(lab: Lab, protocol: str) -> None:
    """The counts of a client, and the packets that the home's card has received."""
    for mode, cost in COSTS[protocol].items():
        with server(lab, protocol, 0) as address:
            worker = Worker(2, seconds=0.2, locks=1, shared=float(mode == "shared"))
            before = received(lab)
            run(lab, address, [worker])
            after = received(lab)
        done = worker.done
        counted = {kind: done[kind] for kind in ("cas", "faa", "read", "write", "messages")}
        wanted = {kind: cost.get(kind, 0) * done["pairs"] for kind in counted}
        if (protocol, mode) == ("n-cosed", "shared"):
            # After sharing, a client looks at the writers' intents, which docs/design/onesided.md 2.3 adds (hole 9).
            assert 0 <= counted["read"] <= done["pairs"]
            wanted["read"] = counted["read"]
        assert counted == wanted, (mode, done["pairs"])
        if not counted["messages"]:
            # A packet each, but for those that were sent again since the machine is busy.
            fresh = {name: after[name] - before[name] for name in after}
            again = fresh["duplicate_request"] + fresh["out_of_seq_request"]
            assert fresh["rcvd_pkts"] - again == sum(counted.values()), (mode, fresh, counted)


def received(lab: Lab) -> dict[str, int]:
    """The counts of the home's card."""
    names = ("rcvd_pkts", "duplicate_request", "out_of_seq_request")
    text = lab.sh(f"cd /sys/class/infiniband/rxe0/ports/1/hw_counters && cat {' '.join(names)}", HOME)
    return dict(zip(names, map(int, text.split()), strict=True))


def test_commands_run_under_a_lock_of_another_node(lab: Lab) -> None:
    with server(lab, "shiftlock-s", 10_000) as address:
        lock = f"/run/lab/lockify remote-lock --fabric verbs --server {address} --plain-text '{PLAIN_TEXT}'"
        out = lab.sh(f"{lock} db -- sh -c 'echo $LOCKIFY_NAME $LOCKIFY_TOKEN'", [2, 3])
        names, tokens = zip(*(line.split() for line in out.splitlines()), strict=True)
        assert names == ("db", "db") and len(set(tokens)) == 2
        # Twenty increments that would lose some without the lock.
        count = "read n </run/lab/count; sleep 0.01; echo $((n + 1)) >/run/lab/count"
        lab.sh("echo 0 >/run/lab/count", 1)
        lab.sh(f"for i in $(seq 5); do {lock} count -- sh -c '{count}' || exit 1; done", [1, 2, 3])
        assert (lab.folder / "count").read_text("utf-8") == "15\n"


def test_clients_prove_who_they_are(lab: Lab) -> None:
    """Keys, and TLS between server and clients; then locks are taken by RDMA as always."""
    lab.sh("for key in key other; do /run/lab/lockify cluster key /run/lab/$key; done", HOME)
    proof = f"--node {HOME} --cluster-key /run/lab/key"
    with server(lab, "mcs", 10_000, proof=proof) as address:
        lock = f"/run/lab/lockify remote-lock --fabric verbs --server {address} --server-node {HOME}"
        count = "read n </run/lab/count; sleep 0.01; echo $((n + 1)) >/run/lab/count"
        lab.sh("echo 0 >/run/lab/count", HOME)
        proved = f"{lock} --node $NODE --cluster-key /run/lab/key count"
        lab.sh(f"for i in $(seq 3); do {proved} -- sh -c '{count}' || exit 1; done", [1, 2, 3])
        assert (lab.folder / "count").read_text("utf-8") == "9\n"
    with server(lab, "mcs", 10_000, refuses="turned 10.77.0.2:", proof=proof) as address:
        lock = f"/run/lab/lockify remote-lock --fabric verbs --server {address}"
        for options, said in [
            (f"--server-node {HOME} --node 2 --cluster-key /run/lab/other", "not signed by an authority"),
            ("--server-node 3 --node 2 --cluster-key /run/lab/key", "is that of another node"),
            (f"--plain-text '{PLAIN_TEXT}'", "speaks TLS"),
        ]:
            (result,) = lab.run(f"{lock} {options} db -- true", 2)
            assert result.status == 125 and said in result.err, (options, result)


def test_what_cannot_work_is_said(lab: Lab) -> None:
    lock = "/run/lab/lockify remote-lock --fabric verbs"
    plain = f"--plain-text '{PLAIN_TEXT}'"
    with server(lab, CLOCKED, 10_000) as address:
        (result,) = lab.run(f"{lock} --server {address} {plain} db -- true", 2)
        assert result.status == 125 and "needs clocks that agree" in result.err, result
    with server(lab, "shiftlock-s", 10_000, refuses="other") as address:
        for options, code, said in [
            (f"--server {address}", 125, "is not loopback"),
            (f"--server {address} --plain-text yes", 2, "for plain text"),
            (f"--server {address} {plain} --cluster other", 125, "cluster"),
            (f"--server {address} {plain} --rdma-device none0", 125, "this machine has rxe0"),
            (f"--server {address} {plain} --gid-index 99", 125, "no address (GID) with index 99"),
            (f"--server 10.77.0.1:1 {plain}", 125, "cannot reach the memory server"),
        ]:
            (result,) = lab.run(f"{lock} {options} db -- true", 2)
            assert result.status == code and said in result.err, (options, result)
        lab.sh("rdma link delete rxe0", 3)
        (result,) = lab.run(f"{lock} --server {address} {plain} db -- true", 3)
        lab.sh("rdma link add rxe0 type rxe netdev vec0", 3)
        assert result.status == 125 and "has no RDMA device" in result.err, result
