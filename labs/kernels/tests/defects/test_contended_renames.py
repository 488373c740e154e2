"""Nodes that rename, link and unlink the same few names of two folders: every name's locks are contended, and GFS2 gives up
and cancels lock requests all the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scenario import ON_BUT_LONG_OFF, check_at_rest

from lockify_lab.lab import Lab

NODES = 4
SECONDS = 45
# Each operation ends within some hold times of glocks, which all nodes want in turn.
PATIENCE = 120

CONTEND = f"""
python3 - <<'END'
import os, random, time
end, choose = time.monotonic() + {SECONDS}, random.Random(int(os.environ["NODE"]))
os.chdir(os.environ["MNT"])
done = 0
while time.monotonic() < end:
    one, other = (f"{{choose.choice('ab')}}/{{choose.randrange(4)}}" for _ in range(2))
    try:
        match choose.randrange(4):
            case 0:
                open(one, "w").close()
            case 1:
                os.rename(one, other)
            case 2:
                os.link(one, other)
            case 3:
                os.unlink(one)
        done += 1
    except (FileNotFoundError, FileExistsError):
        pass
print(done)
END
"""


@pytest.fixture
def four() -> Iterator[Lab]:
    with Lab("defects-renames") as lab:
        yield lab


def up(lab: Lab, **options: Any) -> None:
    lab.up(nodes=NODES, fs="gfs2", memory="384M", token=20_000, **options)
    lab.sh("mkdir $MNT/a $MNT/b", 1)


@pytest.mark.parametrize("claim", ON_BUT_LONG_OFF)
def test_contended_renames_end(four: Lab, claim: str) -> None:
    up(four, claim=claim)
    done = four.sh(CONTEND, timeout=SECONDS + PATIENCE).split()
    print(f"{done} changes in {SECONDS} s")
    assert len(done) == NODES and all(int(count) > 0 for count in done)
    check_at_rest(four)


@pytest.mark.long
def test_contended_renames_hang_in_a_stock_kernel(four: Lab) -> None:
    """The control. Linux 7.2 has corrections of its own, and has to end."""
    up(four, claim="off", kernel_of=dict.fromkeys(range(1, NODES + 1), "stock"))
    is_corrected = four.sh("uname -r", 1).startswith("7.")
    results = four.run(CONTEND, timeout=SECONDS + PATIENCE)
    assert all(result.ok for result in results) == is_corrected
