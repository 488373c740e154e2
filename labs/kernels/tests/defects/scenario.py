"""Steps and checks that the scenarios of this folder share."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest

from lockify_lab.fs_gfs2 import LOCKSPACE
from lockify_lab.jobs import Result
from lockify_lab.lab import Lab
from lockify_lab.tables import check_single_master

CREATOR, READER, DIRECTORY = 1, 2, 3

# Of a test with its control CI runs the former.
ON_BUT_LONG_OFF = ["on", pytest.param("off", marks=pytest.mark.long)]

# A file says which one it is, so that a reader can tell another's content from its own.
CREATE = """
create() {{ # FOLDER COUNT WORD
    for ((i = 0; i < $2; i++)); do echo "$1 $i $3" >"$MNT/$1/$i" || exit 1; done
}}
"""
VERIFY = """
verify() { # FOLDER COUNT WORD
    for ((i = 0; i < $2; i++)); do
        read -r line <"$MNT/$1/$i" || { echo "$1/$i: cannot be read"; exit 1; }
        [ "$line" = "$1 $i $3" ] || { echo "$1/$i: '$line' instead of '$1 $i $3'"; exit 1; }
    done
    [ "$(ls "$MNT/$1" | wc -l)" = "$2" ] || { echo "$1: not $2 files"; exit 1; }
}
"""


# A disk for three nodes that is filled in a moment.
SMALL_DISK = {"disk": "160M", "journals": 3, "journal_size": 8, "mkfs": ("-r", "32")}


def claims(lab: Lab) -> bool:
    """True if this is the claim, and not its control."""
    return lab.options.claim == "on"


def create(folder: str, count: int, word: str = "first") -> str:
    return f"{CREATE.format()}\ncreate {folder} {count} {word}\n"


def verify(folder: str, count: int, word: str = "first") -> str:
    return f"{VERIFY}\nverify {folder} {count} {word}\n"


def half_made(folder: str, word: str = "first") -> str:
    """For a folder whose creator ended: a file is there or not, and has its content or none yet, but
    nobody else's."""
    return f"""
        cd $MNT/{folder} && for name in [0-9]*; do
            [ -s "$name" ] || continue
            read -r line <$name && [ "$line" = "{folder} $name {word}" ] || {{ echo "$name: '$line'"; exit 1; }}
        done
    """


def counters(lab: Lab, node: int = CREATOR) -> dict[str, int]:
    """Of one node: others may be stalled."""
    lines = lab.sh(f"cat /sys/kernel/debug/dlm/{LOCKSPACE}_claim", node).splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def counted(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """The changes between two looks at a node's counters."""
    return {name: after[name] - before[name] for name in after}


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.05)


def pending(lab: Lab, node: int = CREATOR) -> int:
    counts = counters(lab, node)
    return counts["pending"] + counts["parked"]


def wait_settled(lab: Lab) -> None:
    def unsettled() -> int:
        return sum(c["pending"] + c["parked"] for c in lab.counters().values() if c)

    # After a silence TCP tries again when as much time has passed once more.
    wait_until("all claims are settled", lambda: unsettled() == 0, seconds=120)


def check_at_rest(lab: Lab) -> None:
    """Every claim has ended, one master each, compatible grants, and no kernel complained."""
    wait_settled(lab)
    wait_until("single masters", lambda: not check_single_master(lab.dlm_tables()), seconds=10)
    assert lab.unexpected() == {}


def check_on_disk(lab: Lab, *, unlinked: bool = False) -> None:
    """Once no node has it mounted, the file system has no error, and no deletion was left undone, but for what
    `unlinked` lets pass."""
    for number in lab.options.all_nodes:
        lab.leave(number)
    lab.fsck(unlinked=unlinked)


def warm_up(lab: Lab, folder: str) -> None:
    """Lets the creator have every lock but those of the files to come, and the reader know where
    the folder's lock is, so that a stalled directory node is in nobody's way but the claims'."""
    lab.sh(f"mkdir $MNT/{folder} && mkdir $MNT/warm.{folder}", CREATOR)
    lab.sh(f"ls -l $MNT $MNT/{folder} && touch -a $MNT/{folder}", READER)
    lab.sh(create(f"warm.{folder}", 30), CREATOR)
    lab.sh(f"{create(folder, 1)} rm $MNT/{folder}/0", CREATOR)
    lab.sh("sync", CREATOR)


def fill(lab: Lab, folders: str) -> None:
    """Makes the folders, and leaves 4 MB free: blocks are used again soon, whoever needs some."""
    lab.sh(
        f"""
        cd $MNT && mkdir {folders} || exit 1
        dd if=/dev/zero of=fill bs=1M 2>/dev/null
        sync && truncate -s -4M fill && sync
        """,
        CREATOR,
        timeout=120,
    )


@contextmanager
def stalled(lab: Lab, node: int) -> Iterator[None]:
    lab.stall(node)
    try:
        yield
    finally:
        lab.resume(node)


