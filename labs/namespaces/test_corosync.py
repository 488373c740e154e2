"""Lockify on real corosync: who is in, who waits, who loses what, and no rule of `lockify check` broken.

Run with /usr/bin/python3 -m pytest labs/namespaces, as root, after building lockify and lockifyd.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from yard import LOCKIFY, LOCKIFYD, PATIENCE, Failure, Times, Yard

LOST = 123
"""What `lockify run` exits with when it lost the lock and killed its command."""


class Load:
    """Clients that lock and unlock a few names on all nodes, all the time; some will fail."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.granted = yard, 0
        self.quiet: set[int] = set()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(n,)) for n in yard.nodes]

    def _work(self, number: int) -> None:
        step = 0
        while not self.stop.wait(0.2):
            if number in self.quiet:
                continue
            step += 1
            try:
                self.granted += self.yard.can_lock(number, f"busy-{step % 3}", "2s")
            except (Failure, subprocess.TimeoutExpired):
                pass  # a daemon that is stopped answers later, one that is down never


@contextmanager
def loaded(yard: Yard) -> Iterator[Load]:
    load = Load(yard)
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        for thread in load.threads:
            thread.join()
    assert load.granted > 0


def all_of(yard: Yard) -> list[int]:
    return list(yard.nodes)


def crash(yard: Yard, load: Load, number: int, kill: Callable[[int], None]) -> None:
    """Kills something on a node that holds a lock, after what it recorded is on disk."""
    load.quiet.add(number)
    yard.hold(number, f"held-by-{number}")
    time.sleep(2.5)
    kill(number)


def machine_dies_and_comes_back(yard: Yard, load: Load, number: int, other: int) -> None:
    rest = [node for node in yard.nodes if node != number]
    crash(yard, load, number, yard.kill_machine)
    yard.until_members(rest)
    yard.lock(other, f"held-by-{number}")
    yard.start_corosync(number)
    yard.start_daemon(number)
    load.quiet.clear()
    yard.until_members(all_of(yard))


def daemon_stops_and_goes_on(yard: Yard, load: Load, number: int, other: int) -> None:
    client = yard.hold(number, f"stopped-on-{number}")
    load.quiet.add(number)
    time.sleep(2.5)
    yard.stop_daemon(number)
    yard.until_members([node for node in yard.nodes if node != number])
    yard.lock(other, f"stopped-on-{number}")
    yard.signal_daemon(number, signal.SIGCONT)
    assert client.wait(60) == LOST
    load.quiet.clear()
    yard.until_members(all_of(yard))


def test_three_nodes_and_everything_that_can_die_on_one() -> None:
    with Yard(3) as yard, loaded(yard) as load:
        yard.until_members([1, 2, 3])
        others = [1, 2]
        # The daemon: corosync says so at once, and nobody waits for a lease.
        crash(yard, load, 3, yard.kill_daemon)
        yard.until_members(others)
        yard.lock(1, "held-by-3")
        yard.start_daemon(3)
        load.quiet.clear()
        yard.until_members([1, 2, 3])
        # Corosync: the daemon lives, revokes its clients' locks, and comes back with it.
        client = yard.hold(3, "kept")
        assert not yard.can_lock(1, "kept")
        yard.kill_corosync(3)
        assert client.wait(60) == LOST
        assert yard.nodes[3].said("corosync on this node has ended") == 1
        yard.lock(2, "kept")
        yard.start_corosync(3)
        yard.until_members([1, 2, 3])
        # The machine: its lease has to be waited for.
        machine_dies_and_comes_back(yard, load, 1, other=3)
        load.stop.set()
        assert yard.check()["counts"]["crashes"] >= 3  # type: ignore[index]


def test_a_stopped_daemon_is_left_behind_and_finds_its_locks_lost() -> None:
    with Yard(3) as yard, loaded(yard) as load:
        yard.until_members([1, 2, 3])
        daemon_stops_and_goes_on(yard, load, 1, other=2)
        # Corosync stopped: the daemon hears nothing wrong, and its lease ends all the same.
        client = yard.hold(2, "held")
        yard.signal_corosync(2, signal.SIGSTOP)
        assert client.wait(60) == LOST
        yard.lock(3, "held")
        yard.signal_corosync(2, signal.SIGCONT)
        yard.until_members([1, 2, 3])
        load.stop.set()
        yard.check()


