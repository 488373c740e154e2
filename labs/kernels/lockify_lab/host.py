"""This machine: where things are, which packages they need, and commands with time limits."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .errors import Exit, LabError

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = Path(__file__).resolve().parent
CONFIGS = PACKAGE.parent / "config"

BUILD_PACKAGES = (
    "linux-source-6.12", "linux-source-6.1", "gcc", "make", "flex", "bison", "bc", "libelf-dev",
    "libssl-dev", "xz-utils", "cpio", "kmod", "rsync",
)  # fmt: skip
NODE_PACKAGES = (
    "corosync", "dlm-controld", "gfs2-utils", "ocfs2-tools", "iproute2", "util-linux", "procps",
    "ibverbs-providers", "nbd-client", "xfsprogs",
)  # fmt: skip
TEST_PACKAGES = ("python3-pytest", "iputils-ping", "libc6-dev", "libdlm-dev", "libibverbs-dev", "libclang1")
# For the baselines of `bench paper` and `bench array`.
BENCH_PACKAGES = ("postmark", "nfs-kernel-server", "fio", "mdadm", "nbdkit")


def cache_dir() -> Path:
    """Kernels and their source trees; may be deleted at any time when no build runs."""
    given = os.environ.get("LOCKIFY_LAB_CACHE")
    return Path(given).absolute() if given else Path.home() / ".cache" / "lockify-lab"


def labs_dir() -> Path:
    """One folder for each lab."""
    return Path(os.environ.get("LOCKIFY_LAB_DIR") or "/var/tmp/lockify-lab").absolute()


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout is the result alone."""
    print(text, file=sys.stderr, flush=True)


def need_root() -> None:
    if os.geteuid() != 0:
        raise LabError("namespaces and shared disks need root: run the same command with sudo")


def command(
    argv: Sequence[str | Path],
    limit: float,
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    accept: Sequence[int] = (0,),
    merge: bool = False,
) -> str:
    """Runs a short command and returns its stdout, with `merge` also its stderr. Its whole process group ends
    with the time limit."""
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is missing: run `labs/kernels/lab setup`") from error
    try:
        out, err = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(words)}` took more than {limit:g} s", Exit.TIMEOUT) from error
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode not in accept:
        told = ((err or "").strip() or out.strip()).splitlines()[-20:]
        raise LabError(f"`{' '.join(words)}` failed ({process.returncode}):\n" + "\n".join(told))
    return out


@contextmanager
def locked(path: Path, limit: float, owner_of: str) -> Iterator[None]:
    """A lock that ends with this process, waited for at most `limit` seconds. Its file goes with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + limit
    told = False
    while True:
        with open(path, "w", encoding="utf-8") as file:
            if _hold(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() > end:
            raise LabError(
                f"another command still uses {owner_of} after {limit:g} s: wait for it, "
                f"or find it with `fuser {path}`",
                Exit.TIMEOUT,
            )
        if not told:
            say(f"waiting for another command that uses {owner_of}")
            told = True
        time.sleep(0.2)


def _hold(file: TextIO, path: Path) -> bool:
    """Locks the file. One that its last holder has removed meanwhile locks nothing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def is_locked(path: Path) -> bool:
    """Returns true if a process holds the lock of this file now. The look disturbs nobody: others try again."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


def version_of(package: str) -> str | None:
    """The installed version of a Debian package, or None."""
    try:
        told = command(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package], 20)
    except LabError:
        return None
    status, _, version = told.partition(" ")
    return version if status == "installed" else None


def missing_packages() -> list[str]:
    wanted = (*BUILD_PACKAGES, *NODE_PACKAGES, *TEST_PACKAGES, *BENCH_PACKAGES)
    return [package for package in wanted if version_of(package) is None]


def setup(limit: float) -> list[str]:
    """Installs what is missing, without starting any of the services. Returns what was installed."""
    need_root()
    if shutil.which("apt-get") is None:
        raise LabError("this machine has no apt-get: the lab needs Debian 12")
    missing = missing_packages()
    if missing:
        with _services_kept_down():
            options = ["-q", "-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]
            environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
            command([*environment, "apt-get", "update", "-q"], limit)
            command([*environment, "apt-get", "install", *options, *missing], limit)
    return missing


@contextmanager
def _services_kept_down() -> Iterator[None]:
    """corosync and dlm_controld must run in nodes only: policy-rc.d keeps dpkg from starting them here."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            policy.unlink()
