"""The compared clusters: booted together, their active nodes pinned alike."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from .. import net
from ..cluster import MOUNTED
from ..errors import LabError
from ..host import say
from ..lab import Lab
from ..options import Options
from . import dlmtrace, generators, load, nfs
from .dlmtrace import Trace
from .effort import BRANCH, DEPTH, KINDS, TREE_FOLDERS, Effort
from .generators import Said
from .load import Phase, Programs
from .packets import DLM_PORT, O2NET_PORT, Counter
from .rows import Case

ACTIVE = 1
WITNESS_PORT = 7401
# The DLM keeps resources without locks for 10 s and then tells their directory nodes that they are gone: tens of
# thousands of messages in the middle of a later load, which is why they are sent at once, and waited for.
_MAKE_ROOM = """
awk '/^MemTotal/ { total = $2 } /^MemFree/ { exit ($2 < total / 2) }' /proc/meminfo && exit 0
sent() { awk 'NR > 2 { sum += $11 } END { print sum }' /proc/net/dev; }
unused=/sys/kernel/config/dlm/cluster/toss_secs
[ ! -e $unused ] || { kept=$(cat $unused); echo 1 >$unused; }
echo 3 >/proc/sys/vm/drop_caches
[ -e $unused ] || exit 0
sleep 2
for ((i = 0; i < 60; i++)); do
    before=$(sent)
    sleep 0.5
    [ $(($(sent) - before)) -gt 100 ] || break
