"""Members that do not know claims: kernel-claim.md section 2, D7."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenario
from lockify_lab.lab import Lab
from scenario import CREATOR, READER, Background, check_at_rest, succeeded, verify

STOCK = 3
FILES = 300


@pytest.fixture
def mixed() -> Iterator[Lab]:
    with Lab("defects-mixed") as lab:
        lab.up(nodes=3, fs="gfs2", claim="off", memory="512M", kernel_of={STOCK: "stock"})
        lab.set_claim("on", [CREATOR, READER])
        yield lab


def agreed(lab: Lab) -> list[int]:
    return [scenario.counters(lab, node)["agreed"] for node in (CREATOR, READER)]


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
    many = f"{scenario.CREATE.format()}\nfor d in {{1..40}}; do mkdir $MNT/again/$d && create again/$d 50 x || exit 1; done"
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
