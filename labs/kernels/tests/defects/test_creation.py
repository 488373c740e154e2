"""The cost of a creation: counted, because times on a shared machine mean little."""

from __future__ import annotations

import pytest
import scenario

from lockify_lab.lab import Lab

FILES = 2000
NODES = 5


@pytest.mark.parametrize("claim", ["on", "off"])
def test_no_creation_waits_for_a_lookup(claim: str) -> None:
    with Lab(f"creation-{claim}") as lab:
        lab.up(nodes=NODES, fs="gfs2", claim=claim, memory="384M")
        scenario.warm_up(lab, "files")
        before = lab.counters()[1]
        lab.sh(scenario.create("files", FILES), 1)
        after = lab.counters()[1]
        counts = {name: (after[name] - before[name]) / FILES for name in after}
        if claim == "on":
            assert counts["lookups"] < 0.005
            assert counts["claims"] == pytest.approx(2 * (NODES - 1) / NODES, abs=0.1)
            assert counts["refusals"] < 0.01
        else:
            assert counts["claims"] == 0
            assert counts["lookups"] == pytest.approx(2 * (NODES - 1) / NODES, abs=0.1)
        lab.sh(scenario.verify("files", FILES), [2, 5], timeout=120)
        scenario.check_at_rest(lab)
