"""Locks that wait for claims must not keep OCFS2's one downconvert thread from its other work.

There is no control: where nothing is claimed the creation itself waits for the stalled node, so that no lock of what it
has made does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import scenario
from ocfs2 import counters, ocfs2
from scenario import CREATOR, DIRECTORY, READER, Background, check_at_rest, stalled, succeeded, wait_until

from lockify_lab.lab import Lab

pytestmark = pytest.mark.long

OTHER = 4
FILES = 400


@pytest.fixture
def four() -> Iterator[Lab]:
    with ocfs2("waiting", 4, claim="on") as lab:
        scenario.warm_up(lab, "waiting")
        lab.sh("mkdir $MNT/shared $MNT/mine.1 $MNT/mine.2 $MNT/mine.4", CREATOR)
        # Inode blocks of their own, and locks that are looked up while nothing stalls.
        lab.sh("for i in {1..30}; do echo $i >$MNT/mine.$NODE/$i || exit 1; done", [READER, OTHER])
        lab.sh("ls $MNT $MNT/waiting >/dev/null", [READER, OTHER])
        lab.sh("ls $MNT/shared", [CREATOR, READER])
        # The creator's again, with blocks for all names: a directory that grows takes clusters.
        lab.sh(
            f"""cd $MNT/waiting && touch it && for ((i = 0; i < {FILES}; i++)); do ln it link.$i; done
                rm -- *""",
            CREATOR,
        )
        yield lab


def test_the_downconvert_thread_goes_on(four: Lab) -> None:
    """While the parent's lock waits for 200+ claims, a lock behind which nothing new is moves."""
    with Background(four) as background:
        with stalled(four, DIRECTORY):
            four.sh(scenario.create("waiting", FILES), CREATOR)
            assert counters(four, CREATOR)["pending"] > 200
            reading = background.start("ls $MNT/waiting | wc -l", READER)
            wait_until("the parent's lock waits", lambda: counters(four, CREATOR)["parked"] > 0)
            # The creator holds PR here, which its downconvert thread has to give up.
            four.sh("touch $MNT/shared/by.2", READER, timeout=15)
            time.sleep(0.5)
            assert not reading.done()
        assert int(succeeded(reading).out) == FILES
    check_at_rest(four)


def test_a_waiting_lock_comes_to_block_more(four: Lab) -> None:
    """First a reader wants the parent, then another creator, while it waits on its way to PR."""
    with Background(four) as background:
        with stalled(four, DIRECTORY):
            four.sh(scenario.create("waiting", FILES), CREATOR)
            reading = background.start("ls $MNT/waiting | wc -l", READER)
            wait_until("the parent's lock waits", lambda: counters(four, CREATOR)["parked"] > 0)
            creating = background.start("echo more >$MNT/waiting/more", OTHER)
            time.sleep(1)
            assert not reading.done() and not creating.done()
        assert int(succeeded(reading).out) in (FILES, FILES + 1)
        succeeded(creating)
        four.sh('[ "$(cat $MNT/waiting/more)" = more ]', CREATOR)
    check_at_rest(four)


def test_claims_pending_at_unmount(four: Lab) -> None:
    """An unmount gives all locks up through the same barrier."""
    with Background(four) as background:
        with stalled(four, DIRECTORY):
            four.sh(scenario.create("waiting", FILES), CREATOR)
            assert counters(four, CREATOR)["pending"] > 200
            leaving = background.start("cd / && umount $MNT", CREATOR)
            time.sleep(1)
        succeeded(leaving)
    four.sh(scenario.verify("waiting", FILES), READER)
