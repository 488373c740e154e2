"""Inode blocks, and with them the names of inode, open and dentry locks, are used again on OCFS2.

On a full file system no node gets new groups of inode blocks: it steals from other nodes' slots, so
that a block goes from node to node."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import scenario
from ocfs2 import ocfs2
from scenario import Background, check_at_rest, succeeded

from lockify_lab.lab import Lab

pytestmark = pytest.mark.long

FILES = 400
ROUNDS = 9
INODES = "stat -c %i $MNT/reuse/* | sort"
# How long a node remembers who was the master of a name, when it has no lock of it any more.
REMEMBER = "echo {} >/sys/kernel/config/dlm/cluster/toss_secs"


@pytest.fixture(params=["on", "off"])
def full(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes; the blocks of FILES inodes are free, in the first node's slot, and nothing else."""
    claim = request.param
    with ocfs2(f"reuse-{claim}", 3, claim=claim, disk="200M", journal_size=8) as lab:
        lab.sh("mkdir $MNT/reuse $MNT/a $MNT/b", 1)
        lab.sh(scenario.create("reuse", FILES), 1)
        lab.sh("! dd if=/dev/zero of=$MNT/fill bs=1M 2>/dev/null && rm $MNT/reuse/* && sync", 1)
        yield lab


def test_blocks_move_between_nodes(full: Lab) -> None:
    """D1, D2: one node creates, a second deletes, a third reads. The third is the next creator and has
    forgotten the names, while their masters have not: they refuse its claims."""
    seen: set[str] = set()
    reused = 0
    for number in range(ROUNDS):
        creator, deleter, reader = (1 + (2 * number + place) % 3 for place in range(3))
        word = f"round{number}"
        full.sh(REMEMBER.format(60), [creator, deleter])
        full.sh(REMEMBER.format(1), reader)
        full.sh(scenario.create("reuse", FILES, word), creator, timeout=120)
        full.sh(scenario.verify("reuse", FILES, word), reader, timeout=120)
        inodes = set(full.sh(INODES, reader).split())
        reused += len(inodes & seen)
        seen |= inodes
        full.sh("cd $MNT/reuse && ls | xargs rm", deleter, timeout=120)
        time.sleep(3)
    assert reused > ROUNDS * FILES // 3, "blocks were not used again: this tests nothing"
    check_at_rest(full)
    if scenario.claims(full):
        counts = full.counters().values()
        assert sum(c["refusals"] for c in counts) > FILES
        assert sum(c["merges"] for c in counts) > FILES


def test_refusals_cross(full: Lab) -> None:
    """Two nodes at once claim names whose old locks the other one holds; a third reads along."""
    rounds = """
        for ((r = 0; r < 6; r++)); do
            for ((i = 0; i < 60; i++)); do echo "$r $i" >$MNT/{0}/$i || exit 1; done
            for ((i = 0; i < 60; i++)); do
                [ "$(cat $MNT/{0}/$i)" = "$r $i" ] || {{ echo "{0}/$i in round $r"; exit 1; }}
            done
            rm $MNT/{0}/* || exit 1
        done
    """
    look = "for ((r = 0; r < 30; r++)); do ls -l $MNT/a $MNT/b >/dev/null 2>&1; sleep 0.2; done"
    with Background(full) as background:
        jobs = [background.start(rounds.format(folder), node, 240) for node, folder in ((1, "a"), (2, "b"))]
        looking = background.start(look, 3, 240)
        for job in [*jobs, looking]:
            succeeded(job, 250)
    time.sleep(1)
    check_at_rest(full)


def test_an_open_file_outlives_its_name(full: Lab) -> None:
    """The creator's claimed open lock keeps another node's removal from freeing the inode."""
    for number, (creator, deleter) in enumerate([(1, 2), (3, 1), (2, 3)]):
        keep = f"""
            exec 9<>$MNT/a/open.{number} && echo kept >&9 && exec 8<$MNT/a/open.{number} || exit 1
            touch $MNT/b/ready.{number}
            until [ -e $MNT/b/removed.{number} ]; do sleep 0.05; done
            read -r line <&8 && [ "$line" = kept ]
        """
        remove = f"""
            until [ -e $MNT/b/ready.{number} ]; do sleep 0.05; done
            rm $MNT/a/open.{number} && for i in {{1..50}}; do echo other >$MNT/a/other.$i || exit 1; done
            rm $MNT/a/other.* && touch $MNT/b/removed.{number}
        """
        with Background(full) as background:
            keeping = background.start(keep, creator)
            succeeded(background.start(remove, deleter))
            succeeded(keeping)
    check_at_rest(full)