done
echo $kept >$unused
"""
_LIMIT = 600.0  # seconds for one load; the slowest take a seventh of it


@dataclass(frozen=True)
class Setup:
    """The properties that distinguish the compared clusters."""

    name: str  # FS-KIND, by which figures know what to compare it with
    fs: str
    stack: str
    claim: str
    nodes: int
    kernel: str = ""  # another than that of the other clusters

    @property
    def unpatched(self) -> bool:
        """Its kernel does not know the claim; it is there to show that the claim switched off is the same."""
        return self.name.endswith("-unpatched")

    @property
    def port(self) -> int:
        """The source of the counted packets: the lock manager's, or NFS's own."""
        return {"dlm": DLM_PORT, "o2cb": O2NET_PORT, "nfs": nfs.PORT}[self.stack]


@dataclass(frozen=True)
class Run:
    """A load on the active node, with what was counted meanwhile."""

    phase: Phase
    packets: int
    counters: dict[str, int]
    trace: Trace | None

    def each(self, count: float) -> float:
        return count / self.phase.operations


@dataclass
class Cluster:
    """One of the compared clusters, running."""

    setup: Setup
    lab: Lab
    programs: Programs
    members: list[int]
    most_rounds: int  # of a comparison
    delay_us: int = 0
    packets: Counter | None = None
    _tree: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def case(self, workload: str, active: int = 1) -> Case:
        setup = self.setup
        return {
            "fs": setup.fs, "stack": setup.stack, "claim": setup.claim, "nodes": len(self.members),
            "active": active, "delay_us": self.delay_us, "workload": workload,
            "generator": self.programs.generator(workload, active),
            "kernel": "unpatched" if setup.unpatched else "patched",
        }  # fmt: skip

    # -- the cluster ---------------------------------------------------------------------------

    def start(self) -> None:
        if self.setup.nodes > 1:
            self.packets = Counter(self.lab.folder, ACTIVE, self.setup.port)
        if len(self.members) > 1:
            self._start_witnesses()

    def _start_witnesses(self) -> None:
        for node in self.members:
            address = net.cluster_address(node)
            self._sh(
                f"setsid {self.programs.load.name} witness --listen {address}:{WITNESS_PORT} "
                "</dev/null >/run/witness.out 2>&1 &\n"
                "for i in $(seq 100); do grep -q listening /run/witness.out && exit; sleep 0.05; done\n"
                "cat /run/witness.out >&2; exit 1",
                node,
            )

    def set_delay(self, delay_us: int) -> None:
        if delay_us != self.delay_us:
            self.lab.netem("all", delay=f"{delay_us}us" if delay_us else "")
            self.delay_us = delay_us

    def leave(self) -> None:
        """The last member unmounts and leaves the cluster."""
        self.lab.leave(self.members[-1])
        self.members.pop()

    def rest(self) -> None:
        """Writes out what the last load left, so that no round pays for the one before.

        Inodes and locks stay cached: GFS2 flushes its log for each inode that it gives up, which would take
        longer than all that is measured. On OCFS2 they go once half of the memory is used: a node that is full of
        earlier rounds' inodes gives their locks up while the next ones are created, which took up to 0.7
        packets a creation after 200,000 inodes; and the stock DLM, which takes memory for locks where it cannot wait
        for any (GFP_ATOMIC), was refused it in the end.
        """
        self._sh("sync", self.members)
        if self.setup.fs == "ocfs2":
            self._sh(_MAKE_ROOM)

    # -- loads ---------------------------------------------------------------------------------

    def new_folder(self, prefix: str) -> str:
        return f"$MNT/{prefix}{next(self._tree)}"

    def tree(self, items: int, kinds: Sequence[str] = KINDS, traced: bool = False) -> dict[str, Run]:
        """Creates a new tree on the active node, one kind after the other, each counted by itself."""
        folder = self.new_folder("tree")
        self._sh(f"{self._tree_words(folder, items)} --prepare")
        return {kind: self._create(folder, items, kind, traced) for kind in kinds}

    def _create(self, folder: str, items: int, kind: str, traced: bool) -> Run:
        if self.programs.generator(kind, active=1) == "mdtest":
            assert self.programs.mdtest
            words = generators.mdtest_words(self.programs.mdtest.name, f"{folder}/mdtest-{kind}", kind, items)
            return self.told(folder, words, generators.mdtest_said(kind, items), traced)
        script = f"{self._tree_words(folder, items)} --shared --kinds {kind} {self._witness()}"
        return self.counted(script, traced)

    def shared_tree(self, items: int, kind: str) -> float:
        """All members create in one tree at once; operations per second of all together."""
        folder = self.new_folder("shared")
        self._sh(f"{self._tree_words(folder, items)} --prepare")
        begin = time.time() + 2.0 + 0.2 * len(self.members)
        witnesses = [*self.members[1:], self.members[0]]
        script = (
            f"others=({' '.join(net.cluster_address(node) for node in witnesses)})\n"
            f"{self._tree_words(folder, items)} --shared --rank $NODE --kinds {kind} "
            f"--start-at {begin:.3f} --witness ${{others[$((NODE - 1))]}}:{WITNESS_PORT}"
        )
        with self._explained():
            results = self.lab.run(script, self.members, timeout=_LIMIT)
            return load.together([load.phases(load.require(result))[0] for result in results])

    def remove_tree(self, items: int) -> Run:
        """`rm -r` of a tree that this node has just created, its locks still cached."""
        folder = self.new_folder("removed")
        self._sh(f"{self._tree_words(folder, items)} --kinds directories,files")
        return self.counted(self.wrapped("$MNT", 2 * items * TREE_FOLDERS, f"rm -r {folder}"))

    def wrapped(self, at: str, operations: int, words: str) -> str:
        """Any command as a load: lockify-load takes the time and adds the final barrier."""
        return f"{self.programs.load.name} exec --at {at} --operations {operations} {self._witness()} -- {words}"

    def told(self, at: str, words: str, said: Said, traced: bool = False) -> Run:
        """Another's program as a load, by what it says of itself."""
        return self.counted(f"{self.wrapped(at, 0, words)} 2>&1", traced, said)

    def filebench(self, profile: str, files: int, seconds: float) -> Run:
        folder = self.new_folder(profile)
        if self.programs.filebench is None:
            words = f"{self.programs.load.name} {profile} {self._witness()} --at {folder}"
            run = self.counted(f"{words} --files {files} --seconds {seconds}")
        else:
            text = generators.filebench_file(profile, folder.replace("$MNT", MOUNTED), files, seconds)
            # Its processes share memory at one address.
            first = f"mkdir {folder}\necho 0 >/proc/sys/kernel/randomize_va_space"
            self._sh(f"{first}\ncat >/run/load.f <<'END'\n{text}END")
            words = f"{self.programs.filebench.name} -f /run/load.f"
            run = self.told(folder, words, generators.filebench_said)
        self._sh(f"rm -r {folder}")
        return run

    def counted(self, script: str, traced: bool = False, said: Said | None = None) -> Run:
        """Runs one load on the active node and counts packets, claims and, if asked, everything."""
        counters = "/sys/kernel/debug/dlm/*_claim"
        count = f"for f in {counters}; do [ ! -e $f ] || sed s/^/counter-WHEN-/ $f; done"
        parts = [count.replace("WHEN", "before"), dlmtrace.BEGIN if traced else ":"]
        parts += [script, dlmtrace.END if traced else ":", count.replace("WHEN", "after")]
        if self.packets:
            self.packets.read()
        output = self._sh("set -e\n" + "\n".join(parts))
        packets = self.packets.read() if self.packets else 0
        trace = dlmtrace.parse(output) if traced else None
        (phase,) = load.phases(output)
        if said:
            phase = phase.by_own_clock(*said(output))
        return Run(phase, packets, _counted(output), trace)

    def _tree_words(self, folder: str, items: int) -> str:
        return f"{self.programs.load.name} tree --at {folder} --depth {DEPTH} --branch {BRANCH} --items {items}"

    def _witness(self) -> str:
        if len(self.members) < 2:
            return ""
        return f"--witness {net.cluster_address(self.members[1])}:{WITNESS_PORT}"

    def _sh(self, script: str, nodes: int | list[int] = ACTIVE) -> str:
        with self._explained():
            return self.lab.sh(script, nodes, timeout=_LIMIT)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A failure names its cluster, and the state of that: afterwards it is gone."""
        try:
            yield
        except LabError:
            with suppress(LabError):  # the lab was ended, because the time is over for example
                say(f"{self.setup.name}, as it stands:\n{self.lab.diagnosis()}")
            raise


def _counted(output: str) -> dict[str, int]:
    """The increase of the claim's counters."""
    found: dict[str, dict[str, int]] = {"before": {}, "after": {}}
    for line in output.splitlines():
        if line.startswith("counter-"):
            _, when, rest = line.split("-", 2)
            name, value = rest.split()
            found[when][name] = int(value)
    return {name: value - found["before"].get(name, 0) for name, value in found["after"].items()}