def test_five_nodes_cut_into_parts() -> None:
    with Yard(5) as yard, loaded(yard) as load:
        yard.until_members([1, 2, 3, 4, 5])
        client = yard.hold(2, "held")
        kept = yard.hold(5, "kept")
        yard.partition([1, 2], [3, 4, 5])
        assert client.wait(60) == LOST
        yard.until_members([3, 4, 5])
        yard.lock(3, "held")
        assert not yard.can_lock(1, "held", "1s")
        assert kept.poll() is None, "the majority's locks stay"
        yard.heal()
        yard.until_members(all_of(yard))
        assert not yard.can_lock(1, "kept")
        # No part has a majority: nobody is granted anything.
        yard.partition([1, 2], [3, 4], [5])
        assert kept.wait(60) == LOST
        for number in yard.nodes:
            yard.until(f"node {number} is in no view", lambda n=number: yard.members(n) == [])
        assert not yard.can_lock(3, "kept", "1s")
        yard.heal()
        yard.until_members(all_of(yard))
        yard.lock(4, "kept")
        load.stop.set()
        yard.check()


def test_machines_die_and_daemons_stop_among_five() -> None:
    with Yard(5) as yard, loaded(yard) as load:
        yard.until_members(all_of(yard))
        machine_dies_and_comes_back(yard, load, 4, other=1)
        daemon_stops_and_goes_on(yard, load, 2, other=5)
        load.stop.set()
        assert yard.check()["counts"]["crashes"] >= 1  # type: ignore[index]


def test_sixteen_nodes() -> None:
    with Yard(16, Times(token=5000, lease="8s")) as yard, loaded(yard) as load:
        yard.until_members(all_of(yard))
        machine_dies_and_comes_back(yard, load, 16, other=1)
        daemon_stops_and_goes_on(yard, load, 9, other=2)
        client = yard.hold(3, "held")
        yard.partition(list(range(1, 8)))
        assert client.wait(60) == LOST
        yard.until_members(list(range(8, 17)))
        yard.lock(8, "held")
        yard.heal()
        yard.until_members(all_of(yard))
        load.stop.set()
        yard.check()


AGENT = """#!/bin/sh
# Fences as a power switch would: kills everything on the machine. Fails until it may.
echo "$1 $LOCKIFY_NAME" >>{folder}/agent.log
[ -e {folder}/switch-works ] || exit 1
kill -9 $(cat {folder}/pids-$1) || exit 1
"""


def test_an_agent_is_the_proof() -> None:
    yard = Yard(3)
    folder = yard.folder
    yard.config = f'fence = "command"\n[fencing]\ncommand = ["{folder}/agent", "{{node}}"]\n'
    agent = folder / "agent"
    agent.write_text(AGENT.format(folder=folder), encoding="utf-8")
    agent.chmod(0o755)
    with yard:
        yard.until_members([1, 2, 3])
        yard.hold(3, "held")
        node = yard.nodes[3]
        assert node.daemon is not None and node.corosync is not None
        (folder / "pids-3").write_text(f"{node.daemon.pid} {node.corosync.pid}\n", encoding="utf-8")
        time.sleep(2.5)
        yard.partition([3])
        calls = folder / "agent.log"
        yard.until("the agent failed twice", lambda: calls.exists() and len(calls.read_text().split()) >= 4)
        assert set(calls.read_text().splitlines()) == {"3 node3"}
        # Node 3 has lost its quorum and revoked the lock, but without proof nobody gets it.
        waiter = yard.client(1, "held", "true")
        time.sleep(2)
        assert waiter.poll() is None
        assert yard.members(1) == [1, 2, 3]
        assert "waits for the fencing of node 3" in yard.says(1, "doctor", "held")
        assert "node 3 has no quorum: no lock is granted there" in yard.says(3, "status")
        assert "node 3 has no quorum" in yard.says(3, "doctor", "held")
        (folder / "switch-works").touch()
        node.deaths.append(time.monotonic_ns())
        yard.until_members([1, 2])
        assert waiter.wait(60) == 0
        assert node.daemon.wait(60) != 0
        node.daemon = None
        assert "was fenced" in yard.told()
        yard.heal()
        node.corosync.wait(60)
        yard.start_corosync(3)
        yard.start_daemon(3)
        yard.until_members([1, 2, 3])
        yard.check()


def test_a_node_may_end_when_it_loses_its_quorum() -> None:
    with Yard(3) as yard:
        yard.until_members([1, 2, 3])
        node = yard.nodes[1]
        assert node.daemon is not None
        node.daemon.terminate()
        assert node.daemon.wait(60) == 0
        yard.until_members([2, 3])
        flag = node.folder / "flag"
        yard.start_daemon(1, f'[quorum_lost]\naction = "exit"\ncommand = ["touch", "{flag}"]\n')
        yard.until_members([1, 2, 3])
        yard.partition([1])
        assert node.daemon.wait(60) != 0
        node.daemon = None
        assert "quorum_lost.action" in node.log.read_text(encoding="utf-8")
        yard.until("the command has run", flag.exists)
        yard.until_members([2, 3])
        yard.check()


