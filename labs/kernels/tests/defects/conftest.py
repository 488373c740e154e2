"""Labs for the defects; a lab that cannot come up is an error, never a skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenario
from scenario import ON_BUT_LONG_OFF

from lockify_lab.lab import Lab

CLAIMS = ("on", "off")
LONG_TOKEN = 300_000  # ms: no silent node is declared dead, however busy the machine is


def booted(claim: str, nodes: int, **options: object) -> Iterator[Lab]:
    with Lab(f"defects-{claim}") as lab:
        lab.up(nodes=nodes, fs="gfs2", claim=claim, memory="512M", **options)
        yield lab


@pytest.fixture(scope="module", params=CLAIMS)
def three(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for all scenarios of a file that leave them alive, however long one stalls."""
    for lab in unharmed(request):
        lab.set_token(LONG_TOKEN)
        yield lab


@pytest.fixture(params=ON_BUT_LONG_OFF)
def mortal(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for one scenario, which may end some."""
    yield from unharmed(request)


@pytest.fixture(params=ON_BUT_LONG_OFF)
def full(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes and a small disk, on which blocks are used again soon."""
    yield from booted(
        request.param, 3, disk="200M", journals=3, journal_size=8, mkfs=("-r", "32")
    )


def unharmed(request: pytest.FixtureRequest, **options: object) -> Iterator[Lab]:
    """The scenarios' file systems have to pass fsck, unless messages are lost for good: then nobody can unmount."""
    for lab in booted(request.param, 3, token=20_000, **options):
        failed = request.session.testsfailed
        yield lab
        if request.session.testsfailed == failed and not scenario.transport_gave_up(lab):
            scenario.unmount_and_check(lab)


@pytest.fixture(scope="module", params=ON_BUT_LONG_OFF)
def checked(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for all scenarios of a file, and a disk that is filled in a moment."""
    yield from unharmed(request, **scenario.SMALL_DISK)


@pytest.fixture(scope="module", params=["on"])
def poor(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The same for scenarios that only the claim has."""
    yield from unharmed(request, **scenario.SMALL_DISK)


@pytest.fixture(params=ON_BUT_LONG_OFF)
def patient(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three nodes for one scenario, in which no time limit of theirs has a part, however long the machine
    takes: silent nodes stay members, and claims are not sent again because their answers are late."""
    for lab in unharmed(request, append=("dlm.claim_resend_ms=600000",)):
        lab.set_token(LONG_TOKEN)
        yield lab
