# SPDX-License-Identifier: GPL-2.0-only
"""Loads kernel/apply, kernel/build and kernel/make-series, which have no suffix, as modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent


def load(name: str, program: str) -> ModuleType:
    sys.dont_write_bytecode = True
    loader = SourceFileLoader(name, str(KERNEL / program))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def applier() -> ModuleType:
    return load("applier", "apply")


@pytest.fixture(scope="session")
def maker() -> ModuleType:
    return load("maker", "make-series")


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    return load("builder", "build")
