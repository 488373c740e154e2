"""One node: a user-mode Linux kernel as a process of the supervisor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import net

# The messages of a kernel with an error, whether or not it goes on.
COMPLAINT = re.compile(
    r"Kernel panic|BUG:|WARNING:|INFO: task .* blocked|INFO: possible|DLM:  Assertion failed"
    r"|suspicious RCU usage|rcu: INFO|INFO: trying to register non-static key|INFO: lockdep is turned off"
    r"|turning off the locking correctness validator|RCU read-side critical section|(?:list|slab)\w* corruption"
    r"|kmemleak: (?:\d+ new|Kernel memory leak detector disabled|Cannot|Memory pool empty)"
    r"|fsid=.*(?:fatal|withdraw)|OCFS2: ERROR|lab: node"
)


@dataclass(frozen=True)
class NodeSpec:
    """The initial parameters of a node."""

    number: int
    kernel: str
    memory: str
    cpu: int | None
    append: list[str]
    mtu: int
    disks: list[str]  # names of files in the lab's folder: /dev/ubda and so on


@dataclass
class Node:
    """A node's process, through all of its boots."""

    spec: NodeSpec
    folder: Path  # the lab's
    pid: int | None = None
    stalled: bool = False
    killed: bool = False
    boots: int = 0
    ended: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def console(self) -> Path:
        return self.folder / "nodes" / f"{self.spec.number}.console"

    def start(self) -> None:
        assert self.pid is None
        self.boots += 1
        self.stalled, self.killed, self.ended = False, False, ""
        with open(self.console, "ab") as console:
            console.write(b"lab: boot %d\n" % self.boots)
            console.flush()
            self._process = subprocess.Popen(
                self._argv(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd=self.folder,
                start_new_session=True,  # one process group: the kernel and the processes inside it
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": "/dev/shm", "HOME": "/root"},
            )
        self.pid = self._process.pid

    def _argv(self) -> list[str]:
        spec = self.spec
        pinned = [] if spec.cpu is None else ["taskset", "--cpu-list", str(spec.cpu)]
        return [
            *pinned,
            spec.kernel,
            f"mem={spec.memory}",
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            *(f"ubd{index}c={self.folder / disk}" for index, disk in enumerate(spec.disks)),
            *net.devices(spec.number, spec.mtu),
            "con=null",
            "con0=null,fd:1",
            "ssl=null",
            f"uml_dir={self.folder / 'nodes'}",
            f"umid={spec.number}.{self.boots}",
            "quiet",
            "loglevel=5",  # warnings reach the console, chatter does not
            "oops=panic",
            "random.trust_cpu=on",
            f"init={self.folder / 'inside' / 'init.sh'}",
            f"NODE={spec.number}",
            f"LAB={self.folder}",
            f"MTU={spec.mtu}",
            *spec.append,
        ]

    def crash(self) -> None:
        """Ends the node at once, with nothing flushed."""
        if self.pid is not None:
            self.killed = True
            os.killpg(self.pid, signal.SIGKILL)

    def stall(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)
            self.stalled = True

    def resume(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)
            self.stalled = False

    def reaped(self, status: int) -> None:
        """Its process has ended. The processes inside it must not outlive it."""
        assert self.pid is not None and self._process is not None
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.returncode = status
        self.pid = None
        self.stalled = False
        panic = [line for line in tail(self.console, 200) if "Kernel panic" in line]
        if self.killed:
            self.ended = "by a fault of the lab"
        elif panic:
            self.ended = panic[-1].strip()
        elif os.WIFSIGNALED(status):
            self.ended = f"ended by signal {os.WTERMSIG(status)}"
        else:
            self.ended = f"ended with status {os.waitstatus_to_exitcode(status)}"

    def state(self) -> dict[str, object]:
        """For `status`."""
        if self.pid is not None:
            name = "stalled" if self.stalled else "running"
        elif not self.boots:
            name = "never started"
        elif "Kernel panic" in self.ended:
            name = "panicked"
        else:
            name = "crashed" if self.killed else "ended"
        return {
            "node": self.spec.number,
            "state": name,
            "why": self.ended,
            "boots": self.boots,
            "kernel": self.spec.kernel,
            "console": str(self.console),
        }


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a console, however long it is."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 300 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def last_words(path: Path, lines: int) -> list[str]:
    """The end of a console; of a panic rather what led to it than the long list of calls after it."""
    last = tail(path, 300)
    panics = [index for index, line in enumerate(last) if "Kernel panic" in line]
    begin = max(0, panics[-1] - lines // 2) if panics else max(0, len(last) - lines)
    return last[begin : begin + lines]


def complaints(path: Path) -> list[str]:
    """Every line of a console that tells of a problem."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line.rstrip() for line in file if COMPLAINT.search(line)]


def wait_gone(pid: int, limit: float) -> bool:
    """Returns true if a process ended in time. A child of ours that nobody has waited for yet counts as ended."""
    end = time.monotonic() + limit
    while _state(pid) not in ("", "Z"):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rsplit(") ", 1)[1][0]
