"""Nodes die while claims are pending: docs/design/kernel-claim.md 2, D5 and D8."""

from __future__ import annotations

import time

import scenario
from scenario import CREATOR, DIRECTORY, READER, Background, check_at_rest, succeeded

from lockify_lab.lab import Lab

FILES = 400
LONG = 150  # corosync's token, the DLM's recovery, the journal's replay
SHORT = 5000  # ms, a token where nobody is silent but who is dead


def test_directory_dies_with_claims_pending(mortal: Lab) -> None:
    """D5: granted locks stay granted through the recovery, and the files are there."""
    on = scenario.claims(mortal)
    scenario.warm_up(mortal, "d5")
    with Background(mortal) as background:
        mortal.stall(DIRECTORY)
        creation = background.start(scenario.create("d5", FILES), CREATOR, LONG)
        if on:
            succeeded(creation)
            assert scenario.pending(mortal) > 200
        else:
            time.sleep(1)
        mortal.crash(DIRECTORY)
        succeeded(creation, LONG + 10)
        mortal.sh(scenario.verify("d5", FILES), READER, timeout=LONG)
    mortal.sh(f"mkdir $MNT/after && {scenario.create('after', 50)}", READER, timeout=LONG)
    mortal.sh(scenario.verify("after", 50), CREATOR, timeout=LONG)
    check_at_rest(mortal)
    if on:
        assert scenario.counters(mortal)["recovered"] > 200


def test_directory_dies_while_a_lock_waits_for_claims(mortal: Lab) -> None:
    """D8: who waits at the barrier does not keep the recovery out that would open it."""
    on = scenario.claims(mortal)
    scenario.warm_up(mortal, "d8")
    with Background(mortal) as background:
        mortal.stall(DIRECTORY)
        creation = background.start(scenario.create("d8", FILES), CREATOR, LONG)
        if on:
            succeeded(creation)
            assert scenario.pending(mortal) > 200
        reading = background.start("ls $MNT/d8 | wc -l", READER, LONG)
        if on:
            scenario.wait_until(
                "the folder's lock waits", lambda: scenario.counters(mortal)["parked"] > 0, 8
            )
            assert not reading.done()
        mortal.crash(DIRECTORY)
        succeeded(creation, LONG + 10)
        listed = int(succeeded(reading, LONG + 10).out)
        assert listed == FILES or not on
        mortal.sh(scenario.verify("d8", FILES), READER, timeout=LONG)
    check_at_rest(mortal)


def test_claimer_dies_with_claims_pending(mortal: Lab) -> None:
    """Nobody has seen its files; what it had made before is there, and names can be used again."""
    on = scenario.claims(mortal)
    scenario.warm_up(mortal, "died")
    mortal.sh(f"mkdir $MNT/died/more && {scenario.create('died', 50, 'kept')} sync", CREATOR)
    with Background(mortal) as background:
        mortal.stall(DIRECTORY)
        creation = background.start(scenario.create("died/more", FILES), CREATOR, LONG)
        if on:
            succeeded(creation)
            assert scenario.pending(mortal) > 200
        else:
            time.sleep(2)
        mortal.crash(CREATOR)
        mortal.resume(DIRECTORY)
        creation.result(LONG + 10)
        read = "for i in {0..49}; do grep -q kept $MNT/died/$i || exit 1; done"
        mortal.sh(read, [READER, DIRECTORY], timeout=LONG)
        mortal.sh(scenario.half_made("died/more"), [READER, DIRECTORY], timeout=LONG)
    mortal.sh("rm -rf $MNT/died && mkdir $MNT/died", READER, timeout=LONG)
    mortal.sh(scenario.create("died", 300), READER, timeout=LONG)
    mortal.sh(scenario.verify("died", 300), DIRECTORY, timeout=LONG)
    check_at_rest(mortal)


def test_a_third_node_dies_with_claims_pending(mortal: Lab) -> None:
    """Neither the claimer nor the node that its claims are at, which has to see the third one die."""
    on = scenario.claims(mortal)
    mortal.set_token(SHORT)
    scenario.warm_up(mortal, "third")
    mortal.sh(f"mkdir $MNT/kept && {scenario.create('kept', 50)} sync", READER)
    with Background(mortal) as background:
        scenario.stop_lockspace(mortal, DIRECTORY)
        creation = background.start(scenario.create("third", FILES), CREATOR, LONG)
        if on:
            succeeded(creation)
        else:
            time.sleep(1)
        mortal.crash(READER)
        if on:
            assert scenario.pending(mortal) > 200
        succeeded(creation, LONG + 10)
        mortal.sh(scenario.verify("third", FILES), DIRECTORY, timeout=LONG)
    mortal.sh(scenario.verify("kept", 50), timeout=LONG)
    mortal.sh(f"mkdir $MNT/after && {scenario.create('after', 50)}", DIRECTORY, timeout=LONG)
    mortal.sh(scenario.verify("after", 50), CREATOR, timeout=LONG)
    check_at_rest(mortal)
    if on:
        assert scenario.counters(mortal)["recovered"] > 200
