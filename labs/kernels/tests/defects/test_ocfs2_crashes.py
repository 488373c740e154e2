"""OCFS2's claimer dies with claims pending."""

from __future__ import annotations

import time

import pytest
import scenario
from ocfs2 import counters, ocfs2
from scenario import CREATOR, DIRECTORY, READER, Background, check_at_rest, succeeded

pytestmark = pytest.mark.long

FILES = 400
LONG = 150  # corosync's token, the DLM's recovery, the journal's replay


@pytest.mark.parametrize("claim", ["on", "off"])
def test_claimer_dies_with_claims_pending(claim: str) -> None:
    """Nobody has seen what it had just made; what was there before is, and the others go on in its folder."""
    with ocfs2(f"crash-{claim}", 3, claim=claim, token=5000) as lab:
        scenario.warm_up(lab, "died")
        # Names that are gone have left blocks in the folder, so that it need not grow.
        lab.sh(
            f"""mkdir $MNT/died/kept $MNT/died/more && cd $MNT/died/more && touch it || exit 1
                for ((i = 0; i < {FILES}; i++)); do ln it link.$i || exit 1; done
                rm -- * && {scenario.create('died/kept', 50, 'kept')} sync""",
            CREATOR,
        )
        lab.sh(scenario.verify("died/kept", 50, "kept"), [READER, DIRECTORY])
        lab.sh(scenario.create("died/more", 1) + "rm $MNT/died/more/0; sync", CREATOR)
        with Background(lab) as background:
            scenario.stop_lockspace(lab, DIRECTORY)
            creation = background.start(scenario.create("died/more", FILES), CREATOR, LONG)
            if claim == "on":
                succeeded(creation)
                assert counters(lab, CREATOR)["pending"] > 200
            else:
                time.sleep(2)
            lab.crash(CREATOR)
            creation.result(LONG + 10)
            lab.sh(scenario.verify("died/kept", 50, "kept"), timeout=LONG)
            lab.sh(scenario.half_made("died/more"), timeout=LONG)
        lab.sh("rm -rf $MNT/died && mkdir $MNT/died", READER, timeout=LONG)
        lab.sh(scenario.create("died", FILES), READER, timeout=LONG)
        lab.sh(scenario.verify("died", FILES), DIRECTORY, timeout=LONG)
        check_at_rest(lab)
        scenario.unmount_and_check(lab)
