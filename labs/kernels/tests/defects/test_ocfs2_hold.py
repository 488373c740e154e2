"""A node keeps a directory that it changes while others wait for it. All of them go on all the same, each in its turn.

With `hold_ms=0` a node gives the directory up after each operation, as the stock module does. That is the control."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ocfs2 import ocfs2
from scenario import CREATOR, READER, Background, check_at_rest, check_on_disk, create, succeeded, verify, wait_until

from lockify_lab.lab import Lab

HOLD_MS = 20
FILES = 200


@pytest.fixture(scope="module", params=[HOLD_MS, pytest.param(0, marks=pytest.mark.long)])
def two(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with ocfs2("hold", 2, claim="on") as lab:
        lab.sh(f"echo {request.param} >/sys/module/ocfs2/parameters/hold_ms")
        lab.sh("mkdir $MNT/busy", CREATOR)
        yield lab


# Makes and removes a file, again and again, until it is told to stop.
BUSY = """
    rm -f /run/stop /run/busy
    for ((i = 0; ; i++)); do
        : >$MNT/busy/of.$NODE || exit 1
        rm $MNT/busy/of.$NODE || exit 1
        [ ! -e /run/stop ] || break
        [ $i -ne 50 ] || touch /run/busy
    done
"""


def test_a_busy_node_gives_way(two: Lab) -> None:
    """One node never stops to change the directory, and another one makes all its files meanwhile."""
    with Background(two) as background:
        busy = background.start(BUSY, CREATOR)
        wait_until("it is busy", lambda: two.run("[ -e /run/busy ]", CREATOR)[0].ok)
        try:
            two.sh(create("busy", FILES), READER, timeout=120)
            assert not busy.done()
        finally:
            two.sh("touch /run/stop", CREATOR)
        succeeded(busy)
    two.sh(verify("busy", FILES))
    check_at_rest(two)


def test_a_kept_directory_that_nobody_uses_is_given_up(two: Lab) -> None:
    """However long the hold is: two ticks without an operation end it."""
    two.sh("mkdir $MNT/quiet", CREATOR)
    two.sh("echo 60000 >/sys/module/ocfs2/parameters/hold_ms")
    for turn in range(5):
        two.sh(f"touch $MNT/quiet/one.{turn}", CREATOR)
        two.sh(f"touch $MNT/quiet/two.{turn}", READER, timeout=20)
    assert two.sh("ls $MNT/quiet | wc -l", CREATOR).strip() == "10"
    check_at_rest(two)
    check_on_disk(two)
