"""Programs for libdlm on the kernel's own lock manager, through Debian's libdlm.

Lockify's libdlm.so.3 has to have them print the same: `crates/lock/libdlm/tests/programs.rs` compares
with the same files.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lockify_lab import Lab, net
from lockify_lab.devices import DEVICES

PROGRAMS = Path(__file__).parents[3] / "crates" / "lock" / "libdlm" / "tests" / "programs"

# The programs, and the library that each is linked with.
CASES = [
    ("threads", "dlm"),
    ("light", "dlm_lt"),
    ("poll", "dlm"),
    ("poll", "dlm_lt"),
    ("orphans", "dlm"),
    ("grants", "dlm"),
    ("errors", "dlm"),
]


def _compile(folder: Path, program: str, library: str) -> Path:
    out = folder / f"{program}.{library}"
    threads = ["-D_REENTRANT", "-pthread"] if library == "dlm" else []
    command = ["cc", "-std=gnu11", "-O1", *threads, "-o", out, PROGRAMS / f"{program}.c", f"-l{library}"]
    subprocess.run(command, check=True, timeout=60)
    return out


def _expected(program: str) -> str:
    return (PROGRAMS / f"{program}.expected").read_text("utf-8")


@pytest.fixture(autouse=True)
def _compiler() -> None:
    assert Path("/usr/include/libdlm.h").exists() and shutil.which("cc"), "run `labs/kernels/lab setup`"


def test_programs_print_what_is_expected(lab: Lab) -> None:
    lab.expect("validate_lock_args")  # The kernel warns of each invalid argument; some are the test's.
    lab.expect("validate_unlock_args")
    lab.up(nodes=1, fs="none", stack="dlm")
    # The node sees this folder as /run/lab.
    names = [_compile(lab.folder, *case).name for case in CASES]
    runs = "".join(f"timeout 60 /run/lab/{name} >/run/lab/{name}.out\n" for name in names)
    lab.sh(f"{DEVICES}\n{runs}kill $devices", timeout=300)
    for (program, _), name in zip(CASES, names, strict=True):
        said = (lab.folder / f"{name}.out").read_text("utf-8")
        assert said == _expected(program), name


def test_clients_of_two_nodes_print_what_is_expected(lab: Lab) -> None:
    lab.up(nodes=2, fs="none", stack="dlm")
    program = _compile(lab.folder, "nodes", "dlm_lt").name
    client = f"timeout 60 /run/lab/{program} $role {net.cluster_address(1)} 7500"
    role = "role=one; [ $NODE = 1 ] || role=two"
    lab.sh(f"{DEVICES}\n{role}\n{client} >/run/lab/out.$NODE; kill $devices", timeout=120)
    assert (lab.folder / "out.1").read_text("utf-8") == _expected("nodes")
