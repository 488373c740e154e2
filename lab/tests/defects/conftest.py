"""Labs for the defects; a lab that cannot come up is an error, never a skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenario
from lockify_lab.lab import Lab

CLAIMS = ("on", "off")


def booted(claim: str, nodes: int, **options: object) -> Iterator[Lab]:
    with Lab(f"defects-{claim}") as lab:
        lab.up(nodes=nodes, fs="gfs2", claim=claim, memory="512M", **options)
        yield lab


@pytest.fixture(scope="module", params=CLAIMS)
def three(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for all scenarios of a file that leave them alive, however long one stalls."""
    yield from booted(request.param, 3, token=20_000)


@pytest.fixture(params=CLAIMS)
def mortal(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for one scenario, which may end some."""
    yield from booted(request.param, 3, token=20_000)


@pytest.fixture(params=CLAIMS)
def full(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes and a small disk, on which blocks are used again soon."""
    yield from booted(
        request.param, 3, disk="200M", journals=3, journal_size=8, mkfs=("-r", "32")
    )


@pytest.fixture(scope="module", params=["on", pytest.param("off", marks=pytest.mark.long)])
def checked(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for all scenarios of a file, and a disk that is filled in a moment. What the
    scenarios leave behind has to pass fsck."""
    small = {"disk": "160M", "journals": 3, "journal_size": 8, "mkfs": ("-r", "32")}
    for lab in booted(request.param, 3, token=20_000, **small):
        failed = request.session.testsfailed
        yield lab
        if request.session.testsfailed == failed:
            scenario.unmount_and_check(lab)
