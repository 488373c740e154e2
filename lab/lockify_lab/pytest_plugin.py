"""Fixtures for tests that need a cluster, and what its nodes say when a test fails."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from . import Lab, LabError


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of the test's own, not yet up."""
    with Lab(f"test-{os.getpid()}") as made:
        yield made


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """A test that fails shows how its labs stood just then: afterwards they are gone."""
    outcome = yield
    report = outcome.get_result()
    if call.when == "call" and report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Lab):
                try:
                    told = value.diagnosis()
                except LabError as error:
                    told = str(error)
                report.sections.append((f"the nodes of {name}", told))
