# SPDX-License-Identifier: GPL-2.0-only
"""Modules for Debian's own 6.12 kernel.

Needs the packages linux-headers-6.12.*-amd64 and linux-source-6.12 of one
release, and fails without. One CPU-minute for dlm and gfs2.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent
ONLY = os.environ.get("LOCKIFY_TEST_MODULES", "dlm,gfs2")


@pytest.fixture(scope="module")
def headers(builder: ModuleType) -> Path:
    """Those that the installed source belongs to."""
    said = ["apt install linux-source-6.12 linux-headers-6.12-amd64"]
    for path in sorted(builder.USR_SRC.glob("linux-headers-6.12.*-amd64"), reverse=True):
        if path.name.endswith("-cloud-amd64"):
            continue
        try:
            found = builder.find_headers(str(path))
            builder.check_package(found, builder.find_source(None, found))
        except builder.Refused as refused:
            said.append(str(refused))
        else:
            return path
    pytest.fail("\n".join(said))


@pytest.fixture(scope="module")
def out(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("modules") / "out"
    done = subprocess.run(
        [str(KERNEL / "build"), "--headers", str(headers), "--only", ONLY, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "warning:" not in done.stderr
    return out


def modinfo(module: Path, field: str) -> str:
    command = ["/sbin/modinfo", "-F", field, str(module)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def exports(symvers: Path) -> dict[str, str]:
    """Checksum of every symbol that the DLM gives to other modules."""
    return {
        name: checksum
        for checksum, name, module in re.findall(r"^(\S+)\t(\S+)\t(\S+)\t", symvers.read_text(), re.M)
        if module.endswith("fs/dlm/dlm")
    }


def test_the_kernel_takes_them(builder: ModuleType, headers: Path, out: Path) -> None:
    release = builder.find_headers(str(headers)).release
    for name in ONLY.split(","):
        assert modinfo(out / f"{name}.ko", "vermagic").split()[0] == release
    assert "dlm" in modinfo(out / "gfs2.ko", "depends").split(",")


def test_other_users_of_the_dlm_go_on(headers: Path, out: Path) -> None:
    """md-cluster is not ours: it has to find the symbols that it was built with."""
    stock = exports(headers / "Module.symvers")
    assert stock
    ours = exports(out / "tree/Module.symvers")
    assert {name: ours.get(name) for name in stock} == stock


def test_they_have_the_claim(out: Path) -> None:
    symbols = subprocess.run(
        ["nm", str(out / "dlm.ko")], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert re.search(r" [tT] dlm_claim_set_master$", symbols, re.M)
    assert re.search(r" [dD] __tracepoint_dlm_claim$", symbols, re.M)


def test_they_are_small_enough_to_load_and_keep(out: Path) -> None:
    """No debugging symbols: they are thirty times the module."""
    assert (out / "dlm.ko").stat().st_size < 4_000_000
