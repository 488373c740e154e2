"""A lab: a cluster of nodes on this machine. The interface for the command line and the tests."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from . import array, checks, cluster, control, faults, fs_gfs2, fs_ocfs2, history, jobs, node, tables
from .errors import Exit, LabError, UsageError
from .host import PACKAGE, is_locked, labs_dir, locked, need_root, say
from .jobs import OnOutput, Result
from .options import Options, check_name, in_bytes

# A node, some nodes, or "all": all but those that a fault of the lab crashed, so that a node which
# died by itself is noticed by every command.
Nodes = int | Sequence[int] | str

_FS = {"gfs2": fs_gfs2, "ocfs2": fs_ocfs2}
_STEP = 120  # seconds at most for one step of a node's way into the cluster; `up` has its own limit

# Read in debugfs, what is there of it; what an array has said; of tasks those that cannot be woken.
DIAGNOSIS = r"""
    cd /sys/kernel/debug/dlm 2>/dev/null && for file in comms/*/* *_claim *_waiters *_queued_asts; do
        [ ! -f "$file" ] || case $file in */rawmsg) ;; *) echo "$file: $(head -n 30 "$file")" ;; esac
    done
    for log in /run/lab/array.*."$NODE".log; do
        [ ! -f "$log" ] || { echo "$log:"; tail -n 8 "$log"; }
    done
    for stat in /proc/[0-9]*/stat; do
        read -r pid name state _ <"$stat" || continue
        [ "$state" != D ] || { echo "waits: $pid $name"; cat "${stat%stat}stack"; }
    done
