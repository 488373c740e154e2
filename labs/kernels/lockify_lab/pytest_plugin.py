"""Fixtures for tests that need a cluster, what its nodes say when a test fails, and what tests need built."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from . import Kernel, Lab, LabError, build, programs

KERNELS = "kernels"  # with the claim and without, as all labs of the tests have them
_LIMIT = 3600.0  # seconds, for each; `labs/kernels/lab test` has its own for everything
_NEEDS_DEBUG: list[pytest.Item] = []


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of the test's own, not yet up."""
    with Lab(f"test-{os.getpid()}") as made:
        yield made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of debug kernels are no part of a run with others; it says which they are."""
    if build.Kernel.default().debug:
        return
    _NEEDS_DEBUG[:] = [item for item in items if item.get_closest_marker("debug")]
    if _NEEDS_DEBUG:
        items[:] = [item for item in items if item not in _NEEDS_DEBUG]
        config.hook.pytest_deselected(items=_NEEDS_DEBUG)


def pytest_report_collectionfinish() -> list[str]:
    files = sorted({item.path.name for item in _NEEDS_DEBUG})
    if not files:
        return []
    return [f"{len(_NEEDS_DEBUG)} tests need a debug kernel (labs/kernels/lab test --debug): {', '.join(files)}"]


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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds, and not in the middle of an hour of tests: programs that modules have in BUILT, and kernels for those
    that import Lab or have KERNELS there."""
    if not os.environ.get(build.MISSING_VARIABLE) or session.config.option.collectonly:
        return
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    wanted = {name for module in modules for name in getattr(module, "BUILT", ())}
    try:
        if KERNELS in wanted or any(hasattr(module, "Lab") for module in modules):
            for stock in (True, False):
                kernel = replace(Kernel.default(), stock=stock)
                build.build(kernel, _LIMIT, os.cpu_count() or 1)
        for name in sorted(wanted - {KERNELS}):
            if programs.built(name) is None:
                programs.build(name, _LIMIT)
    except LabError as error:
        pytest.exit(str(error), int(error.code))
