"""A directory node that does not answer: docs/design/kernel-claim.md 2, D3, D4, D6, D10."""

from __future__ import annotations

import inspect
import time

import scenario
import user_locks
from scenario import CREATOR, DIRECTORY, READER, Background, check_at_rest, claims, stalled, succeeded, wait_until

from lockify_lab.devices import DEVICES
from lockify_lab.lab import Lab

FILES = 250


def created_while_stalled(lab: Lab, folder: str) -> None:
    """Files are made while the directory node stands still for 4 s, and then read by the others."""
    with Background(lab) as background:
        with stalled(lab, DIRECTORY):
            creation = background.start(scenario.create(folder, FILES), CREATOR)
            if claims(lab):
                succeeded(creation)
                assert scenario.pending(lab) > 0
            time.sleep(4)
        succeeded(creation)
    check_at_rest(lab)
    lab.sh(scenario.verify(folder, FILES), [READER, DIRECTORY])


def test_answers_late_but_once(three: Lab) -> None:
    """D3: claims wait 4 s for their answer, nothing is sent twice, and all are confirmed."""
    scenario.warm_up(three, "d3")
    before = scenario.counters(three)
    created_while_stalled(three, "d3")
    after = scenario.counters(three)
    if claims(three):
        made = after["claims"] - before["claims"]
        assert made > FILES
        assert after["confirmed"] - before["confirmed"] == made


def test_claims_are_sent_again(three: Lab) -> None:
    """D3: a directory node that found no memory to answer is asked again. Here it was only late, so that it
    hears and answers every claim several times."""
    limit = "/sys/module/dlm/parameters/claim_resend_ms"
    usual = three.sh(f"cat {limit}; echo 500 >{limit}", CREATOR).strip()
    time.sleep(int(usual) / 1000)  # the next look is due by then
    scenario.warm_up(three, "d3again")
    before = scenario.counters(three)
    created_while_stalled(three, "d3again")
    three.sh(f"echo {usual} >{limit}", CREATOR)
    after = scenario.counters(three)
    if claims(three):
        assert after["resent"] - before["resent"] > FILES // 3
        assert after["confirmed"] - before["confirmed"] == after["claims"] - before["claims"] > FILES
    else:
        assert after["resent"] == 0


def test_locks_are_used_before_the_answer(three: Lab) -> None:
    """D4: files are written, renamed, linked and unlinked while their claims are pending."""
    scenario.warm_up(three, "d4")
    use = """
        for ((i = 0; i < 20; i++)); do
            f=$MNT/d4/$i
            echo kept $i >$f && ln $f $f.link && mv $f.link $f.moved || exit 1
            echo gone >$f.gone && rm $f.gone || exit 1
            mkdir $f.dir && rmdir $f.dir || exit 1
        done
    """
    with Background(three) as background:
        with stalled(three, DIRECTORY):
            job = background.start(use, CREATOR)
            if claims(three):
                succeeded(job)
            time.sleep(1)
        succeeded(job)
    check_at_rest(three)
    read = """
        for ((i = 0; i < 20; i++)); do
            for f in $MNT/d4/$i $MNT/d4/$i.moved; do
                [ "$(cat $f)" = "kept $i" ] || { echo "$f is wrong"; exit 1; }
            done
        done
        [ "$(ls $MNT/d4 | wc -l)" = 40 ]
    """
    three.sh(read, [READER, DIRECTORY])
    check_at_rest(three)


def test_blocks_are_used_again_before_the_answer(three: Lab) -> None:
    """D3, D4: an object is created, deleted, and another one created on its block, with the claim of the first still
    pending: it serves the second."""
    scenario.warm_up(three, "again")
    use = """
        same=0
        for ((i = 0; i < 40; i++)); do
            f=$MNT/again/$i
            echo gone >$f.gone && old=$(stat -c %i $f.gone) && rm $f.gone || exit 1
            sync -f $MNT/again  # or the journal keeps the block from being used again
            if ((i % 2)); then echo kept $i >$f; else mkdir $f; fi || exit 1
            [ $(stat -c %i $f) != $old ] || same=$((same + 1))
        done
        echo $same
    """
    with Background(three) as background:
        with stalled(three, DIRECTORY):
            job = background.start(use, CREATOR)
            if claims(three):
                assert int(succeeded(job).out) > 0, "no block was used again: this tests nothing"
                assert scenario.pending(three) > 0
            time.sleep(1)
        succeeded(job)
    check_at_rest(three)
    read = """
        for ((i = 0; i < 40; i++)); do
            if ((i % 2)); then [ "$(cat $MNT/again/$i)" = "kept $i" ]; else [ -d $MNT/again/$i ]; fi || exit 1
        done
    """
    three.sh(read, [READER, DIRECTORY])
    check_at_rest(three)


