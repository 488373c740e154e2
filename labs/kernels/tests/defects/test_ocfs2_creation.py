"""The cost of a creation on OCFS2, counted, and the nodes that see its result."""

from __future__ import annotations

import pytest
import scenario
from ocfs2 import LOCKS, check_stock_reports, counters, expect_stock_reports, ocfs2

BUILT = ("kernels",)
FILES = 600
NODES = 5


@pytest.mark.parametrize("claim", [*scenario.ON_BUT_LONG_OFF, "strict"])
def test_no_creation_waits_for_a_lookup(claim: str) -> None:
    with ocfs2(f"creation-{claim}", NODES, claim=claim) as lab:
        scenario.warm_up(lab, "files")
        before = counters(lab, 1)
        lab.sh(scenario.create("files", FILES), 1)
        after = counters(lab, 1)
        counts = {name: (after[name] - before[name]) / FILES for name in after}
        remote = pytest.approx(LOCKS * (NODES - 1) / NODES, abs=0.15)
        if claim == "off":
            assert counts["claims"] == counts["claims_strict"] == 0
            assert counts["lookups"] == remote
        else:
            assert counts["claims" if claim == "on" else "claims_strict"] == remote
            assert counts["lookups"] < 0.005
            assert counts["refusals"] < 0.01
        lab.sh(scenario.verify("files", FILES), 5, timeout=240)
        scenario.check_at_rest(lab)


@pytest.mark.long
def test_all_nodes_create_in_one_directory() -> None:
    """Everybody's names are there for everybody, also links, and removal by another node works."""
    each = 60
    with ocfs2("together", 3, claim="on") as lab:
        expect_stock_reports(lab)
        lab.sh("mkdir $MNT/all", 1)
        lab.sh(
            f"""
            for ((i = 0; i < {each}; i++)); do
                echo "$NODE $i" >$MNT/all/$NODE.$i || exit 1
                mkdir $MNT/all/d.$NODE.$i || exit 1
                ln -s $NODE.$i $MNT/all/s.$NODE.$i || exit 1
                ln $MNT/all/$NODE.$i $MNT/all/d.$NODE.$i/hard || exit 1
                mv $MNT/all/d.$NODE.$i/hard $MNT/all/h.$NODE.$i || exit 1
            done""",
            timeout=180,
        )
        lab.sh(
            f"""
            for n in 1 2 3; do for ((i = 0; i < {each}; i++)); do
                for kind in "" s. h.; do
                    read -r line <$MNT/all/$kind$n.$i || exit 1
                    [ "$line" = "$n $i" ] || {{ echo "$kind$n.$i: $line"; exit 1; }}
                done
                [ -d $MNT/all/d.$n.$i ] || exit 1
            done; done
            [ "$(ls $MNT/all | wc -l)" = {3 * 4 * each} ]""",
            timeout=180,
        )
        lab.sh("cd $MNT/all && rm -r *.$((NODE % 3 + 1)).* $((NODE % 3 + 1)).*", timeout=180)
        lab.sh('[ -z "$(ls $MNT/all)" ]')
        scenario.check_at_rest(lab)
        check_stock_reports(lab)
