"""Blocks, and with them lock names, are used again: docs/design/kernel-claim.md 2, D1 and D2, and
crossed refusals."""

from __future__ import annotations

import time

import scenario
from scenario import CREATOR, READER, Background, check_at_rest, check_on_disk, fill, stalled, succeeded

from lockify_lab.lab import Lab

FILES = 400
ROUNDS = 9
INODES = "stat -c %i $MNT/reuse/*"
DELETE = "cd $MNT/reuse && ls | xargs rm && sync"


def test_blocks_move_between_nodes(full: Lab) -> None:
    """D1, D2: what one node has created and deleted alone, another creates on the same blocks; a
    third reads. They change places until every node has met every other's old locks."""
    fill(full, "reuse a b")
    seen: set[str] = set()
    reused = 0
    for number in range(ROUNDS):
        first, second, reader = (1 + (number + place) % 3 for place in range(3))
        full.sh(scenario.create("reuse", FILES, "old"), first, timeout=120)
        seen |= set(full.sh(INODES, first).split())
        full.sh(DELETE, first, timeout=120)
        word = f"round{number}"
        full.sh(scenario.create("reuse", FILES, word), second, timeout=120)
        full.sh(scenario.verify("reuse", FILES, word), reader, timeout=120)
        reused += len(set(full.sh(INODES, reader).split()) & seen)
        full.sh(DELETE, second, timeout=120)
    assert reused > ROUNDS * FILES // 3, "blocks were not used again: this tests nothing"
    check_at_rest(full)
    if scenario.claims(full):
        counts = full.counters().values()
        assert sum(c["refusals"] for c in counts) > 0
        assert sum(c["merges"] for c in counts) > 0
    check_on_disk(full)


def test_refusals_cross(full: Lab) -> None:
    """Two nodes at once claim names whose old locks the other one holds; a third reads along."""
    fill(full, "a b")
    rounds = """
        for ((r = 0; r < 12; r++)); do
            for ((i = 0; i < 120; i++)); do echo "$r $i" >$MNT/{0}/$i || exit 1; done
            for ((i = 0; i < 120; i++)); do
                [ "$(cat $MNT/{0}/$i)" = "$r $i" ] || {{ echo "{0}/$i in round $r"; exit 1; }}
            done
            rm $MNT/{0}/* || exit 1
            sync
        done
    """
    look = "for ((r = 0; r < 60; r++)); do ls -l $MNT/a $MNT/b >/dev/null 2>&1; sleep 0.2; done"
    with Background(full) as background:
        jobs = [background.start(rounds.format(folder), node, 240) for node, folder in ((1, "a"), (2, "b"))]
        looking = background.start(look, 3, 240)
        for job in jobs:
            succeeded(job, 250)
        succeeded(looking, 250)
    time.sleep(1)
    check_at_rest(full)
    # One of some 70 such struggles for the last blocks leaves a deletion undone, with an unchanged kernel, too.
    check_on_disk(full, unlinked=True)


def test_deletions_are_done_before_unmounting(three: Lab) -> None:
    """A node that is asked too late to release a deleted file has to delete it. It looks the file up by its
    number, and unmounts while another node has the lock of the resource group."""
    three.sh("mkdir $MNT/d", CREATOR)
    three.sh(scenario.create("d", FILES // 20), CREATOR)
    three.sh(scenario.verify("d", FILES // 20, "first"), READER)
    # The reader has the files in memory now; their locks, but for that, come back.
    three.sh("for f in $MNT/d/*; do echo more >>$f || exit 1; done", CREATOR)
    three.sh("touch $MNT/d/x && rm $MNT/d/x && sync", CREATOR)
    with stalled(three, READER):
        three.sh("rm $MNT/d/3; sync", CREATOR)  # which waits 5 s for the reader
    three.sh("for ((i = 0; i < 50; i++)); do echo >$MNT/$i || exit 1; done; rm $MNT/*[0-9]; sync", CREATOR)
    three.leave(READER)
    check_on_disk(three)
