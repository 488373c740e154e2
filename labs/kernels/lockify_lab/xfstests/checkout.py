"""A checkout of xfstests, which is no part of this project. One that cannot run is refused."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError, UsageError
from ..host import CONFIGS

# The requirements of the build, and of the tests in the list.
PACKAGES = (
    "acl", "attr", "automake", "bc", "dbench", "e2fsprogs", "gcc", "libacl1-dev", "libaio-dev", "libattr1-dev",
    "libcap-dev", "libgdbm-dev", "libtool-bin", "make", "perl", "quota", "uuid-dev", "xfslibs-dev", "xfsprogs",
)  # fmt: skip
_PROGRAMS = ("attr", "awk", "bc", "chattr", "dbench", "getfattr", "perl", "quota", "setfacl", "xfs_io")
_BUILT = ("ltp/fsstress", "ltp/fsx", "src/locktest", "src/multi_open_unlink", "tests/generic/group.list")


def usable(folder: Path, tests: Sequence[str]) -> Path:
    """The checkout's full path. Raises with the command that makes it usable, if it is not."""
    folder = folder.resolve()
    if not (folder / "check").is_file() or not (folder / "tests" / "generic").is_dir():
        raise UsageError(f"--xfstests: {folder} is no checkout of xfstests: give the folder with its `check`")
    if set(" :") & set(str(folder)):
        raise UsageError(f"--xfstests: nodes cannot be given {folder}: it has a space or colon in its name")
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    unbuilt = [name for name in _BUILT if not (folder / name).exists()]
    commands = []
    if lacking:
        commands.append(f"apt-get install --no-install-recommends {' '.join(PACKAGES)}")
    if lacking or unbuilt:
        commands.append(f"make -C {shlex.quote(str(folder))}")
        what = f"is not built ({', '.join(unbuilt)})" if unbuilt else f"needs {', '.join(lacking)}"
        raise LabError(f"the xfstests in {folder} {what}: run `{' && '.join(commands)}`")
    unknown = [test for test in tests if not (folder / "tests" / test).is_file()]
    if unknown:
        raise UsageError(f"there is no test {', '.join(unknown)} in {folder}")
    return folder


def default_tests() -> tuple[str, ...]:
    """The list of this repository."""
    lines = (CONFIGS / "xfstests.list").read_text("utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))
