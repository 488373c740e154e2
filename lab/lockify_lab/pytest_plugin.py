"""Fixtures for tests that need a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from . import Lab


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of the test's own, not yet up. A failed test shows what the kernels complained about."""
    with Lab(f"test-{os.getpid()}") as made:
        failed = request.session.testsfailed
        yield made
        if request.session.testsfailed > failed:
            for number, lines in made.complaints().items():
                print(f"node {number} complained:\n" + "\n".join(lines))
