"""Errors, as exit codes and as one exception whose text says what to do."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `lab`; README.md lists them."""

    OK = 0
    SCRIPT = 1  # a script or a test ended with another status than 0
    USAGE = 2  # the command line cannot be understood
    LAB = 3  # the lab, the build or the machine failed
    NODE = 4  # a node is dead, panicked or does not answer
    TIMEOUT = 124  # a time limit was reached


class LabError(Exception):
    """A failure that ends the command. The message tells the reader what to do next."""

    def __init__(self, message: str, code: Exit = Exit.LAB) -> None:
        super().__init__(message)
        self.code = code


class UsageError(LabError):
    """Wrong arguments."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.USAGE)