def stop_lockspace(lab: Lab, node: int) -> None:
    """As in a recovery, what is sent to the node's DLM is kept and not answered, until the next recovery is over. Other
    than one that is stalled, the node sees who dies, and takes part in what follows."""
    lab.sh("for space in /sys/kernel/dlm/*/control; do echo 0 >$space; done", node)


@contextmanager
def lost(lab: Lab, sender: int, receiver: int) -> Iterator[None]:
    """Packets from the one to the other are lost; the other way works."""
    lab.blackhole(sender, receiver)
    try:
        yield
    finally:
        lab.unblackhole(sender, receiver)


_GAP = re.compile(r"seq mismatch, seq: (\d+), expected: (\d+)")


def lost_for_good(text: str) -> list[str]:
    """Lines of consoles that say of a message that one before it never came, nor will. The stock DLM's transport loses
    messages when a connection that it has just made anew breaks, too: they are sent again when one breaks, and not
    when the next one does. Whoever waits for one waits for ever, with the claim on and off."""
    gaps = ((line, _GAP.search(line)) for line in text.splitlines())
    return [line for line, gap in gaps if gap and int(gap[1]) > int(gap[2])]


def transport_gave_up(lab: Lab) -> list[str]:
    return lost_for_good("\n".join(result.out for result in lab.run("dmesg", "all", timeout=20)))


SILENCES = ("stalled", "lost")


def silent_directory(lab: Lab, how: str) -> AbstractContextManager[None]:
    """Two ways in which the creator's claims at the directory node stay unanswered."""
    return stalled(lab, DIRECTORY) if how == "stalled" else lost(lab, CREATOR, DIRECTORY)


# The unchanged DLM warns of what still comes from a node that has left: whoever leaves sends (REMOVE, answers) until
# its dlm_controld hears of it, and another node may be done with its recovery by then.
_WARNS_OF_WHO_LEFT = re.compile(r"WARNING: .* at fs/dlm/lock\.c:\d+ _receive_message\+")
_LOG_DEBUG = "/sys/kernel/config/dlm/cluster/log_debug"


def expect_messages_of_who_left(lab: Lab, alive: list[int]) -> None:
    """Lets that warning pass on nodes whose DLM, with `log_debug`, says that it was this."""
    said = lab.run("dmesg", alive, timeout=20)
    told = {result.node for result in said if re.search(r"receive \d+ from non-member", result.out)}
    for number, lines in lab.unexpected().items():
        for line in filter(_WARNS_OF_WHO_LEFT.search, lines):
            if number in told:
                lab.expect(line)


def unmount_and_check(lab: Lab, timeout: float = 60) -> None:
    """All nodes that live give the file system up, and fsck finds nothing to repair.

    Without their caches of names: where one of these keeps a deleted directory, another node's umount waits for it,
    in the unchanged kernel, too.
    """
    before = lab.unexpected()
    alive = [state["node"] for state in lab.status()["nodes"] if state["state"] != "crashed"]
    lab.sh("echo 2 >/proc/sys/vm/drop_caches", alive, timeout=timeout)
    lab.sh(f"! [ -e {_LOG_DEBUG} ] || echo 1 >{_LOG_DEBUG}", alive)
    for node in alive:
        lab.sh("cd / && ! mountpoint -q $MNT || umount $MNT", node, timeout=timeout)
    if lab.unexpected() != before:
        expect_messages_of_who_left(lab, alive)
    after = lab.unexpected()
    assert after == before, f"consoles complain: {after}, before unmounting: {before}\n{lab.diagnosis()}"
    lab.fsck()


class Background:
    """Scripts on nodes that run while the test goes on."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.pool = ThreadPoolExecutor(max_workers=8)

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True)

    def start(self, script: str, node: int, timeout: float = 150) -> Future[Result]:
        return self.pool.submit(lambda: self.lab.run(script, node, timeout=timeout)[0])


def require(result: Result) -> Result:
    assert result.ok, f"node {result.node}: {result}"
    return result


def succeeded(job: Future[Result], timeout: float = 160) -> Result:
    return require(job.result(timeout))


def give_up_behind_a_closed_barrier(
    lab: Lab, silence: str, folder: str, count: int, look: str, give_up: str
) -> Result:
    """The creator gives the file system up with claims pending, and the reader already waits for what it
    made. The control does so when the creation is over. Returns what the reader saw."""
    limit = 120
    with Background(lab) as background:
        with silent_directory(lab, silence):
            creation = background.start(create(folder, count), CREATOR, limit)
            if claims(lab):
                succeeded(creation)
                assert pending(lab) > 200
                reading = background.start(look, READER, limit)
                wait_until("the folder's lock waits", lambda: counters(lab)["parked"] > 0)
                assert not reading.done()
                leaving = background.start(give_up, CREATOR, limit)
            time.sleep(1)
        succeeded(creation)
        if not claims(lab):
            reading = background.start(look, READER, limit)
            leaving = background.start(give_up, CREATOR, limit)
        succeeded(leaving)
        return succeeded(reading)