def test_without_fencing_the_operator_is_warned_and_nothing_is_waited_for() -> None:
    with Yard(3, config='fence = "none"\n') as yard:
        yard.until_members([1, 2, 3])
        assert yard.nodes[1].said('fence = "none"') == 1
        assert 'node 1 does not wait for fencing (fence = "none")' in yard.says(1, "status")
        yard.hold(3, "held")
        time.sleep(2.5)
        yard.kill_machine(3)
        yard.until_members([1, 2])
        yard.lock(1, "held")


def test_an_unprivileged_daemon_with_certificates() -> None:
    """As the packages run it: its user may use corosync because corosync's configuration says so."""
    with Yard(3, user="nobody") as yard, loaded(yard) as load:
        yard.until_members([1, 2, 3])
        daemon = yard.nodes[1].daemon
        assert daemon is not None and Path(f"/proc/{daemon.pid}").owner() == "nobody"
        assert yard.nodes[1].said("nodes prove to each other who they are") == 1
        load.quiet.add(3)
        yard.partition([3])
        yard.until_members([1, 2])
        yard.heal()
        yard.until_members([1, 2, 3])
        yard.lock(3, "after")
        yard.check()


def restart(yard: Yard, number: int) -> subprocess.CompletedProcess[str]:
    line = [str(LOCKIFY), "restart", "--socket", str(yard.nodes[number].socket)]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("fence", ["lease", "command"])
def test_a_restarted_daemon_keeps_its_locks_and_its_place(fence: str) -> None:
    yard = Yard(3)
    if fence == "command":
        agent = f'["/usr/bin/touch", "{yard.folder}/fenced-{{node}}"]'
        yard.config = f'fence = "command"\n[fencing]\ncommand = {agent}\n'
    with yard:
        yard.until_members([1, 2, 3])
        with loaded(yard):
            held = {n: yard.hold(n, f"held-by-{n}") for n in yard.nodes}
            views = {n: yard.nodes[n].said(" view ") for n in yard.nodes}
            # The one that proposes views, too, and one of them twice.
            for number in [3, 1, 2, 1]:
                done = restart(yard, number)
                assert done.returncode == 0, done
                for name in held:
                    assert not yard.can_lock(2 if number != 2 else 3, f"held-by-{name}")
            # Nobody saw another view, was fenced, or lost anything, and nobody will.
            time.sleep(3 * yard.lease)
            assert views == {n: yard.nodes[n].said(" view ") for n in yard.nodes}, yard.told()
            assert all(client.poll() is None for client in held.values())
            assert not list(yard.folder.glob("fenced-*"))
            for number, client in held.items():
                yard.end_client(client)
                yard.lock(1, f"held-by-{number}")
        yard.check()


def test_a_daemon_that_does_not_come_back_is_as_dead_as_its_machine() -> None:
    with Yard(3, own_programs=True) as yard, loaded(yard) as load:
        yard.until_members([1, 2, 3])
        load.quiet.add(3)
        yard.hold(3, "held")
        time.sleep(2.5)
        yard.break_program(3)
        node = yard.nodes[3]
        daemon, began = node.daemon, time.monotonic()
        assert daemon is not None
        yard.signal_daemon(3, signal.SIGUSR2)
        assert daemon.wait(PATIENCE) == 1
        node.deaths.append(time.monotonic_ns())
        yard.lock(1, "held")
        assert time.monotonic() - began > yard.lease, "its lease was not waited for"
        yard.until_members([1, 2])
        node.daemon = None
        yard.mend_program(3)
        yard.start_daemon(3)
        load.quiet.clear()
        yard.until_members([1, 2, 3])
        load.stop.set()
        yard.check()


@pytest.mark.parametrize(
    ("change", "config", "says"),
    [
        (lambda y: y.kill_corosync(1), "node = 9", "is it running on this node?"),
        (lambda y: None, "node = 9", "corosync says that this is node 1"),
        (lambda y: None, 'lease = "1s"', "wrong.toml: line 2, column 1: lease = \"1s\" is shorter than"),
    ],
)
def test_a_daemon_that_cannot_use_corosync_says_why(change: Callable[[Yard], None], config: str, says: str) -> None:
    with Yard(1) as yard:
        yard.until_members([1])
        node = yard.nodes[1]
        assert node.daemon is not None
        node.daemon.terminate()
        node.daemon.wait(60)
        change(yard)
        path = node.folder / "wrong.toml"
        path.write_text(f'membership = "corosync"\n{config}\nsocket = "{node.socket}"\n', encoding="utf-8")
        done = subprocess.run(node.inside(LOCKIFYD, path), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert says in done.stderr
