# SPDX-License-Identifier: GPL-2.0-only
"""Modules for Debian's own 6.12 kernel, as its users get them: kernel/dkms/install, DKMS, kernel/build.

Needs root and the packages dkms, linux-headers-6.12.*-amd64 and linux-source-6.12, the latter two of one release, and
fails without. All modules are built once, in 3 CPU-minutes. The tests are one story, in this order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from debian import MODULES, SOURCES, STATE, Debian

KERNEL = Path(__file__).resolve().parent.parent
INSTALL = KERNEL / "dkms/install"
OURS = ["dlm", "gfs2", "ocfs2"]
HELPERS = ["dlm", "dlmfs", "nodemanager", "stack_o2cb", "stack_user", "stackglue"]
BUILD_LIMIT = 1800


@pytest.fixture(scope="module")
def headers(builder: ModuleType) -> Path:
    """Those that the installed source belongs to."""
    said = ["apt install dkms linux-source-6.12 linux-headers-6.12-amd64"]
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
def release(builder: ModuleType, headers: Path) -> str:
    return str(builder.find_headers(str(headers)).release)


@pytest.fixture(scope="module")
def debian(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    assert shutil.which("dkms", path="/usr/sbin:/usr/bin"), "apt install dkms"
    with Debian(release, tmp_path_factory.mktemp("debian")) as made:
        yield made


@pytest.fixture(scope="module")
def installed(debian: Debian) -> str:
    """Built and installed by DKMS. Gives the version."""
    done = debian.run(INSTALL, debian.release, limit=BUILD_LIMIT)
    log = debian.run("sh", "-c", f"cat {STATE}/lockify/*/{debian.release}/x86_64/log/make.log").stdout
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + log[-4000:]
    assert "hooks applied" in log and "warning:" not in log
    return debian.version("dlm")


@pytest.fixture(scope="module")
def out(debian: Debian, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules."""
    out = tmp_path_factory.mktemp("modules")
    debian.sh(f"cp {MODULES}/{debian.release}/updates/dkms/*.ko '{out}'")
    return out


@pytest.fixture(scope="module")
def unexpected(builder: ModuleType, headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution's source after an update that changed a line that a hook looks for."""
    tree = tmp_path_factory.mktemp("unexpected") / "linux"
    tree.mkdir()
    builder.unpack(builder.find_source(None, builder.find_headers(str(headers))), tree)
    changed = tree / "fs/dlm/lock.c"
    text = changed.read_text()
    assert text.count("static int set_master(") == 1
    changed.write_text(text.replace("static int set_master(", "static int choose_master("))
    tarball = tree.parent / "linux.tar"  # under another's name: tar looks into what it reads
    subprocess.run(["tar", "-c", "-f", tarball, "-C", tree.parent, "linux"], check=True, timeout=300)
    return tarball


def modinfo(module: Path, field: str) -> str:
    command = ["/sbin/modinfo", "-F", field, str(module)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def checksums(text: str) -> dict[str, str]:
    return {name: f"{int(value, 16):08x}" for value, name in re.findall(r"^(0x\w+)\s+(\w+)", text, re.M)}


# --- refusals ------------------------------------------------------------------


def test_without_the_source_nothing_is_changed(debian: Debian) -> None:
    with debian.source(None):
        done = debian.run(INSTALL, debian.release)
        assert done.returncode != 0
        assert f"The source of Linux {debian.release} is not in {SOURCES}" in done.stderr
        assert "apt install linux-source-6.12=" in done.stderr
    assert debian.sh("dkms status lockify") == ""
    assert debian.sh(f"ls {SOURCES} | grep lockify || :") == ""


def test_an_unexpected_source_is_refused(debian: Debian, unexpected: Path) -> None:
    """With the hook that does not fit, and what to do; nothing of ours stays."""
    with debian.source(unexpected):
        done = debian.run(INSTALL, debian.release)
    assert done.returncode != 0
    assert "nothing was changed: hook " in done.stderr
    assert "fs/dlm/lock.c in `static int set_master(`: 0 definitions" in done.stderr
    assert f"nothing was installed for {debian.release}" in done.stderr
    assert debian.sh("dkms status lockify") == ""


# --- modules -------------------------------------------------------------------


def test_the_kernel_takes_them(builder: ModuleType, debian: Debian, installed: str, out: Path) -> None:
    assert installed == f"lockify-{builder.our_version()}"
    assert "installed" in debian.sh("dkms status lockify")
    for name in OURS + [f"ocfs2_{helper}" for helper in HELPERS]:
        assert debian.version(name) == installed
        assert modinfo(out / f"{name}.ko", "vermagic").split()[0] == debian.release
    for name in ("gfs2", "ocfs2_stack_user"):
        assert "dlm" in modinfo(out / f"{name}.ko", "depends").split(",")


def test_other_users_of_the_dlm_go_on(headers: Path, out: Path) -> None:
    """md-cluster is not ours: it has to find the symbols that it was built with. GFS2 and OCFS2 use all of them."""
    symvers = (headers / "Module.symvers").read_text()
    stock = checksums("\n".join(line for line in symvers.splitlines() if "\tfs/dlm/dlm\t" in line))
    assert "dlm_lock" in stock
    ours: dict[str, str] = {}
    for name in ("gfs2", "ocfs2_stack_user"):
        command = ["/sbin/modprobe", "--dump-modversions", str(out / f"{name}.ko")]
        ours |= checksums(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
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
    assert (out / "ocfs2.ko").stat().st_size < 8_000_000


# --- afterwards ------------------------------------------------------------------


def test_what_is_installed_stays_when_its_successor_is_refused(
    debian: Debian, installed: str, unexpected: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "kernel"
    shutil.copytree(KERNEL, newer, ignore=shutil.ignore_patterns("__pycache__", "modules-*"))
    with (newer / "src/fs/dlm/claim.c").open("a") as file:
        file.write("/* another version */\n")
    with debian.source(unexpected):
        done = debian.run(newer / "dkms/install", debian.release)
    assert done.returncode != 0
    assert "what was installed before stays" in done.stderr
    assert debian.version("dlm") == debian.version("ocfs2") == installed


def test_a_kernel_whose_source_is_missing_is_refused_when_it_comes(debian: Debian, installed: str) -> None:
    """As apt calls DKMS for a new kernel."""
    version = installed.removeprefix("lockify-")
    debian.sh(f"dkms remove lockify/{version} -k {debian.release} && dkms add lockify/{version}")
    with debian.source(None):
        done = debian.run("dkms", "autoinstall", "-k", debian.release)
    assert done.returncode != 0
    assert "apt install linux-source-6.12=" in done.stdout + done.stderr
    assert debian.version("dlm") == ""


def test_nothing_is_left(debian: Debian, installed: str) -> None:
    done = debian.run(INSTALL, "--remove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert debian.sh("dkms status lockify") == ""
    assert debian.sh(f"ls {SOURCES} | grep lockify || :") == ""
    assert debian.sh(f"find {MODULES} -name '*.ko*'") == ""
