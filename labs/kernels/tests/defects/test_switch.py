"""The switch of a lockspace: `strict`, and `off` while claims are pending (docs/design/kernel-claim.md 3.5
and 3.9)."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
    require,
    stalled,
    succeeded,
    wait_settled,
)

from lockify_lab.lab import Lab

FILES = 400
NODES = 3
REMOTE = 2 * (NODES - 1) / NODES  # of a new file's two locks, those whose directory is another node
MODES = ["on", "strict", "off"]


@pytest.fixture(scope="module")
def switched() -> Iterator[Lab]:
    """Each test switches the claim as it needs it."""
    with Lab("defects-switch") as lab:
        lab.up(nodes=NODES, fs="gfs2", claim="on", memory="512M", token=20_000, **scenario.SMALL_DISK)
        yield lab
        scenario.unmount_and_check(lab)


def creation(lab: Lab, folder: str, count: int) -> dict[str, int]:
    """The creator's counters after so many creations, which the others then see."""
    before = counters(lab)
    lab.sh(scenario.create(folder, count), CREATOR)
    after = counters(lab)
    lab.sh(scenario.verify(folder, count), [READER, DIRECTORY])
    return counted(after, before)


def test_strict_waits_for_every_answer(switched: Lab) -> None:
    """Nothing is granted before the directory has answered, and each claim is a round trip of its own."""
    switched.set_claim("strict")
    scenario.warm_up(switched, "strict")
    wait_settled(switched)
    new = creation(switched, "strict", FILES)
    assert new["claims"] == 0
    assert new["claims_strict"] == pytest.approx(REMOTE * FILES, rel=0.15)
    assert new["lookups"] < FILES * 0.02
    # An answer confirms all that was claimed at one node, which is never more than one lock.
    assert new["batches"] == new["claims_strict"] == new["confirmed"] + new["refusals"]
    assert new["barrier_waits"] == 0

    switched.sh("mkdir $MNT/strict/stalled", CREATOR)
    with Background(switched) as background, stalled(switched, DIRECTORY):
        waiting = background.start(scenario.create("strict/stalled", 20), CREATOR)
        time.sleep(1)
        assert not waiting.done()
        assert counters(switched)["pending"] == 0, "nothing is granted under an unsettled claim"
    succeeded(waiting)
    switched.sh(scenario.verify("strict/stalled", 20), [READER, DIRECTORY])
    check_at_rest(switched)


@pytest.mark.parametrize("claim", MODES)
def test_one_node_wins_each_name(switched: Lab, claim: str) -> None:
    """All nodes make the same names at once: everybody else is told that it exists, and finds the
    winner's content."""
    names = 40
    switched.set_claim(claim)
    folder = f"names.{claim}"
    switched.sh(f"mkdir $MNT/{folder}", CREATOR)
    race = f"""
        for ((i = 0; i < {names}; i++)); do
            if (set -o noclobber; echo $NODE >$MNT/{folder}/$i) 2>/run/error; then
                echo $i
            else
                grep -q "cannot overwrite existing file" /run/error || {{ cat /run/error; exit 1; }}
            fi
        done
    """
    won = {result.node: require(result).out.split() for result in switched.run(race)}
    assert sorted(int(name) for each in won.values() for name in each) == list(range(names))
    owners = [next(str(node) for node, each in won.items() if str(i) in each) for i in range(names)]
    contents = switched.sh(f"cd $MNT/{folder} && cat $(seq 0 {names - 1})", [READER, DIRECTORY])
    assert contents.split() == owners * 2
    refused = f"! mkdir $MNT/{folder}/0 2>/run/error && grep -q 'File exists' /run/error"
    switched.sh(refused)
    check_at_rest(switched)


def test_switched_off_with_claims_pending(switched: Lab) -> None:
    """Claims under way end as they would have, and what is created from then on is looked up."""
    switched.set_claim("on")
    scenario.warm_up(switched, "off")
    switched.sh("mkdir $MNT/off.later", CREATOR)
    wait_settled(switched)
    before = counters(switched)
    with Background(switched) as background:
        with stalled(switched, DIRECTORY):
            switched.sh(scenario.create("off", FILES), CREATOR)
            made = pending(switched)
            assert made > 200
            switched.set_claim("off", CREATOR)
            assert switched.sh("cat /sys/kernel/dlm/fs/claim", CREATOR) == "off\n"
            reading = background.start(scenario.verify("off", FILES), READER)
            later = background.start(scenario.create("off.later", 50), CREATOR)
            time.sleep(1)
            assert pending(switched) >= made, "claims ended without an answer"
            assert not reading.done() and not later.done()
        succeeded(later)
        succeeded(reading)
    check_at_rest(switched)
    new = counted(counters(switched), before)
    assert new["confirmed"] + new["refusals"] == new["claims"]
    assert new["lookups"] >= 50, "the later creations are looked up"
    switched.sh(scenario.verify("off.later", 50), [READER, DIRECTORY])

    switched.sh("mkdir $MNT/off.stock", CREATOR)
    stock = creation(switched, "off.stock", FILES)
    assert stock["claims"] == stock["claims_strict"] == stock["batches"] == stock["barrier_waits"] == 0
    assert stock["lookups"] == pytest.approx(REMOTE * FILES, rel=0.15)
    switched.set_claim("on", CREATOR)
    switched.sh("mkdir $MNT/off.on", CREATOR)
    assert creation(switched, "off.on", FILES)["claims"] > FILES
    check_at_rest(switched)


def test_strict_claims_are_refused(switched: Lab) -> None:
    """Blocks, and with them names that others are masters of, are used again: the claim becomes a
    request there, as a lookup that finds a master does."""
    switched.set_claim("strict")
    scenario.fill(switched, "reuse")
    inodes, seen, reused = "stat -c %i $MNT/reuse/*", set[str](), 0
    before = switched.counters()
    for creator in (CREATOR, READER, CREATOR):
        word = f"by{creator}"
        switched.sh(scenario.create("reuse", FILES, word), creator)
        switched.sh(scenario.verify("reuse", FILES, word), DIRECTORY)
        made = set(switched.sh(inodes, creator).split())
        reused += len(made & seen)
        seen |= made
        switched.sh("cd $MNT/reuse && ls | xargs rm && sync", creator)
    assert reused > FILES // 2, "blocks were not used again: this tests nothing"
    after = switched.counters()
    new = [counted(after[node], before[node]) for node in (CREATOR, READER)]
    assert sum(each["refusals"] for each in new) > 0
    assert all(each["claims"] == each["capped"] == 0 for each in new)
    check_at_rest(switched)
