"""The examples of docs/python.md and of the package's documentation, and its types."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from conftest import LIMIT, Daemon

import lockify

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(5))
def test_an_example_runs(daemon: Daemon, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKIFY_SOCKET", str(daemon.socket))
    command = [sys.executable, "-W", "error", "-c", EXAMPLES[number]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    says = ["fencing token", "nobody else does it", "7", "somebody wants cache in PR", "4 has"]
    assert says[number] in done.stdout


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == 5


def test_everything_public_is_documented() -> None:
    for name in lockify.__all__:
        thing = getattr(lockify, name)
        assert isinstance(thing, lockify.Mode) or thing.__doc__, name
        if inspect.isclass(thing) and thing.__module__.startswith("lockify"):
            for part, value in vars(thing).items():
                if not part.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__, f"{name}.{part}"


def test_errors_are_all_in_the_pages_table() -> None:
    errors = {n for n, e in vars(lockify).items() if isinstance(e, type) and issubclass(e, Exception)}
    text = PAGE.read_text()
    assert {name for name in errors if f"`{name}`" not in text} == set()


def test_the_installed_package_says_that_it_is_typed() -> None:
    assert resources.files(lockify).joinpath("py.typed").is_file()
    assert resources.files(lockify).joinpath("_lockify.pyi").is_file()