def test_nobody_sees_a_folder_before_the_answer(three: Lab) -> None:
    """D6: another node gets the parent's lock only when the claims below it are settled."""
    scenario.warm_up(three, "d6")
    before = scenario.counters(three)
    with Background(three) as background:
        with stalled(three, DIRECTORY):
            creation = background.start(scenario.create("d6", FILES), CREATOR)
            if claims(three):
                succeeded(creation)
                reading = background.start(scenario.verify("d6", FILES), READER)
                time.sleep(2)
                assert not reading.done(), "the folder was seen while claims were pending"
                assert scenario.pending(three) > 0
            else:
                reading = None
        succeeded(creation)
        succeeded(reading or background.start(scenario.verify("d6", FILES), READER))
    check_at_rest(three)
    if claims(three):
        after = scenario.counters(three)
        assert after["barrier_waits"] > before["barrier_waits"]
        assert after["barrier_wait_us"] - before["barrier_wait_us"] > 1_000_000


def test_nobody_sees_another_folder_before_the_answer(three: Lab) -> None:
    """D10: the same for folders into which the new files are linked and moved."""
    for folder in ("d10", "d10.links", "d10.moved"):
        scenario.warm_up(three, folder)
    spread = f"""
        {scenario.create("d10", 20)}
        for ((i = 0; i < 20; i++)); do
            ln $MNT/d10/$i $MNT/d10.links/$i && mv $MNT/d10/$i $MNT/d10.moved/$i || exit 1
        done
    """
    read = """
        for ((i = 0; i < 20; i++)); do
            for d in d10.links d10.moved; do
                [ "$(cat $MNT/$d/$i)" = "d10 $i first" ] || { echo "$d/$i is wrong"; exit 1; }
            done
        done
    """
    with Background(three) as background:
        with stalled(three, DIRECTORY):
            job = background.start(spread, CREATOR)
            readings = []
            if claims(three):
                succeeded(job)
                for folder in ("d10.links", "d10.moved"):
                    readings.append(background.start(f"ls $MNT/{folder} | wc -l", READER))
                time.sleep(2)
                assert not any(reading.done() for reading in readings)
        succeeded(job)
        for reading in readings:
            assert succeeded(reading).out.strip() == "20"
    three.sh(read, [READER, DIRECTORY])
    check_at_rest(three)


def test_programs_do_not_give_locks_up_before_the_answer(three: Lab) -> None:
    """A program can have locks in the file system's lockspace, too. None that it may have used to keep others out is
    given up while claims are pending, in whichever way."""
    scenario.warm_up(three, "user")
    # Not by its path: nodes have a /tmp of their own, where this repository may be.
    program = f"""
rm -f /run/go /run/holds.* /run/did.* /run/ended.*
{DEVICES}
/usr/bin/python3 -B - <<'PROGRAM'; status=$?
{inspect.getsource(user_locks)}
PROGRAM
kill $devices; exit $status
"""
    ways = len(user_locks.WAYS)

    def marks(kind: str) -> int:
        return int(three.sh(f"ls /run | grep -c '^{kind}[.]' || :", CREATOR))

    with Background(three) as background:
        locking = background.start(program, CREATOR)
        wait_until("all have their locks", lambda: marks("holds") == ways)
        with stalled(three, DIRECTORY):
            creation = background.start(scenario.create("user", FILES), CREATOR)
            if claims(three):
                succeeded(creation)
                assert scenario.pending(three) > 0
            three.sh("touch /run/go", CREATOR)
            if claims(three):
                time.sleep(2)
                # The one that just ends has nothing to call.
                assert (marks("did"), marks("ended")) == (1, 0), "a lock was given up while claims were pending"
                assert scenario.pending(three) > 0
            else:
                wait_until("all have given their locks up", lambda: marks("ended") == ways)
        succeeded(creation)
        succeeded(locking)
    assert marks("did") == marks("ended") == ways
    three.sh(scenario.verify("user", FILES), [READER, DIRECTORY])
    check_at_rest(three)
