# SPDX-License-Identifier: GPL-2.0-only
"""Loads kernel/apply, which has no suffix, as a module."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def applier() -> ModuleType:
    sys.dont_write_bytecode = True
    loader = SourceFileLoader("applier", str(KERNEL / "apply"))
    spec = importlib.util.spec_from_loader("applier", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["applier"] = module
    loader.exec_module(module)
    return module
