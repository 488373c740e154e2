"""The parameters of a lab: given by `up`, kept in the lab's folder, read by every later command."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import build
from .build import Kernel
from .errors import LabError, UsageError

FILE_SYSTEMS = ("gfs2", "ocfs2", "none")
STACKS = ("dlm", "o2cb", "none")
CLAIMS = ("off", "strict", "on")
DISK = "2G"
ARRAY = "array"
MOST_NODES = 16
MOST_DISKS = 16  # user-mode Linux has no more

_SIZE = re.compile(r"^[1-9][0-9]*[MG]$")
_TIME = re.compile(r"^[0-9]+(\.[0-9]+)?(us|ms|s)$")
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,31}$")


@dataclass(frozen=True)
class Options:
    """All options of `up`, with their defaults."""

    nodes: int = 2
    fs: str = "gfs2"
    stack: str = "dlm"
    claim: str = "off"
    kernel: str = field(default_factory=lambda: str(Kernel.default()))
    kernel_of: Mapping[int, str] = field(default_factory=dict)
    memory: str = "1G"
    disk: str = DISK  # or "array", "array:SIZE": of the nodes' own disks
    scratch: str = ""  # size of each of `scratches` more shared disks, on which nothing is made: from /dev/ubdb on
    scratches: int = 1
    journals: int = 0  # 0: one for each node
    journal_size: int = 0  # MiB; 0: 32 for GFS2, 64 for OCFS2
    mkfs: tuple[str, ...] = ()
    mount_options: str = "noatime"
    delay: str = ""  # netem on the cluster's network, each way, on every node
    pin: Mapping[int, int] = field(default_factory=dict)
    token: int = 10000  # ms until corosync declares a silent node dead
    quorum: bool = True  # without, survivors go on however few they are
    mtu: int = 1500
    trace: bool = False  # all events of locks, from before the first one on, for `history`
    tools: tuple[str, ...] = ()  # host folders put in front of PATH in scripts
    append: tuple[str, ...] = ()  # kernel parameters

    def check(self) -> None:
        """Refuses what cannot work, before anything is started."""
        _refuse(not 1 <= self.nodes <= MOST_NODES, f"--nodes is 1 to {MOST_NODES}")
        _choice("--fs", self.fs, FILE_SYSTEMS)
        _choice("--stack", self.stack, STACKS)
        _choice("--claim", self.claim, CLAIMS)
        _refuse(self.fs == "gfs2" and self.stack != "dlm", "GFS2 needs --stack dlm")
        _refuse(self.fs == "ocfs2" and self.stack == "none", "OCFS2 needs --stack dlm or o2cb")
        _refuse(
            self.claim != "off" and (self.fs == "none" or self.stack != "dlm"),
            "--claim strict|on needs a file system on --stack dlm: o2cb has no claim",
        )
        sizes = (("--memory", self.memory), ("--disk", self.disk_size), ("--scratch", self.scratch or DISK))
        for name, value in sizes:
            _refuse(not _SIZE.match(value), f"{name} is a number with M or G, for example 512M")
        _refuse(not 1 <= self.scratches <= MOST_DISKS - 1, f"--scratches is 1 to {MOST_DISKS - 1}")
        _refuse(
            self.on_array and (self.fs != "gfs2" or self.nodes < 3),
            "--disk array needs --fs gfs2 and --nodes 3 or more: each node has a device of a RAID-5",
        )
        _refuse(self.journals < 0 or 0 < self.journals < self.nodes, "--journals is at least --nodes")
        _refuse(self.journal_size != 0 and self.journal_size < 8, "--journal-size is at least 8 (MiB)")
        if self.delay:
            check_delay(self.delay)
        _refuse(not 1000 <= self.token <= 600_000, "--token is 1000 to 600000 (ms)")
        _refuse(not 1280 <= self.mtu <= 9000, "--mtu is 1280 to 9000")
        for name, of in (("--kernel-of", self.kernel_of), ("--pin", self.pin)):
            wrong = [node for node in of if not 1 <= node <= self.nodes]
            _refuse(bool(wrong), f"{name}: there is no node {wrong}, this lab has 1 to {self.nodes}")
        for folder in self.tools:
            _refuse(not Path(folder).is_dir(), f"--tools: {folder} is not a folder")

    @property
    def on_array(self) -> bool:
        """The file system is on an array of the nodes' own disks, and not on a shared one."""
        return self.disk.partition(":")[0] == ARRAY

    @property
    def disk_size(self) -> str:
        return (self.disk.partition(":")[2] or DISK) if self.on_array else self.disk

    @property
    def disk_bytes(self) -> int:
        return in_bytes(self.disk_size)

    @property
    def device(self) -> str:
        """The file system's device, in a node."""
        return "/dev/nbd0" if self.on_array else "/dev/ubda"

    @property
    def all_nodes(self) -> list[int]:
        return list(range(1, self.nodes + 1))

    @property
    def journal_count(self) -> int:
        return self.journals or self.nodes

    def kernel_for(self, node: int) -> Path:
        """A kernel from the cache by its name, or any other by its path."""
        text = self.kernel_of.get(node, self.kernel)
        if "/" in text:
            _refuse(not os.access(text, os.X_OK), f"--kernel: {text} is no kernel that can be started")
            return Path(text).resolve()
        return build.find(self._named(text))

    def debugs(self, node: int) -> bool:
        """Returns true if the node's kernel checks itself. Of a kernel given by its path nothing is known."""
        text = self.kernel_of.get(node, self.kernel)
        return "/" not in text and self._named(text).debug

    def _named(self, text: str) -> Kernel:
        """A node's kernel has what its name does not say from the lab's, and that from the default."""
        general = Kernel.default()
        if "/" not in self.kernel:
            general = Kernel.parse(self.kernel, general)
        return Kernel.parse(text, general)

    def save(self, folder: Path) -> None:
        """Whole or not at all: other commands read it at any time."""
        new = folder / "options.json.new"
        new.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")
        new.rename(folder / "options.json")

    @staticmethod
    def load(folder: Path) -> Options:
        try:
            data: dict[str, Any] = json.loads((folder / "options.json").read_text("utf-8"))
        except FileNotFoundError:
            raise LabError(
                f"lab {folder.name} is just being set up or ended: see `labs/kernels/lab status --name {folder.name}`"
            ) from None
        for name in ("mkfs", "tools", "append"):
            data[name] = tuple(data[name])
        for name in ("kernel_of", "pin"):  # JSON has no numbers as keys
            data[name] = {int(node): value for node, value in data[name].items()}
        return Options(**data)


def in_bytes(size: str) -> int:
    """A size that has been checked."""
    return int(size[:-1]) << (20 if size.endswith("M") else 30)


def check_name(name: str) -> None:
    _refuse(
        not _NAME.match(name),
        f"{name!r} is no name for a lab: at most 32 of a-z, 0-9 and -, beginning with a letter or digit",
    )


def check_delay(delay: str) -> None:
    _refuse(not _TIME.match(delay), f"{delay!r} is no delay: write for example 100us or 1ms")


def _choice(name: str, value: str, among: tuple[str, ...]) -> None:
    _refuse(value not in among, f"{name} is one of {', '.join(among)}, not {value!r}")


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise UsageError(message)