@contextmanager
def booted(setups: Sequence[Setup], effort: Effort, programs: Programs) -> Iterator[list[Cluster]]:
    """Boots the clusters that are compared with each other, all at the same time, and ends them."""
    with ExitStack() as stack:
        yield [_boot(setup, effort, programs, stack) for setup in setups]


_labs: list[Lab] = []


def end_labs() -> None:
    """For signals: a load that runs ends with its node, and nobody has to wait for it."""
    for lab in _labs:
        lab.down()


def _boot(setup: Setup, effort: Effort, programs: Programs, stack: ExitStack) -> Cluster:
    about = f"{setup.nodes} nodes, {setup.fs} on {setup.stack}, claim {setup.claim}, kernel {setup.kernel}"
    say(f"booting {setup.name}: {about}")
    lab = stack.enter_context(Lab(f"paper{os.getpid()}-{setup.name}"))
    _labs.append(lab)
    stack.callback(_labs.remove, lab)
    nodes = list(range(1, setup.nodes + 1))
    is_nfs = setup.fs == "nfs"
    options = Options(
        nodes=setup.nodes, fs="none" if is_nfs else setup.fs, stack="none" if is_nfs else setup.stack,
        claim=setup.claim, kernel=setup.kernel, memory=effort.memory, disk=effort.disk, pin=_pins(nodes),
        tools=programs.folders, journal_size=effort.journal,
    )  # fmt: skip
    lab.up(options, timeout=240)
    if is_nfs:
        nfs.start(lab)
        nodes = [nfs.CLIENT]  # the server mounts nothing
    most_rounds = effort.rounds if setup.stack == "dlm" else effort.baseline_rounds
    cluster = Cluster(setup, lab, programs, nodes, most_rounds)
    cluster.start()
    return cluster


def _pins(nodes: list[int]) -> dict[int, int]:
    """The active node has a CPU, all others share the next one, in every cluster."""
    cpus = sorted(os.sched_getaffinity(0))
    others = cpus[1 % len(cpus)]
    return {node: cpus[0] if node == ACTIVE else others for node in nodes}


def alternated(clusters: Sequence[Cluster], turn: int) -> list[Cluster]:
    """Every other round in the opposite order, so that none is always the first."""
    return list(clusters if turn % 2 == 0 else reversed(clusters))
