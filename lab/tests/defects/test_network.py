"""The network loses what is sent one way, or breaks a connection, while claims are under way.

Kernel-claim.md section 2, D6 and D9: a claim is confirmed by its answer and by nothing else, and
answered once, however often its message was on the way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import scenario
from lockify_lab import faults
from lockify_lab.lab import Lab
from scenario import (
    CREATOR,
    DIRECTORY,
    READER,
    Background,
    check_at_rest,
    counted,
    counters,
    lost,
    pending,
    stalled,
    succeeded,
    wait_settled,
    wait_until,
)

FILES = 400
# What the network keeps from its sender, in both directions between the creator and its directory.
DIRECTIONS = [
    pytest.param(CREATOR, DIRECTORY, id="claims-lost"),
    pytest.param(DIRECTORY, CREATOR, id="answers-lost"),
]


def on(lab: Lab) -> bool:
    return lab.options.claim == "on"


def answered(lab: Lab) -> int:
    """Claims that all directory nodes together have answered."""
    return sum(counts["answered"] for counts in lab.counters().values())


@contextmanager
def each_answered_once(lab: Lab) -> Iterator[None]:
    """Claims that are made meanwhile by the creator are settled, as many as answers were given."""
    wait_settled(lab)
    before, answered_before = counters(lab), answered(lab)
    yield
    check_at_rest(lab)
    after = counters(lab)
    if not on(lab):
        assert after["claims"] == before["claims"]
        return
    new = counted(after, before)
    assert new["claims"] > FILES
    assert new["confirmed"] + new["refusals"] == new["claims"]
    assert new["recovered"] == 0, "no member was lost: nothing was to recover"
    assert answered(lab) - answered_before == new["claims"]


@pytest.mark.parametrize(("sender", "receiver"), DIRECTIONS)
def test_one_direction_is_lost(checked: Lab, sender: int, receiver: int) -> None:
    """D6: however long claims or answers are lost, nobody sees the folder, and then everybody does."""
    folder = f"lost.{sender}"
    scenario.warm_up(checked, folder)
    with each_answered_once(checked), Background(checked) as background:
        with lost(checked, sender, receiver):
            creation = background.start(scenario.create(folder, FILES), CREATOR)
            reading = None
            if on(checked):
                succeeded(creation)
                assert pending(checked) > 200
                reading = background.start(scenario.verify(folder, FILES), READER)
                time.sleep(2)
                assert not reading.done(), "the folder was seen while claims were pending"
                assert pending(checked) > 200
            else:
                time.sleep(2)
                assert not creation.done()
        succeeded(creation)
        succeeded(reading or background.start(scenario.verify(folder, FILES), READER))
    checked.sh(scenario.verify(folder, FILES), DIRECTORY)


@pytest.mark.long
def test_bursts_of_loss_in_one_direction(checked: Lab) -> None:
    """Two nodes create and read each other's files while one direction comes and goes."""
    folders = 8
    checked.sh("mkdir $MNT/bursts && mkdir $MNT/bursts/{1,2}.{0..7}", CREATOR)
    work = f"""
        {scenario.CREATE.format()} {scenario.VERIFY}
        for ((d = 0; d < {folders}; d++)); do
            create bursts/$NODE.$d 50 burst || exit 1
            until [ -e $MNT/bursts/{{0}}.$d/49 ]; do sleep 0.1; done
            sync $MNT/bursts/{{0}}.$d && verify bursts/{{0}}.$d 50 burst || exit 1
        done
    """.replace("{0}", "$((3 - NODE))")
    bursts = f"""
        for ((b = 0; b < 15; b++)); do
            {faults.blackhole([DIRECTORY])} sleep 0.3
            {faults.unblackhole([DIRECTORY])} sleep 0.1
        done
    """
    retransmitted = "awk '/^Tcp:/ {n = $13} END {print n}' /proc/net/snmp"
    before = int(checked.sh(retransmitted, CREATOR))
    with Background(checked) as background:
        losing = background.start(bursts, CREATOR)
        jobs = [background.start(work, node) for node in (CREATOR, READER)]
        for job in [losing, *jobs]:
            succeeded(job)
    assert int(checked.sh(retransmitted, CREATOR)) > before, "nothing was lost: this tests nothing"
    check_at_rest(checked)
    check = "\n".join(
        f"verify bursts/{node}.{d} 50 burst" for node in (CREATOR, READER) for d in range(folders)
    )
    checked.sh(f"{scenario.VERIFY}\n{check}", DIRECTORY)


@pytest.mark.long
@pytest.mark.parametrize(("breaks", "other"), DIRECTIONS)
def test_a_connection_breaks(checked: Lab, breaks: int, other: int) -> None:
    """D9: the transport gives a connection up with claims or answers in it. They are sent again."""
    folder = f"broken.{breaks}"
    scenario.warm_up(checked, folder)
    retries = "sysctl -qw net.ipv4.tcp_retries2={}"
    broken = "dmesg | grep -c 'socket error sending to node' || :"
    before = int(checked.sh(broken, breaks))
    checked.sh(retries.format(3), breaks)  # about two seconds instead of a quarter of an hour
    try:
        with each_answered_once(checked), Background(checked) as background:
            with lost(checked, breaks, other):
                creation = background.start(scenario.create(folder, FILES), CREATOR)
                if on(checked):
                    succeeded(creation)
                wait_until("the connection breaks", lambda: int(checked.sh(broken, breaks)) > before)
                if on(checked):
                    assert pending(checked) > 200, "claims were confirmed without an answer"
            succeeded(creation)
            succeeded(background.start(scenario.verify(folder, FILES), READER))
    finally:
        checked.sh(retries.format(15), breaks)
    checked.sh(scenario.verify(folder, FILES), DIRECTORY)


@pytest.mark.long
def test_the_claimer_stalls(checked: Lab) -> None:
    """A node stops with claims unanswered, and others wait for what it holds; it goes on."""
    scenario.warm_up(checked, "stalls")
    with each_answered_once(checked), Background(checked) as background:
        with lost(checked, CREATOR, DIRECTORY):
            creation = background.start(scenario.create("stalls", FILES), CREATOR)
            if on(checked):
                succeeded(creation)
                assert pending(checked) > 200
            with stalled(checked, CREATOR):
                reading = background.start("ls $MNT/stalls | wc -l", READER)
                time.sleep(2)
                assert not reading.done()
        succeeded(creation)
        listed = int(succeeded(reading).out)
        assert listed == FILES or not on(checked)
        succeeded(background.start(scenario.verify("stalls", FILES), READER))
    checked.sh(scenario.verify("stalls", FILES), DIRECTORY)
