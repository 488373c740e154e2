# SPDX-License-Identifier: GPL-2.0-only
"""DKMS on a copy of this machine's Debian: what it builds and installs is gone with the tests.

The places that it and kernel/dkms/install write to are others in a mount namespace of ours: /usr/src, of which all is
there that was, /lib/modules, with nothing but the way to the headers, and DKMS's own.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

MODULES = Path("/usr/lib/modules")
SOURCES = Path("/usr/src")
STATE = Path("/var/lib/dkms")
TARBALL = SOURCES / "linux-source-6.12.tar.xz"

# Of /usr/src each entry is mounted on its own, so that the folder itself is ours and one tarball can be another.
ENTER = f"""
set -e
mount --make-rprivate /
mkdir -p {STATE} real src modules state
mount --bind {SOURCES} real
mount --bind src {SOURCES}
for entry in real/*; do
    name={SOURCES}/${{entry##*/}}
    if [ -L $entry ]; then
        cp -P $entry $name
    elif [ -d $entry ]; then
        mkdir $name && mount --bind $entry $name
    else
        touch $name && mount --bind $entry $name
    fi
done
mkdir modules/$RELEASE
cp -P {MODULES}/$RELEASE/build {MODULES}/$RELEASE/source modules/$RELEASE
mount --bind modules {MODULES}
mount --bind state {STATE}
echo entered
read -r _
"""


class Debian:
    """Where `run` runs its commands; a folder on a disk with a few hundred MB keeps what they write."""

    def __init__(self, release: str, folder: Path) -> None:
        self.release = release
        self._folder = folder
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", ENTER],
            cwd=folder,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "RELEASE": release},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "entered\n":
            raise AssertionError(f"needs root, for a mount namespace: {self._holder.stderr.read()}")

    def __enter__(self) -> Debian:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.communicate("\n", timeout=60)

    def run(self, *command: str | Path, limit: float = 120) -> subprocess.CompletedProcess[str]:
        words = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "timeout", f"{limit:.0f}", *map(str, command)]
        return subprocess.run(words, capture_output=True, text=True, timeout=limit + 30)

    def sh(self, script: str) -> str:
        done = self.run("sh", "-ec", script)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    @contextmanager
    def source(self, tarball: Path | None) -> Iterator[None]:
        """Another one in place of the distribution's; None: it is not installed."""
        self.sh(f"umount {TARBALL} && rm {TARBALL}")
        if tarball:
            self.sh(f"cp {shlex.quote(str(tarball))} {TARBALL}")
        try:
            yield
        finally:
            self.sh(f"touch {TARBALL} && mount --bind {self._folder}/real/{TARBALL.name} {TARBALL}")

    def version(self, module: str) -> str:
        """Of the module that the kernel would load; none if it has only the distribution's, which are not here."""
        done = self.run("modinfo", "-k", self.release, "-F", "version", module)
        return done.stdout.strip()
