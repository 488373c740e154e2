"""Members leave and come back while claims are made, and give the file system up while claims are
pending (docs/design/kernel-claim.md 3.5)."""

from __future__ import annotations

import pytest
import scenario
from scenario import (
    CREATOR,
    DIRECTORY,
    READER,
    SILENCES,
    Background,
    check_at_rest,
    claims,
    counters,
    succeeded,
    wait_until,
)

from lockify_lab.lab import Lab

FILES = 400
LONG = 120


def test_members_come_and_go_while_files_are_made(checked: Lab) -> None:
    """A directory node and a reader leave and mount again; the creator goes on all the while."""
    each = 25
    checked.sh("mkdir $MNT/load", CREATOR)
    load = f"""
        {scenario.CREATE.format()}
        rm -f /run/enough
        for ((d = 0; d < 400; d++)); do
            [ ! -e /run/enough ] || break
            mkdir $MNT/load/$d && create load/$d {each} x || exit 1
            sleep 0.05
        done
        echo $d
    """
    asked = "claims" if claims(checked) else "lookups"

    def goes_on(before: int) -> None:
        wait_until("files are made", lambda: counters(checked)[asked] > before, LONG)

    with Background(checked) as background:
        making = background.start(load, CREATOR, LONG)
        goes_on(counters(checked)[asked])
        for member in (DIRECTORY, READER):
            for change in (checked.leave, checked.join):
                change(member)
                goes_on(counters(checked)[asked])
        assert not making.done(), "the load ended before the members had come and gone"
        checked.sh("touch /run/enough", CREATOR)
        folders = int(succeeded(making).out)
    verify = f"for ((d = 0; d < {folders}; d++)); do verify load/$d {each} x || exit 1; done"
    checked.sh(f"{scenario.VERIFY}\n{verify}", [READER, DIRECTORY], timeout=LONG)
    check_at_rest(checked)


@pytest.mark.parametrize("silence", SILENCES)
def test_unmount_behind_a_closed_barrier(checked: Lab, silence: str) -> None:
    """The creator leaves with claims pending: the others see all that it made, and it comes back."""
    folder = f"unmount.{silence}"
    scenario.warm_up(checked, folder)
    look, leave = f"ls $MNT/{folder} | wc -l", "cd / && umount $MNT"
    seen = scenario.give_up_behind_a_closed_barrier(checked, silence, folder, FILES, look, leave)
    assert int(seen.out) == FILES
    checked.sh(scenario.verify(folder, FILES), [READER, DIRECTORY])
    checked.join(CREATOR)
    checked.sh(scenario.verify(folder, FILES), CREATOR)
    check_at_rest(checked)
