"""GFS2 withdraws at a node with claims pending (docs/design/kernel-claim.md 3.5).

A cluster for each: after a second withdrawal in one cluster another node found an inode that was in the
journal only. The unchanged kernel cannot be the control: there the node panics when it unmounts.
"""

from __future__ import annotations

import pytest
import scenario
from scenario import CREATOR, DIRECTORY, READER, SILENCES, wait_settled, wait_until

from lockify_lab.lab import Lab
from lockify_lab.tables import check_single_master

pytestmark = pytest.mark.long

FILES = 400
LONG = 120


@pytest.mark.parametrize("silence", SILENCES)
def test_withdraw_behind_a_closed_barrier(mortal: Lab, silence: str) -> None:
    """GFS2 gives up at a node with claims pending. Its written data is there, others go on in its
    folder, and it can mount again."""
    folder = f"withdraw.{silence}"
    mortal.expect("withdraw")
    scenario.warm_up(mortal, folder)
    mortal.sh(f"mkdir $MNT/{folder}/kept && {scenario.create(f'{folder}/kept', 50, 'kept')} sync", CREATOR)
    # Without udev nobody tells the kernel that the disk may be let go, but this script.
    withdraw = """
        fs=/sys/fs/gfs2/lab:fs
        echo 1 >$fs/withdraw &
        echo 1 >$fs/lock_module/withdraw && wait $!
    """
    look = f"ls $MNT/{folder} >/dev/null"
    scenario.give_up_behind_a_closed_barrier(mortal, silence, folder, FILES, look, withdraw)
    check_what_is_left(mortal, folder)
    mortal.sh("cd / && umount $MNT", CREATOR)
    mortal.join(CREATOR)
    mortal.sh(scenario.verify(f"{folder}/kept", 50, "kept"), CREATOR)
    wait_settled(mortal)
    wait_until("single masters", lambda: not check_single_master(mortal.dlm_tables()))
    check_complaints(mortal)


def check_what_is_left(lab: Lab, folder: str) -> None:
    lab.sh(scenario.verify(f"{folder}/kept", 50, "kept"), [READER, DIRECTORY], timeout=LONG)
    lab.sh(scenario.half_made(folder), [READER, DIRECTORY], timeout=LONG)
    lab.sh(f"mkdir $MNT/{folder}/after && {scenario.create(f'{folder}/after', 50)}", READER, timeout=LONG)
    lab.sh(scenario.verify(f"{folder}/after", 50), DIRECTORY)


def check_complaints(lab: Lab) -> None:
    """Of nothing but the withdrawal, which the other nodes tell of, too."""
    lines = [line for told in lab.complaints().values() for line in told]
    assert [line for line in lines if "withdraw" not in line] == []
