"""On what the list is run: twice for each file system, and the two runs differ in one thing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from .. import one_host, programs
from ..errors import LabError
from ..lab import Lab

SIZE = 1536  # MiB of each of the two devices of a file system of one host

CLUSTER = ("gfs2", "ocfs2")
ONE_HOST = tuple(one_host.MKFS)
FILE_SYSTEMS = (*CLUSTER, *ONE_HOST)


class Way(ABC):
    """A file system, and what is below it."""

    how: str
    kernel = ""  # of its nodes, if it is not the lab's usual one

    def __init__(self, fs: str, nodes: int, active: int) -> None:
        self.fs, self.nodes, self.active = fs, nodes, active

    @abstractmethod
    def up(self, lab: Lab, checkout: Path, limit: float) -> None:
        """Boots the nodes; the tests' two devices are there."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What inside/xfstests/ has to know."""

    @abstractmethod
    def join(self, lab: Lab, node: int, limit: float) -> None:
        """Brings back a node that has ended."""

    @abstractmethod
    def look_for_damage(self, lab: Lab, limit: float) -> None:
        """Raises with what a check finds when nothing is mounted any more."""

    def claims(self, _: Path) -> int | None:
        """How many claims the runs' folder tells of, if there is a lock manager."""
        return None


class Claim(Way):
    """A cluster's file system, with the claim off or on."""

    def __init__(self, fs: str, nodes: int, active: int, claim: str) -> None:
        super().__init__(fs, nodes, active)
        self.claim, self.how = claim, f"claim {claim}"

    def up(self, lab: Lab, checkout: Path, limit: float) -> None:
        lab.up(
            nodes=self.nodes, fs=self.fs, claim=self.claim, disk="5G", scratch="5G", scratches=self.active,
            mount_options="acl" if self.fs == "gfs2" else "relatime", tools=(str(checkout),), timeout=limit,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {"CLAIM": self.claim}

    def join(self, lab: Lab, node: int, limit: float) -> None:
        lab.join(node, timeout=limit)

    def look_for_damage(self, lab: Lab, limit: float) -> None:
        """All leave at once: see README.md, "Fault tests"."""
        lab.sh("echo 3 >/proc/sys/vm/drop_caches; ! mountpoint -q $MNT || umount $MNT", timeout=limit)
        lab.fsck(timeout=limit)

    def claims(self, out: Path) -> int | None:
        """The sum over all lockspaces that ended on a node; see inside/xfstests/umount."""
        lines = (line for noted in out.glob("*/claims") for line in noted.read_text("utf-8").splitlines())
        return sum(int(line.split()[-1]) for line in lines)


class Disk(Way):
    """A file system of one host, on disks."""

    how, kernel = "on disks", "stock"
    test, scratch = "/dev/ubdb", "/dev/ubdc"
    disks = 2

    def up(self, lab: Lab, checkout: Path, limit: float) -> None:
        tools = (str(checkout), *self._tools())
        lab.up(
            nodes=1, fs="none", stack="none", kernel=self.kernel, scratch=f"{self.disk_size()}M", scratches=self.disks,
            tools=tools, timeout=limit,
        )  # fmt: skip
        self._serve(lab, limit, new=True)
        lab.sh(f"{one_host.MKFS[self.fs]} {self.test}", timeout=limit)

    def environment(self) -> dict[str, str]:
        return {"TEST_DEV": self.test, "SCRATCH_DEV": self.scratch}

    def join(self, lab: Lab, node: int, limit: float) -> None:
        lab.join(node, timeout=limit)
        self._serve(lab, limit, new=False)

    def look_for_damage(self, lab: Lab, limit: float) -> None:
        script = "for i in $MNT /mnt/scratch; do ! mountpoint -q $i || umount $i || exit; done"
        # Mounted once more, so that a journal that a node's end has left is replayed.
        replay = f"mount {self.test} $MNT && umount $MNT"
        lab.sh(f"{script}; {replay} && {one_host.FSCK[self.fs]} {self.test} >&2", timeout=limit)

    def disk_size(self) -> int:
        """MiB of each of the node's disks."""
        return SIZE

    def _tools(self) -> tuple[str, ...]:
        return ()

    def _serve(self, lab: Lab, limit: float, new: bool) -> None:
        """Has the node's devices served, where that takes processes."""


class Array(Disk):
    """A file system of one host, on two halves of an array that the host's own kernel is a client of."""

    how = "on an array"
    test, scratch = f"{one_host.DEVICE}p1", f"{one_host.DEVICE}p2"
    disks = len(one_host.DISKS)

    def disk_size(self) -> int:
        """Of three disks two have content, and of a disk 8/9, but for a few MiB."""
        return SIZE * 9 // 8 + 12

    def look_for_damage(self, lab: Lab, limit: float) -> None:
        super().look_for_damage(lab, limit)
        try:
            lab.sh(one_host.scrub(), timeout=limit)
        except LabError as error:
            raise LabError(f"stripes do not fit: {error}") from error

    def _tools(self) -> tuple[str, ...]:
        return (str(programs.need("lockify").parent),)

    def _serve(self, lab: Lab, limit: float, new: bool) -> None:
        if new:
            lab.sh(one_host.create(self.disks, f"{self.disk_size()}MiB"))
        lab.sh(one_host.start(one_host.DISKS, new), timeout=limit)
        for script in (one_host.export(), one_host.attach(one_host.PATIENT_CLIENT)):
            lab.sh(script, timeout=limit)
        # Only this kernel knows the partitions, so that nothing has to be written for them. In sectors of 512 bytes.
        half = SIZE << 11
        halves = (f"addpart {one_host.DEVICE} {number + 1} {number * half} {half}" for number in range(2))
        lab.sh(" && ".join((*halves, f"[ -b {self.scratch} ]")), timeout=limit)


def ways(fs: str, nodes: int, active: int) -> tuple[Way, Way]:
    """The two runs for a file system: the usual one, and ours."""
    if fs in ONE_HOST:
        return Disk(fs, 1, 1), Array(fs, 1, 1)
    return Claim(fs, nodes, active, "off"), Claim(fs, nodes, active, "on")
