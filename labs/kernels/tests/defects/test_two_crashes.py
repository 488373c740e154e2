"""Two of five nodes die at once, with claims pending at both of them or made by one of them. In the control, the claim
off, creations wait for the nodes that die."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import scenario
from scenario import ON_BUT_LONG_OFF, Background, check_at_rest, claims, counters, pending, succeeded

from lockify_lab.jobs import Result
from lockify_lab.lab import Lab

CLAIMER, SURVIVOR, READER = 1, 2, 3
SILENT = (4, 5)  # directory nodes of two fifths of the names
FILES = 300  # so that each claimer has some 240 claims pending there
LONG = 150
GROUP = 32 << 20  # bytes in a resource group
BLOCK = 4096
TOKEN = 20_000  # longer than it takes to create them, on a loaded machine, too: the silent nodes are stalled


@pytest.fixture(params=ON_BUT_LONG_OFF)
def five(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(f"defects-two-crashes-{request.param}") as lab:
        small = {"disk": "640M", "journal_size": 16, "mkfs": ("-r", str(GROUP >> 20))}
        lab.up(nodes=5, fs="gfs2", claim=request.param, memory="384M", token=TOKEN, **small)
        yield lab


def own_folders(lab: Lab, claimers: list[int]) -> None:
    """Each claimer has a folder in another resource group: of one group, one would stand at the other's barrier
    until the silent nodes are given up. GFS2 places at random what is made in the root; a folder's files lie
    near it."""
    groups: list[int] = []
    for claimer in claimers:
        for attempt in range(20):
            inode = int(lab.sh(f"mkdir $MNT/by.{claimer} && stat -c %i $MNT/by.{claimer}", claimer))
            group = inode * BLOCK // GROUP
            # The part before the first group shifts all by a part of one.
            if all(abs(group - other) > 1 for other in groups):
                groups.append(group)
                break
            lab.sh(f"mv $MNT/by.{claimer} $MNT/by.{claimer}.not.{attempt}", claimer)
        else:
            raise AssertionError(f"no folder of node {claimer} is in a resource group of its own: {groups}")


Jobs = dict[int, Future[Result]]


def claims_pending(lab: Lab, background: Background, claimers: list[int]) -> Jobs:
    """Each claimer has made its folder's files, and more than 200 claims are unanswered. Without claims it waits."""
    own_folders(lab, claimers)
    for claimer in claimers:
        folder = f"by.{claimer}"
        lab.sh(
            f"""
            mkdir $MNT/{folder}/kept || exit 1
            {scenario.create(f"{folder}/kept", 50, "kept")} sync
            """,
            claimer,
        )
        lab.sh(f"ls -l $MNT $MNT/{folder} >/dev/null", [READER, SURVIVOR])
        lab.sh(f"touch $MNT/{folder}/warm && rm $MNT/{folder}/warm && mkdir $MNT/{folder}/new", claimer)
        lab.sh(scenario.create(f"{folder}/new", 30), claimer)
    lab.stall(*SILENT)
    jobs = {
        claimer: background.start(scenario.create(f"by.{claimer}/new", FILES), claimer, LONG) for claimer in claimers
    }
    if not claims(lab):
        time.sleep(2)
        assert not any(job.done() for job in jobs.values())
        return jobs
    for claimer, job in jobs.items():
        succeeded(job)
        assert pending(lab, claimer) > 200
    return jobs


def check_list(lab: Lab, listing: Future[Result]) -> None:
    """Every node sees a surviving claimer's folder whole."""
    listed = int(succeeded(listing).out)
    assert listed == FILES or not claims(lab)


def check_survivors(lab: Lab, claimers: list[int], dead: tuple[int, ...]) -> None:
    """Earlier writes are there, of the surviving claimer also what nobody had confirmed; and life
    goes on."""
    alive = [node for node in lab.options.all_nodes if node not in dead]
    looking = [node for node in alive if node != SURVIVOR]
    for claimer in claimers:
        lab.sh(scenario.verify(f"by.{claimer}/kept", 50, "kept"), looking, timeout=LONG)
        if claimer not in dead:
            lab.sh(scenario.verify(f"by.{claimer}/new", FILES), looking, timeout=LONG)
            assert counters(lab, claimer)["recovered"] > 100 * len({*dead} & {*SILENT}) or not claims(lab)
        else:
            lab.sh(scenario.half_made(f"by.{claimer}/new"), looking, timeout=LONG)
    lab.sh("rm -rf $MNT/by.* && mkdir $MNT/after", looking[0], timeout=LONG)
    lab.sh(scenario.create("after", 100), looking[0], timeout=LONG)
    lab.sh(scenario.verify("after", 100), [SURVIVOR], timeout=LONG)
    check_at_rest(lab)
    scenario.unmount_and_check(lab)


def test_a_claimer_and_a_directory_node(five: Lab) -> None:
    """The claimer dies together with one of the nodes that its claims are at; another claimer lives."""
    claimers, dead = [CLAIMER, SURVIVOR], (CLAIMER, SILENT[0])
    with Background(five) as background:
        creations = claims_pending(five, background, claimers)
        reading = background.start(f"ls $MNT/by.{SURVIVOR}/new | wc -l", READER, LONG)
        time.sleep(0.2)
        assert not reading.done()
        five.crash(*dead)
        five.resume(SILENT[1])
        check_list(five, reading)
        succeeded(creations[SURVIVOR])
    check_survivors(five, claimers, dead)


@pytest.mark.long
@pytest.mark.parametrize("dead", [SILENT, (SILENT[1], READER)], ids=["both-directories", "and-a-reader"])
def test_directory_nodes(five: Lab, dead: tuple[int, ...]) -> None:
    """Both directory nodes of the pending claims die, or one and a node that has none."""
    looking = READER if READER not in dead else CLAIMER
    with Background(five) as background:
        creations = claims_pending(five, background, [SURVIVOR])
        reading = background.start(f"ls $MNT/by.{SURVIVOR}/new | wc -l", looking, LONG)
        time.sleep(0.2)
        assert not reading.done()
        five.crash(*dead)
        five.resume(*(node for node in SILENT if node not in dead))
        check_list(five, reading)
        succeeded(creations[SURVIVOR])
    check_survivors(five, [SURVIVOR], dead)
