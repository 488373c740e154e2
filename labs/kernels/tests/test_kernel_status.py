"""`lockify kernel status` in real kernels: what the nodes of a cluster say of their claims."""

from __future__ import annotations

import json
import shutil
from typing import Any

from lockify_lab import Lab, programs

BUILT = ("kernels", "lockify")

LOCKIFY = "/run/lab/lockify"  # as nodes see it


def up(lab: Lab, **options: Any) -> None:
    lab.up(nodes=2, fs="gfs2", **options)
    shutil.copy2(programs.need("lockify"), lab.folder)


def told(lab: Lab, node: int, expected: int = 0) -> dict[str, Any]:
    [result] = lab.run(f"{LOCKIFY} kernel status --json", node)
    assert result.status == expected, result.err
    status: dict[str, Any] = json.loads(result.out)
    return status


def test_claims_are_told_by_lockspace_and_node(lab: Lab) -> None:
    up(lab, claim="on")
    lab.sh("mkdir $MNT/$NODE && touch $MNT/$NODE/{1..50}", timeout=120)
    for node in (1, 2):
        status = told(lab, node)
        assert status["node"] == node
        [space] = [space for space in status["lockspaces"] if space["claim"] == "on"]
        assert (space["members"], space["agreed"]) == ([1, 2], True)
        counters = lab.counters()[node]
        assert 0 < space["counters"]["claims"] <= counters["claims"]
        assert space["counters"].keys() == counters.keys() - {"agreed"}
    metrics = lab.sh(f"{LOCKIFY} kernel status --metrics", 1)
    assert 'lockify_kernel_claims_total{lockspace="' in metrics and 'node="1"} ' in metrics
    assert " 1,2 " in lab.sh(f"{LOCKIFY} kernel status", 1)
    [refused] = lab.run(f"{LOCKIFY} kernel status nowhere", 1)
    assert refused.status == 3 and "in no lockspace nowhere" in refused.err


def test_a_stock_member_is_told_of(lab: Lab) -> None:
    """Nobody makes claims then, though they are switched on."""
    up(lab, claim="off", kernel_of={2: "stock"})
    lab.set_claim("on", 1)
    [space] = [space for space in told(lab, 1, expected=1)["lockspaces"] if space["claim"] == "on"]
    assert space["agreed"] is False
    assert all(space["claim"] is None for space in told(lab, 2)["lockspaces"])
