"""Members that do not know claims: docs/design/kernel-claim.md 2, D7."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenario
from scenario import CREATOR, READER, Background, check_at_rest, succeeded, verify, wait_until

from lockify_lab.lab import Lab

STOCK = 3
FILES = 300
OURS, OLD = [1, 2, 3], [4, 5]  # of five nodes, of which two are upgraded
EACH = 10  # files in a folder of the load
LONG = 150


@pytest.fixture
def mixed() -> Iterator[Lab]:
    with Lab("defects-mixed") as lab:
        lab.up(nodes=3, fs="gfs2", claim="off", memory="512M", kernel_of={STOCK: "stock"})
        lab.set_claim("on", [CREATOR, READER])
        yield lab
        scenario.unmount_and_check(lab)


def each(lab: Lab, counter: str, nodes: list[int]) -> list[int]:
    return [scenario.counters(lab, node)[counter] for node in nodes]


def agreed(lab: Lab) -> list[int]:
    return each(lab, "agreed", [CREATOR, READER])


def test_stock_member_comes_and_goes(mixed: Lab) -> None:
    """With a stock member there are no claims; without it there are; and when it comes back while
    files are made, none is lost and nothing is sent to it that it does not know."""
    assert agreed(mixed) == [0, 0]
    scenario.warm_up(mixed, "with")
    mixed.sh(scenario.create("with", FILES), CREATOR)
    assert scenario.counters(mixed)["claims"] == 0
    mixed.sh(verify("with", FILES), [READER, STOCK])

    mixed.leave(STOCK)
    scenario.wait_until("claims are agreed on", lambda: agreed(mixed) == [1, 1])
    scenario.warm_up(mixed, "without")
    mixed.sh(scenario.create("without", FILES), CREATOR)
    claims = scenario.counters(mixed)["claims"]
    assert claims > FILES // 2
    mixed.sh(verify("without", FILES), READER)

    scenario.warm_up(mixed, "again")
    one = "mkdir $MNT/again/$d && create again/$d 50 x || exit 1"
    many = f"{scenario.CREATE.format()}\nfor d in {{1..40}}; do {one}; done"
    with Background(mixed) as background:
        creation = background.start(many, CREATOR, 120)
        mixed.join(STOCK)
        succeeded(creation, 130)
    assert agreed(mixed) == [0, 0]
    check = f"{scenario.VERIFY}\nfor d in {{1..40}}; do verify again/$d 50 x || exit 1; done"
    mixed.sh(check, [READER, STOCK], timeout=120)
    claims = scenario.counters(mixed)["claims"]
    mixed.sh("mkdir $MNT/last && touch $MNT/last/{1..100}", CREATOR)
    assert scenario.counters(mixed)["claims"] == claims
    check_at_rest(mixed)
    unknown = "! dmesg | grep -i 'unknown message'"
    mixed.sh(unknown, STOCK)


def load(node: int) -> str:
    """Folders with files, until it is told that it is enough; says how many."""
    return f"""
        {scenario.CREATE.format()}
        rm -f /run/enough
        for ((d = 0; d < 2000; d++)); do
            [ ! -e /run/enough ] || break
            mkdir $MNT/load.{node}/$d && create load.{node}/$d {EACH} x || exit 1
            sleep 0.2
        done
        echo $d
    """


@pytest.mark.long
def test_a_cluster_is_upgraded_under_load() -> None:
    """Two stock nodes of five get our kernel one after the other, while the others make files. As long as one is left
    there are no claims, then there are; nothing that was written is lost."""
    with Lab("defects-upgrade") as lab:
        lab.up(nodes=5, fs="gfs2", claim="off", memory="384M", token=20_000, kernel_of=dict.fromkeys(OLD, "stock"))
        lab.set_claim("on", OURS)
        lab.sh("mkdir $MNT/before.$NODE $MNT/after.$NODE $MNT/load.$NODE")
        for node in lab.options.all_nodes:
            lab.sh(scenario.create(f"before.{node}", 50), node)
        for node in lab.options.all_nodes:
            lab.sh(verify(f"before.{node}", 50), timeout=LONG)
        assert each(lab, "agreed", OURS) == each(lab, "claims", OURS) == [0, 0, 0]

        def go_on(counter: str) -> None:
            before = each(lab, counter, OURS)
            wait_until(
                f"{counter} on all nodes of the load",
                lambda: all(now > then for now, then in zip(each(lab, counter, OURS), before, strict=True)),
                LONG,
            )

        with Background(lab) as background:
            loads = {node: background.start(load(node), node, 3 * LONG) for node in OURS}
            go_on("lookups")
            lab.leave(OLD[0], LONG)
            go_on("lookups")
            lab.join(OLD[0], LONG, kernel="claim")
            lab.set_claim("on", OLD[0])
            go_on("lookups")
            mixed = [*OURS, OLD[0]]
            assert each(lab, "agreed", mixed) == each(lab, "claims", mixed) == [0] * len(mixed)
            lab.leave(OLD[1], LONG)
            wait_until("claims are agreed on", lambda: each(lab, "agreed", mixed) == [1] * len(mixed))
            go_on("claims")
            lab.join(OLD[1], LONG, kernel="claim")
            lab.set_claim("on", OLD[1])
            go_on("claims")
            assert not any(job.done() for job in loads.values()), "the load ended before the upgrade"
            lab.sh("touch /run/enough", OURS)
            folders = {node: int(succeeded(job).out) for node, job in loads.items()}

        everybody = lab.options.all_nodes
        assert each(lab, "agreed", everybody) == [1] * len(everybody)
        lab.sh("\n".join([scenario.CREATE.format(), f"create after.$NODE {FILES} first"]))
        assert all(made > FILES // 2 for made in each(lab, "claims", OLD))
        for node in everybody:
            check = [f"verify before.{node} 50 first", f"verify after.{node} {FILES} first"]
            if node in folders:
                check += [f"for ((d = 0; d < {folders[node]}; d++)); do verify load.{node}/$d {EACH} x; done"]
            lab.sh("\n".join([scenario.VERIFY, *check]), timeout=LONG)
        check_at_rest(lab)
        scenario.unmount_and_check(lab)
