"""Runs in a node: processes with locks of their own in the file system's lockspace, through libdlm.

Each holds an EX lock until /run/go is there, and then gives it up in its way. /run/did.WAY says that the call came
back, /run/ended.WAY that the process is gone.
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref, c_char, c_char_p, c_int, c_uint32, c_void_p
from pathlib import Path

WAYS = ("convert", "unlock", "purge", "exit")
RUN = Path("/run")
NL, EX = 0, 5
CONVERT = 4
EUNLOCK = 0x10002


class Lksb(ctypes.Structure):
    _fields_ = [("status", c_int), ("lkid", c_uint32), ("flags", c_char), ("lvb", c_char_p)]


def main() -> None:
    dlm = ctypes.CDLL("libdlm.so.3", use_errno=True)
    dlm.dlm_create_lockspace.restype = dlm.dlm_open_lockspace.restype = c_void_p
    space = b"fs"
    created = c_void_p(dlm.dlm_create_lockspace(space, 0o600))
    assert created, f"no lockspace: {os.strerror(ctypes.get_errno())}"
    children = {}
    for way in WAYS:
        pid = os.fork()
        if pid == 0:
            give_up(dlm, c_void_p(dlm.dlm_open_lockspace(space)), way)
            os._exit(0)  # with what it has open
        children[pid] = way
    failed = []
    while children:
        pid, status = os.wait()
        way = children.pop(pid)
        (RUN / f"ended.{way}").touch()
        failed += [way] if status else []
    assert not failed, f"failed: {failed}"
    assert dlm.dlm_release_lockspace(space, created, 1) == 0, os.strerror(ctypes.get_errno())


def give_up(dlm: ctypes.CDLL, space: c_void_p, way: str) -> None:
    assert space and dlm.dlm_ls_pthread_init(space) == 0
    name, lock = f"user.{way}".encode(), Lksb()

    def ask(mode: int, flags: int) -> None:
        result = dlm.dlm_ls_lock_wait(space, mode, byref(lock), flags, name, len(name), 0, None, None, None)
        assert result == 0 and lock.status == 0, f"{way}: {result}, {lock.status}"

    ask(EX, 0)
    (RUN / f"holds.{way}").touch()
    while not (RUN / "go").exists():
        time.sleep(0.02)
    if way == "convert":
        ask(NL, CONVERT)
    elif way == "unlock":
        result = dlm.dlm_ls_unlock_wait(space, lock.lkid, 0, byref(lock))
        assert result == 0 and lock.status == EUNLOCK, f"{way}: {result}, {lock.status}"
    elif way == "purge":
        assert dlm.dlm_ls_purge(space, 0, os.getpid()) == 0
    (RUN / f"did.{way}").touch()


if __name__ == "__main__":
    main()