"""


class Lab:
    """Used as a context manager, it is down at the end, even if this process is killed.

    At that end it raises if a debug kernel in it has complained of anything that `expect` did not announce.

    >>> with Lab("example") as lab:
    ...     lab.up(nodes=3, fs="gfs2")
    ...     lab.run("touch $MNT/from.$NODE")
    """

    def __init__(self, name: str = "default") -> None:
        check_name(name)
        self.name = name
        self.folder = labs_dir() / name
        if len(str(self.folder)) > 80:  # a Unix socket's path has at most 107 bytes
            raise UsageError(f"{self.folder} is too long a path: set LOCKIFY_LAB_DIR to a shorter one")

        self._expected: list[str] = []
        self._leash: socket.socket | None = None
        self._leashed = False

    def __enter__(self) -> Lab:
        self._leashed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._check_debug_kernels()
        finally:
            self.down()

    # -- life ----------------------------------------------------------------------------------

    def up(self, options: Options | None = None, *, timeout: float = 300, **given: Any) -> dict[str, Any]:
        """Boots the nodes, forms the cluster, makes the file system and mounts it everywhere.

        Takes an `Options` or its fields. Returns what was started and how long each step took.
        If it fails, the nodes are gone; their consoles stay in the folder until `down` or `up`.
        """
        need_root()
        options = options or Options(**given)
        options.check()
        kernels = {number: options.kernel_for(number) for number in options.all_nodes}
        with locked(self._lock, timeout, f"lab {self.name}"):
            if control.alive(self.folder):
                raise LabError(
                    f"lab {self.name} runs already: end it with `labs/kernels/lab down --name {self.name}`, "
                    "or choose another --name"
                )
            shutil.rmtree(self.folder, ignore_errors=True)  # left behind by a lab that was killed
            clock = _Clock(timeout)
            self._prepare(options, kernels)
            clock.step("array described" if options.on_array else "file system made")
            leash = control.start(self.folder, clock.left())
            try:
                self._bring_up(options, clock)
            except BaseException:
                leash.close()  # this ends the nodes
                raise
            if self._leashed:
                self._leash = leash
            else:
                control.release(self.folder, leash)
            return {
                "name": self.name,
                "folder": str(self.folder),
                "nodes": options.nodes,
                "lockspace": self._lockspace() if options.stack == "dlm" and options.fs != "none" else None,
                "seconds": clock.steps,
            }

    def down(self, timeout: float = 30) -> bool:
        """Ends the lab and removes its folder. Returns whether there was anything."""
        there = self.folder.exists()
        control.end(self.folder, timeout)
        if self._leash:
            self._leash.close()
            self._leash = None
        return there

    @staticmethod
    def all_names() -> list[str]:
        """Every lab that runs or has left a folder behind."""
        try:
            return sorted(path.name for path in labs_dir().iterdir() if path.is_dir())
        except FileNotFoundError:
            return []

    def status(self) -> dict[str, Any]:
        """State of the lab and of each node, with the console's complaints and last lines.

        Other commands may begin or end the lab meanwhile. Only that can be reported of it then.
        """
        if control.alive(self.folder):
            try:
                return self._status_of_nodes()
            except (LabError, FileNotFoundError):
                if self._is_there():
                    raise
        return {"name": self.name, "state": self._state(), "nodes": []}

    def _status_of_nodes(self) -> dict[str, Any]:
        nodes = self._states()
        answers = {result.node: result.ok for result in self.run("true", self._running(), timeout=3)}
        for state in nodes:
            console = Path(state["console"])
            state["answers"] = answers.get(state["node"], False)
            state["complaints"] = node.complaints(console) if console.exists() else []
            state["last_words"] = node.last_words(console, 12)
        options = asdict(Options.load(self.folder))
        return {"name": self.name, "state": self._state(), "options": options, "nodes": nodes}

    def _is_there(self) -> bool:
        """Returns true if the lab has all parts of a running one: nobody is about to begin or end it."""
        whole = control.alive(self.folder) and (self.folder / "options.json").exists()
        return whole and not is_locked(self._lock)

    def _state(self) -> str:
        if is_locked(self._lock):
            return "being set up"
        if control.alive(self.folder):
            return "up" if (self.folder / "options.json").exists() else "being ended"
        return "left behind: `labs/kernels/lab down` removes it" if self.folder.exists() else "down"

    # -- jobs ----------------------------------------------------------------------------------

    def run(
        self,
        script: str,
        nodes: Nodes = "all",
        *,
        timeout: float = 60,
        on_output: OnOutput | None = None,
    ) -> list[Result]:
        """Runs a shell script on nodes at once. Never raises for what the script or a node does."""
        chosen = self._choose(nodes)
        return jobs.run(self.folder, chosen, script, timeout, self._environment, on_output)

    def sh(self, script: str, nodes: Nodes = "all", *, timeout: float = 60) -> str:
        """Runs a script that has to succeed everywhere; returns the output of all, in node order."""
        results = self.run(script, nodes, timeout=timeout)
        for result in results:
            _require(result, "the script failed")
        return "".join(result.out for result in results)

    # -- faults --------------------------------------------------------------------------------

    def crash(self, *nodes: int) -> None:
        """Ends nodes at once, like a power cut."""
        self._signal("crash", nodes)
        end = time.monotonic() + 10
        while set(nodes) & set(self._running()):
            if time.monotonic() > end:
                raise LabError(f"nodes {nodes} did not end within 10 s", Exit.TIMEOUT)
            time.sleep(0.01)

    def stall(self, *nodes: int) -> None:
        """Stops nodes where they are. Longer than the token, and the others declare them dead."""
        self._signal("stall", nodes)

    def resume(self, *nodes: int) -> None:
        self._signal("resume", nodes)

    def blackhole(self, sender: int, *receivers: int) -> None:
        """Packets from `sender` to the receivers are lost; the other way works."""
        self.sh(faults.blackhole(self._others(sender, receivers)), sender)

    def unblackhole(self, sender: int, *receivers: int) -> None:
        """Undoes `blackhole`; without receivers, for all."""
        self.sh(faults.unblackhole(self._others(sender, receivers)), sender)

    def netem(self, nodes: Nodes = "all", *, delay: str = "", loss: str = "") -> None:
        """Delay and loss of what the nodes send; without either, none."""
        self.sh(faults.netem(delay, loss), nodes)

    def leave(self, nodes: int | Sequence[int], timeout: float = 60) -> None:
        """Unmounts and leaves the cluster in order; the node goes on running, and so does its device of an array.
        Of several nodes all unmount before the first one leaves: the last ones would wait for a quorum."""
        options, clock = self.options, _Clock(timeout)
        numbers = self._choose(nodes)
        for number in numbers:
            if options.fs != "none":
                self._step(f"! mountpoint -q {cluster.MOUNTED} || umount {cluster.MOUNTED}", [number], clock)
        for number in numbers:
            if options.on_array:
                self._step(array.detach(_STEP), [number], clock)
            if options.stack != "none":
                self._step(cluster.stop_membership(options.stack, _STEP), [number], clock)

    def join(self, nodes: int | Sequence[int], timeout: float = 120, *, kernel: str = "") -> None:
        """Brings a node back that left or died: boots it if need be, and mounts. With another
        kernel, if one is named; it keeps that. Several nodes come together: where none has stayed, one alone would wait
        for a quorum. An array is whole again afterwards, and bears the next loss."""
        clock = _Clock(timeout)
        numbers = self._choose(nodes)
        if kernel:
            for number in numbers:
                self._replace_kernel(number, kernel, clock)
        options = self.options
        self._boot(numbers, clock)
        if options.delay:
            self.netem(numbers, delay=options.delay)
        members = {*numbers, *self._members(options, clock)}
        self._enter(options, numbers, len(members), clock)
        if options.on_array:
            self._step(array.heal(clock.left()), numbers[:1], clock)
            clock.step("array whole")

    # -- looking -------------------------------------------------------------------------------

    def dlm_tables(self) -> tables.Tables:
        """Every running node's view of the lockspace; `check_single_master` judges it."""
        space = f"/sys/kernel/debug/dlm/{self._lockspace()}"
        found = tables.Tables()
        script = f"cat '{space}_all' && echo LAB-INACTIVE && cat '{space}_toss'"
        for result in self.run(script, timeout=120):
            _require(result, "cannot read the DLM's tables")
            active, _, inactive = result.out.partition("LAB-INACTIVE\n")
            found.resources += tables.parse(result.node, active, inactive)
        return found

    def counters(self) -> dict[int, dict[str, int]]:
        """The claim's counters of every running node; empty where the kernel has none."""
        file = f"/sys/kernel/debug/dlm/{self._lockspace()}_claim"
        counts: dict[int, dict[str, int]] = {}
        for result in self.run(f"! [ -e '{file}' ] || cat '{file}'"):
            _require(result, "cannot read the claim's counters")
            pairs = (line.split() for line in result.out.splitlines())
            counts[result.node] = {name: int(value) for name, value in pairs}
        return counts

    def complaints(self) -> dict[int, list[str]]:
        """The complaints of the kernels on their consoles, for nodes that did."""
        consoles = sorted((self.folder / "nodes").glob("*.console"))
        found = {int(console.stem): node.complaints(console) for console in consoles}
        return {number: lines for number, lines in found.items() if lines}

    def unexpected(self) -> dict[int, list[str]]:
        """The complaints that `expect` did not announce."""
        found = {
            number: [line for line in lines if not self._is_expected(line)]
            for number, lines in self.complaints().items()
        }
        return {number: lines for number, lines in found.items() if lines}

    def _is_expected(self, complaint: str) -> bool:
        return any(text in complaint for text in self._expected)

    def diagnosis(self, lines: int = 40, timeout: float = 20) -> str:
        """How every node stands: its console's end, its DLM's messages and waiters, and who waits in the kernel."""
        said = []
        answers = {result.node: result for result in self.run(DIAGNOSIS, self._running(), timeout=timeout)}
        for state in self._states():
            number = state["node"]
            said += [f"== node {number}, {state['state']}"]
            said += node.last_words(Path(state["console"]), lines)
            if number in answers:
                said += [answers[number].out, answers[number].err]
        return "\n".join(said)

    def expect(self, complaint: str) -> None:
        """Complaints with this text in them are what is tested, and no reason to fail in the end."""
        self._expected.append(complaint)

    def history(self, out: Path, timeout: float = 120) -> int:
        """Ends the tracing that `up` began and writes what happened; returns the number of events.

        A crashed node's part is lost with it: what the others did is still a history.
        """
        if not self.options.trace:
            raise UsageError(f"lab {self.name} does not trace: start it with --trace")
        clock, count = _Clock(timeout), 0
        numbers = self._running()
        self._step(history.stop_script(), numbers, clock)
        for number in numbers:
            history.check_complete(self.folder, number)
        with ExitStack() as files:
            traces: dict[int, Iterable[str]] = {
                number: files.enter_context(
                    open(self.folder / f"trace.{number}", encoding="utf-8", errors="replace")
                )
                for number in numbers
            }
            try:
                with open(out, "w", encoding="utf-8") as file:
                    for count, line in enumerate(history.histories(traces), 1):  # noqa: B007 - it is returned
                        file.write(line + "\n")
            except OSError as error:
                raise LabError(f"cannot write the history {out}: {error}") from error
        return count

    def set_claim(self, claim: str, nodes: Nodes = "all") -> None:
        """Switches the claim of the mounted lockspace: off, strict or on."""
        self.sh(switch_claim(claim), nodes)

    def set_token(self, milliseconds: int) -> None:
        """How long a node may be silent from now on, until the others declare it dead.

        Given to `up`, a long one would also be how long a cluster waits that lost a token while it formed.
        """
        options = replace(self.options, token=milliseconds)
        options.check()
        options.save(self.folder)
        cluster.write_configuration(self.folder, options)
        self.sh("corosync-cfgtool -R >/dev/null", self._running()[0])  # lets all of them read their files
        self.sh(cluster.has_token(milliseconds, _STEP), timeout=_STEP + 10)

    def fsck(self, timeout: float = 300, *, unlinked: bool = False, half_made: bool = False) -> str:
        """Checks the file system, which no node may have mounted; raises if it has an error.

        With `unlinked`, which is for GFS2, dinodes without a name that no node has deleted are none. With `half_made`,
        which is for GFS2 on an array, an error that is not explained passes, and is printed: see "Limits" in README.md.
        """
        options = self.options
        if options.fs == "none":
            raise UsageError(f"lab {self.name} has no file system")
        for result in self.run(f"mountpoint -q {cluster.MOUNTED}", self._running(), timeout=10):
            if result.status == 0 or result.status is None:
                raise LabError(f"node {result.node} has the file system mounted: `leave` or `crash` it first")
        if options.on_array:
            return fs_gfs2.judge(self._fsck_array(options, timeout), unlinked, half_made)
        check: Callable[..., str] = _FS[options.fs].check
        return check(self.disk, timeout, unlinked=True) if unlinked else check(self.disk, timeout)

    def scrub(self, timeout: float = 300) -> str:
        """Compares all stripes of the array; raises if one does not fit."""
        if not self.options.on_array:
            raise UsageError(f"lab {self.name} has no array: start it with --disk array")
        return self.sh("array scrub", self._running()[0], timeout=timeout)

    def _fsck_array(self, options: Options, timeout: float) -> str:
        """In a node. The array needs all but one of its devices, so nodes that do not run are booted for theirs."""
        clock = _Clock(timeout)
        self._boot(options.all_nodes, clock)
        self._step(array.start_device(_STEP), options.all_nodes, clock)
        first = options.all_nodes[0]
        self._step(array.heal(clock.left()), [first], clock)
        self._step(array.attach(options, _STEP), [first], clock)
        told = self.sh(fs_gfs2.check_inside(options), first, timeout=clock.left())
        self._step(array.detach(_STEP), [first], clock)
        return told

    @property
    def options(self) -> Options:
        if not control.alive(self.folder):
            raise LabError(f"lab {self.name} is not running: start it with `labs/kernels/lab up --name {self.name}`")
        return Options.load(self.folder)

    @property
    def disk(self) -> Path:
        """The shared disk. With an array there is none."""
        return self.folder / "disk.img"

    @property
    def _lock(self) -> Path:
        """Held by `up` from its beginning to its end."""
        return labs_dir() / f".{self.name}.lock"

    # -- inside --------------------------------------------------------------------------------

    def _check_debug_kernels(self) -> None:
        """Everything that debug kernels have found: on the consoles, and what has to be asked for."""
        if not (self.folder / "options.json").exists():
            return  # never up, or down already
        options = Options.load(self.folder)
        debug = [number for number in options.all_nodes if options.debugs(number)]
        found = {number: lines for number, lines in self.unexpected().items() if number in debug}
        if control.alive(self.folder):
            running = [s["node"] for s in self._states() if s["state"] == "running" and s["node"] in debug]
            for result in self.run(checks.SCRIPT, running, timeout=checks.LIMIT):
                lines = checks.findings(result.out) if result.ok else [f"cannot be checked: {result.failure}"]
                found.setdefault(result.node, []).extend(lines)
        told = [
            f"node {number}: {line}"
            for number, lines in sorted(found.items())
            for line in lines
            if not self._is_expected(line)
        ]
        if told:
            raise LabError("debug kernels complained:\n" + "\n".join(told[:40]), Exit.NODE)

    def _prepare(self, options: Options, kernels: Mapping[int, Path]) -> None:
        """Everything on disk that the nodes need, and the plan that the supervisor reads."""
        (self.folder / "nodes").mkdir(parents=True)
        shutil.copytree(PACKAGE / "inside", self.folder / "inside")
        options.save(self.folder)
        cluster.write_configuration(self.folder, options)
        own = {number: {self.disk.name: options.disk_bytes} for number in options.all_nodes}
        if options.on_array:
            size = array.medium_size(options)
            own = {number: {array.medium(number): size} for number in options.all_nodes}
            array.prepare(self.folder, options, 60)
        scratch = {}
        if options.scratch:
            size = in_bytes(options.scratch)
            scratch = {f"scratch{index}.img": size for index in range(1, options.scratches + 1)}
        for disks in (*own.values(), scratch):
            for name, size in disks.items():
                with open(self.folder / name, "wb") as disk:
                    disk.truncate(size)
        if options.fs != "none" and not options.on_array:
            _FS[options.fs].make(self.disk, options, 60)
        specs = [
            node.NodeSpec(
                number=number,
                kernel=str(kernels[number]),
                memory=options.memory,
                cpu=options.pin.get(number),
                append=[*options.append, f"TOOLS={':'.join(options.tools)}"],
                mtu=options.mtu,
                disks=[*own[number], *scratch],
            )
            for number in options.all_nodes
        ]
        plan = {"mtu": options.mtu, "nodes": [vars(spec) for spec in specs]}
        (self.folder / "plan.json").write_text(json.dumps(plan, indent=1) + "\n", "utf-8")

    def _bring_up(self, options: Options, clock: _Clock) -> None:
        for number in options.all_nodes:
            control.request(self.folder, "start", node=number)
        self._wait_up(options.all_nodes, clock)
        clock.step("nodes booted")
        if options.delay:
            self._step(faults.netem(options.delay, ""), options.all_nodes, clock)
        if options.trace:
            self._step(history.start_script(), options.all_nodes, clock)
        self._enter(options, options.all_nodes, options.nodes, clock, new=True)

    def _enter(self, options: Options, numbers: list[int], members: int, clock: _Clock, new: bool = False) -> None:
        """Makes nodes members and mounts there, one node after the other: five at once hung now and then.

        A node of an array exports it when it is a member: others may still fence whom it was before.
        """
        if options.on_array:
            self._step(array.configure_fencing() + array.start_device(_STEP, new), numbers, clock)
            clock.step("devices of the array run")
        if options.stack != "none":
            self._step(cluster.start_membership(options.stack, members, _STEP), numbers, clock)
            clock.step("members of the cluster")
        if options.stack == "dlm":
            self._step(cluster.start_controld(options, members, _STEP), numbers, clock)
            clock.step("DLM configured")
        if options.fs == "none":
            return
        if options.on_array:
            self._step(array.attach(options, _STEP), numbers, clock)
            clock.step("array attached")
        if options.on_array and new:
            self._step(fs_gfs2.make_inside(options), numbers[:1], clock)
            clock.step("file system made")
        for number in numbers:
            self._step(_FS[options.fs].mount(options), [number], clock)
        clock.step("file system mounted")
        if options.stack == "dlm":
            self._step(switch_claim(options.claim), numbers, clock)

    def _boot(self, numbers: list[int], clock: _Clock) -> None:
        """Nodes that do not run."""
        running = self._running()
        for number in numbers:
            if number not in running:
                control.request(self.folder, "start", node=number)
        self._wait_up(numbers, clock)

    def _wait_up(self, numbers: list[int], clock: _Clock) -> None:
        for number in numbers:
            try:
                jobs.wait_up(self.folder, number, clock.end)
            except TimeoutError:
                words = "\n".join(node.last_words(self.folder / "nodes" / f"{number}.console", 25))
                raise LabError(
                    f"node {number} did not boot in time; its console says:\n{words}", Exit.TIMEOUT
                ) from None

    def _step(self, script: str, numbers: Sequence[int], clock: _Clock) -> None:
        for result in jobs.run(self.folder, numbers, script, clock.left(), self._environment):
            _require(result, "a step towards the cluster failed")

    def _replace_kernel(self, number: int, kernel: str, clock: _Clock) -> None:
        """The node starts with that kernel from now on. If it runs it ends, for which it has to be out of the
        cluster."""
        [number] = self._choose(number)
        options = self.options
        options = replace(options, kernel_of={**options.kernel_of, number: kernel})
        path = options.kernel_for(number)
        if number in self._running():
            inside = f"! mountpoint -q {cluster.MOUNTED} && ! pidof -q corosync"
            [result] = jobs.run(self.folder, [number], inside, clock.left(), self._environment)
            if not result.ok:
                raise LabError(f"node {number} is in the cluster: `leave` or `crash` it before it gets another kernel")
            self.crash(number)
        control.request(self.folder, "kernel", node=number, kernel=str(path))
        options.save(self.folder)

    def _members(self, options: Options, clock: _Clock) -> list[int]:
        """Nodes that are in the cluster now."""
        if options.stack != "dlm":
            return []
        found = jobs.run(self.folder, self._running(), "pidof -q corosync", clock.left(), self._environment)
        return [result.node for result in found if result.ok]

    def _lockspace(self) -> str:
        """The lockspace of the file system: GFS2 names it, OCFS2 takes the volume's UUID."""
        options = Options.load(self.folder)
        if options.stack != "dlm":
            raise LabError(f"lab {self.name} runs without the kernel's DLM (--stack {options.stack})")
        if options.fs == "gfs2":
            return fs_gfs2.LOCKSPACE
        script = "ls /sys/kernel/dlm"
        for result in self.run(script, self._running()[:1]):
            _require(result, "cannot list the lockspaces")
            spaces = result.out.split()
            if len(spaces) == 1:
                return spaces[0]
            raise LabError(f"there is not one lockspace on node {result.node} but {spaces or 'none'}")
        raise LabError(f"no node of lab {self.name} runs")

    def _running(self) -> list[int]:
        return [state["node"] for state in self._states() if state["state"] in ("running", "stalled")]

    def _states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = control.request(self.folder, "status")["nodes"]
        return states

    def _choose(self, nodes: Nodes) -> list[int]:
        options = self.options
        if nodes == "all":
            return [state["node"] for state in self._states() if state["state"] != "crashed"]
        chosen = [nodes] if isinstance(nodes, int) else [int(number) for number in nodes]
        wrong = [number for number in chosen if number not in options.all_nodes]
        if wrong:
            raise UsageError(f"there is no node {wrong}: lab {self.name} has 1 to {options.nodes}")
        return chosen

    def _others(self, sender: int, receivers: Sequence[int]) -> list[int]:
        chosen = self._choose(receivers or "all")
        return [number for number in chosen if number != sender]

    def _signal(self, action: str, nodes: Sequence[int]) -> None:
        for number in self._choose(nodes):
            control.request(self.folder, action, node=number)

    def _environment(self, number: int) -> dict[str, str]:
        options = Options.load(self.folder)
        tools = [f"/run/tools/{index}" for index, _ in enumerate(options.tools)]
        if options.on_array:
            tools.append(array.BIN)
        path = [*tools, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return {
            "NODE": str(number),
            "NODES": str(options.nodes),
            "MNT": cluster.MOUNTED,
            "PATH": ":".join(path),
        }


class _Clock:
    """One time limit over many steps, and how long each took."""

    def __init__(self, limit: float) -> None:
        self.begin = self.last = time.monotonic()
        self.end = self.begin + limit
        self.steps: dict[str, float] = {}

    def left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise LabError("the time limit is over: give it more with --timeout", Exit.TIMEOUT)
        return left

    def step(self, name: str) -> None:
        now = time.monotonic()
        self.steps[name] = round(now - self.last, 2)
        self.steps["total"] = round(now - self.begin, 2)
        self.last = now
        say(f"{now - self.begin:6.1f} s  {name}")


def switch_claim(claim: str) -> str:
    """The switch appears with the lockspace; a stock kernel has none and always is off. "Off" stands for the
    stock kernel, so OCFS2 then keeps no directory either."""
    hold_ms = 0 if claim == "off" else 20
    return f"""
hold=/sys/module/ocfs2/parameters/hold_ms
[ ! -e $hold ] || echo {hold_ms} >$hold || exit 1
found=
for switch in /sys/kernel/dlm/*/claim; do
    [ -e "$switch" ] || continue
    found=yes
    echo {claim} >"$switch" || exit 1
done
[ "$found" ] || [ {claim} = off ] || {{
    echo "this node's kernel has no claim: build one with kernel/apply, or say --claim off" >&2
    exit 1
}}
"""


def _require(result: Result, what: str) -> None:
    if result.ok:
        return
    said = (result.err.strip() or result.out.strip())[-4000:]
    reason = result.failure or f"status {result.status}"
    raise LabError(f"{what} on node {result.node}: {reason}\n{said}".rstrip(), result.exit)
