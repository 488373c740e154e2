"""Memory runs out where claims are made, sent, answered, asked and given up (docs/design/kernel-claim.md 2, D9: the
failure of a send). Nothing gets lost by it: what could not be sent is sent later.

A debug kernel's failslab lets those allocations fail that may not sleep and that one function of the claim, with
all that it calls, makes; all of them, until the test has seen enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import scenario
from scenario import (
    CREATOR,
    DIRECTORY,
    READER,
    Background,
    check_at_rest,
    counted,
    counters,
    pending,
    stalled,
    succeeded,
    wait_settled,
    wait_until,
)

from lockify_lab.lab import Lab

pytestmark = pytest.mark.debug

FILES = 250
MANY = 1_000_000  # failures, so many that they do not end before they are told to
LIMIT = "/sys/module/dlm/parameters/claim_resend_ms"


@contextmanager
def no_memory(lab: Lab, node: int, function: str) -> Iterator[Callable[[], int]]:
    """Within the function, on the node. Gives how many allocations have failed."""
    # From the function's address to the next; a part of it that the compiler took for cold lies elsewhere.
    script = f"""
        set -e
        span=$(sort /proc/kallsyms | awk '
            begin && $1 != begin {{ print begin, $1; exit }} $3 == "{function}" {{ begin = $1 }}')
        [ -n "$span" ] || {{ echo "this kernel has no function {function}"; exit 1; }}
        cd /sys/kernel/debug/failslab
        echo 0x${{span% *}} >require-start
        echo 0x${{span#* }} >require-end
        echo 32 >stacktrace-depth
        echo 0 >verbose
        echo 0 >space
        echo 1 >interval
        echo {MANY} >times
        echo 100 >probability
    """
    lab.sh(script, node)
    try:
        yield lambda: MANY - int(lab.sh("cat /sys/kernel/debug/failslab/times", node))
    finally:
        lab.sh("echo 0 >/sys/kernel/debug/failslab/probability", node)


@contextmanager
def all_settled(lab: Lab) -> Iterator[None]:
    """The creator's claims from that time are settled in the end, by answers and not by a recovery."""
    wait_settled(lab)
    before = counters(lab)
    yield
    check_at_rest(lab)
    new = counted(counters(lab), before)
    assert new["confirmed"] + new["refusals"] == new["claims"] > FILES
    assert new["recovered"] == new["dropped"] == 0


def grown(lab: Lab, node: int, counter: str, before: dict[str, int]) -> int:
    return counters(lab, node)[counter] - before[counter]


def created_without(lab: Lab, folder: str, node: int, function: str, least: int, failing: Callable[[], bool]) -> None:
    """Creations go on, nobody sees the folder as long as claims are pending, and then everybody does."""
    with Background(lab) as background:
        with no_memory(lab, node, function) as failed:
            succeeded(background.start(scenario.create(folder, FILES), CREATOR))
            reading = background.start(scenario.verify(folder, FILES), READER)
            wait_until("sendings fail", lambda: failed() > 0 and failing())
            time.sleep(2)
            assert not reading.done(), "the folder was seen while claims were pending"
            assert pending(lab) > least
        succeeded(reading)
    lab.sh(scenario.verify(folder, FILES), DIRECTORY)


def test_claims_are_not_sent(poor: Lab) -> None:
    """They stay gathered, and a timer tries again."""
    scenario.warm_up(poor, "claims")
    wait_settled(poor)
    before = counters(poor)
    with all_settled(poor):
        created_without(
            poor,
            "claims",
            CREATOR,
            "send_batches",
            200,
            lambda: grown(poor, CREATOR, "retries", before) > 10 and grown(poor, CREATOR, "batches", before) == 0,
        )


def test_answers_are_not_sent(poor: Lab) -> None:
    """The directory node keeps them."""
    scenario.warm_up(poor, "answers")
    wait_settled(poor)
    before = counters(poor, DIRECTORY)
    with all_settled(poor):
        created_without(
            poor, "answers", DIRECTORY, "send_reply", 50, lambda: grown(poor, DIRECTORY, "retries", before) > 0
        )


def test_claims_are_not_answered(poor: Lab) -> None:
    """The directory node has no memory even to keep an answer: the claims are sent again."""
    usual = poor.sh(f"cat {LIMIT}; echo 500 >{LIMIT}", CREATOR).strip()
    time.sleep(int(usual) / 1000)  # the next look is due by then
    scenario.warm_up(poor, "unanswered")
    wait_settled(poor)
    before = counters(poor)
    with all_settled(poor):
        created_without(
            poor,
            "unanswered",
            DIRECTORY,
            "dlm_claim_receive",
            50,
            lambda: grown(poor, CREATOR, "resent", before) > 0,
        )
    poor.sh(f"echo {usual} >{LIMIT}", CREATOR)
    poor.sh("dmesg | grep -q 'no memory to answer claims of node'", DIRECTORY)


def test_claims_are_not_made(poor: Lab) -> None:
    """Without memory for a claim the lock is looked up."""
    scenario.warm_up(poor, "unmade")
    wait_settled(poor)
    before = counters(poor)
    with no_memory(poor, CREATOR, "dlm_claim_set_master") as failed:
        poor.sh(scenario.create("unmade", FILES), CREATOR)
        assert failed() >= FILES
    new = counted(counters(poor), before)
    assert new["claims"] == 0
    assert new["lookups"] >= FILES
    poor.sh(scenario.verify("unmade", FILES), [READER, DIRECTORY])
    check_at_rest(poor)


def test_what_waited_is_not_sent(poor: Lab) -> None:
    """An operation behind the barrier finds no memory when its time has come: it is started again. (At another
    node's resource: at one of its own the stock code, too, loses a grant that it cannot send.)"""
    poor.sh("mkdir $MNT/parked", READER)
    poor.sh(f"{scenario.create('parked', 1)} rm $MNT/parked/0 && sync", CREATOR)
    wait_settled(poor)
    before = counters(poor)
    with all_settled(poor), Background(poor) as background:
        with no_memory(poor, CREATOR, "claim_parked_work") as failed:
            with stalled(poor, DIRECTORY):
                succeeded(background.start(scenario.create("parked", FILES), CREATOR))
                reading = background.start("ls $MNT/parked | wc -l", READER)
                wait_until("the folder's lock waits", lambda: counters(poor)["parked"] > 0)
            wait_until("it is started", lambda: failed() > 1 and grown(poor, CREATOR, "retries", before) > 1)
            assert not reading.done()
            assert counters(poor)["parked"] > 0
        assert int(succeeded(reading).out) == FILES
    poor.sh(scenario.verify("parked", FILES), [READER, DIRECTORY])


def test_refused_claims_are_not_asked(poor: Lab) -> None:
    """A refused claim's request finds no memory: it is sent later, and its lock is not given up before."""
    scenario.fill(poor, "refused")
    poor.sh(scenario.create("refused", 3 * FILES, "first"), CREATOR)
    poor.sh("cd $MNT/refused && ls | xargs rm && sync", CREATOR)
    wait_settled(poor)
    before = counters(poor, READER)
    with Background(poor) as background:
        with no_memory(poor, READER, "dlm_claim_request") as failed:
            creation = background.start(scenario.create("refused", FILES, "second"), READER)
            wait_until(
                "requests fail", lambda: failed() > 0 and grown(poor, READER, "retries", before) > 10, seconds=60
            )
            assert pending(poor, READER) > 0
            assert grown(poor, READER, "refusals", before) > 0
        succeeded(creation)
    poor.sh(scenario.verify("refused", FILES, "second"), [CREATOR, DIRECTORY])
    check_at_rest(poor)
    new = counted(counters(poor, READER), before)
    assert new["merges"] == new["refusals"] > 0
