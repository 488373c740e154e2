"""Labs for the defects; a lab that cannot come up is an error, never a skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lockify_lab.lab import Lab

CLAIMS = ("on", "off")


def booted(claim: str, nodes: int, **options: object) -> Iterator[Lab]:
    with Lab(f"defects-{claim}") as lab:
        lab.up(nodes=nodes, fs="gfs2", claim=claim, memory="512M", **options)
        yield lab


@pytest.fixture(scope="module", params=CLAIMS)
def three(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for all scenarios of a file that leave them alive, however long one stalls."""
    yield from booted(request.param, 3, token=30_000)


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
