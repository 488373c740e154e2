"""The command line: arguments in, text or JSON out, exit codes as in errors.py."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from . import build, host, sources
from .bench import command as bench
from .errors import Exit, LabError, UsageError
from .host import say
from .jobs import Result
from .lab import Lab, Nodes
from .options import CLAIMS, FILE_SYSTEMS, STACKS, Options
from .xfstests import command as xfstests

Command = Callable[[argparse.Namespace], int]

# Seconds. All tests take well over an hour on two cores, and may begin with building kernels and programs.
TESTS_LIMIT = 4 * 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    try:
        parser = _parser()
    except UsageError as error:  # values of the environment, which become defaults
        say(f"lab: {error}")
        return int(error.code)
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command is _test:
        arguments.rest = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = arguments.command(arguments)
        return code
    except LabError as error:
        if arguments.json:
            print(json.dumps({"error": str(error), "code": int(error.code)}))
        say(f"lab: {error}")
        return int(error.code)
    except KeyboardInterrupt:
        say("lab: interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        description="Clusters of real Linux kernels on this machine, for work on DLM, GFS2 and OCFS2.",
        epilog="Exit codes: 0 success; 1 a script or test failed; 2 wrong arguments; 3 the lab failed; "
        "4 a node is dead or does not answer; 124 a time limit was reached.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, limit: float, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.add_argument(
            "--timeout", type=seconds, default=limit, metavar="S", help=f"time limit in seconds ({limit:g})"
        )
        return sub

    setup = add("setup", _setup, 900, "install the packages that are missing")
    setup.add_argument("--kernel", choices=sources.DEVELOPMENT, help="load its source, too, which is not installed")
    _build_arguments(add("build", _build, 3600, "build a kernel, unless it is in the cache"))
    _up_arguments(add("up", _up, 300, "boot nodes, form a cluster, mount the file system everywhere"))
    _run_arguments(add("run", _run, 60, "run a shell script on nodes, with NODE, NODES and MNT set"))
    _fault_arguments(add)
    down = _named(add("down", _down, 30, "end a lab; nothing of it is left"))
    down.add_argument("--all", action="store_true", help="every lab, also those left behind by a kill")
    status = _named(add("status", _status, 30, "what runs, what died and why"))
    status.add_argument("--all", action="store_true", help="every lab")
    sub = add("bench", bench.run, 4 * 3600, "measure: `bench paper` is the paper's evaluation")
    bench.arguments(sub)
    sub.set_defaults(timeout=None)  # it depends on the number of measurements
    tell = _named(
        add("history", _history, 300, "write what happened to locks, for `lockify check`; ends tracing")
    )
    tell.add_argument("--out", required=True, metavar="FILE", help="where to")
    _test_arguments(
        add("test", _test, TESTS_LIMIT, "test the lab and what runs in it; all other arguments go to pytest")
    )
    return parser


def seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def _named(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
    sub.add_argument("--name", default="default", help="which lab: several can run side by side")
    return sub


# -- setup and build -------------------------------------------------------------------------------


def _setup(arguments: argparse.Namespace) -> int:
    installed = host.setup(arguments.timeout)
    told = f"installed: {' '.join(installed) or 'nothing was missing'}"
    source = None
    if arguments.kernel:
        source = sources.fetch(arguments.kernel, arguments.timeout)
        told += f"\nsource: {source.tarball}"
    _tell(arguments, {"installed": installed, "source": str(source.tarball) if source else None}, told)
    return Exit.OK


def _build_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--kernel", choices=sources.VERSIONS, default="6.12", help="which source package (6.12)")
    sub.add_argument("--stock", action="store_true", help="without kernel/apply")
    sub.add_argument("--debug", action="store_true", help="with lockdep and the kernel's other checks")
    sub.add_argument("--jobs", type=int, default=os.cpu_count(), help="of make (one for each CPU)")


def _build(arguments: argparse.Namespace) -> int:
    host.need_root()
    kernel = build.Kernel(arguments.kernel, arguments.stock, arguments.debug)
    path, built = build.build(kernel, arguments.timeout, arguments.jobs)
    result = {"kernel": str(kernel), "path": str(path), "built": built}
    _tell(arguments, result, f"{kernel}: {path}{'' if built else ' (was there)'}")
    return Exit.OK


# -- life ------------------------------------------------------------------------------------------


def _up_arguments(sub: argparse.ArgumentParser) -> None:
    default = Options()
    _named(sub)
    sub.add_argument("--nodes", type=int, default=default.nodes, help="how many (%(default)s)")
    sub.add_argument("--fs", default=default.fs, help=f"{'|'.join(FILE_SYSTEMS)} (%(default)s)")
    sub.add_argument("--stack", default=default.stack, help=f"{'|'.join(STACKS)} (%(default)s)")
    sub.add_argument("--claim", default=default.claim, help=f"{'|'.join(CLAIMS)} (%(default)s)")
    sub.add_argument(
        "--kernel",
        default=default.kernel,
        help="6.12 or 6.1, claim or stock, debug, joined by dashes; or a path (%(default)s)",
    )
    sub.add_argument(
        "--kernel-of",
        type=_pair,
        action="append",
        default=[],
        metavar="NODE=KERNEL",
        help="another kernel on a node",
    )
    sub.add_argument("--memory", default=default.memory, help="of a node (%(default)s)")
    sub.add_argument(
        "--disk",
        default=default.disk,
        metavar="SIZE|array[:SIZE]",
        help="a shared disk, or a shared array of the nodes' own disks (%(default)s)",
    )
    sub.add_argument("--scratch", default=default.scratch, metavar="SIZE", help="of more of them, empty: /dev/ubdb...")
    sub.add_argument("--scratches", type=int, default=default.scratches, metavar="N", help="how many (%(default)s)")
    sub.add_argument("--journals", type=int, default=0, help="one for each node if not given")
    sub.add_argument(
        "--journal-size", type=int, default=0, metavar="MIB", help="GFS2 32, OCFS2 64 if not given"
    )
    sub.add_argument(
        "--mkfs",
        action="append",
        default=[],
        metavar="OPTION",
        help="for mkfs, for example --mkfs=-r --mkfs=2048",
    )
    sub.add_argument("--mount-options", default=default.mount_options, help="(%(default)s)")
    sub.add_argument("--delay", default="", help="of the cluster's network, each way, for example 100us")
    sub.add_argument(
        "--pin",
        type=_pair,
        action="append",
        default=[],
        metavar="NODE=CPU",
        help="keep a node on a CPU of the host",
    )
    sub.add_argument(
        "--token",
        type=int,
        default=default.token,
        metavar="MS",
        help="until a silent node is dead (%(default)s)",
    )
    sub.add_argument(
        "--no-quorum",
        dest="quorum",
        action="store_false",
        help="survivors go on however few they are; a partition then corrupts the file system",
    )
    sub.add_argument("--mtu", type=int, default=default.mtu, help="(%(default)s)")
    sub.add_argument("--trace", action="store_true", help="trace what happens to locks, for `history`")
    sub.add_argument(
        "--tools", action="append", default=[], metavar="FOLDER", help="put in front of the scripts' PATH"
    )
    sub.add_argument(
        "--append", action="append", default=[], metavar="PARAMETER", help="for the kernel's command line"
    )


def _pair(text: str) -> tuple[int, str]:
    node, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=VALUE")
    return int(node), value


def _up(arguments: argparse.Namespace) -> int:
    given: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(Options)}
    given["kernel_of"] = dict(arguments.kernel_of)
    try:
        given["pin"] = {node: int(cpu) for node, cpu in arguments.pin}
    except ValueError as error:
        raise UsageError("--pin takes NODE=CPU, both numbers") from error
    for name in ("mkfs", "tools", "append"):
        given[name] = tuple(given[name])
    result = Lab(arguments.name).up(Options(**given), timeout=arguments.timeout)
    text = f"lab {result['name']} is up: {result['nodes']} nodes in {result['seconds']['total']} s"
    _tell(arguments, result, text)
    return Exit.OK


def _down(arguments: argparse.Namespace) -> int:
    names = Lab.all_names() if arguments.all else [arguments.name]
    ended = [name for name in names if Lab(name).down(arguments.timeout)]
    _tell(arguments, {"ended": ended}, f"ended: {' '.join(ended) or 'nothing was there'}")
    return Exit.OK


def _status(arguments: argparse.Namespace) -> int:
    names = Lab.all_names() if arguments.all else [arguments.name]
    labs = [Lab(name).status() for name in names]
    lines = []
    for lab in labs:
        lines.append(f"lab {lab['name']}: {lab['state']}")
        for node in lab["nodes"]:
            lines.append(f"  node {node['node']}: {node['state']} {node['why']}".rstrip())
            if lab["state"] == "up" and node["state"] == "running" and not node["answers"]:
                lines.append("    its agent does not answer: it hangs")
            lines += [f"    {line}" for line in node["complaints"][-5:]]
            if node["state"] in ("panicked", "ended"):
                lines += [f"    | {line}" for line in node["last_words"]]
    _tell(arguments, {"labs": labs}, "\n".join(lines) or "no lab runs")
    # A lab that is down or a node that was crashed on purpose is no failure; a node that died is.
    died = any(node["state"] in ("panicked", "ended") for lab in labs for node in lab["nodes"])
    return Exit.NODE if died else Exit.OK


def _history(arguments: argparse.Namespace) -> int:
    events = Lab(arguments.name).history(Path(arguments.out), arguments.timeout)
    _tell(arguments, {"history": arguments.out, "events": events}, f"{arguments.out}: {events} events")
    return Exit.OK


# -- jobs ------------------------------------------------------------------------------------------


def _run_arguments(sub: argparse.ArgumentParser) -> None:
    _named(sub)
    sub.add_argument("--node", default="all", help="a number, numbers joined by commas, or all (all)")
    sub.add_argument("-c", dest="text", metavar="TEXT", help="the script itself instead of a file")
    sub.add_argument("script", nargs="?", help="a shell script; - is standard input")


def _run(arguments: argparse.Namespace) -> int:
    script = _script(arguments)
    nodes = _nodes(arguments.node)
    printer = None if arguments.json else _Printer(prefixed=not isinstance(nodes, int))
    lab = Lab(arguments.name)
    results = lab.run(script, nodes, timeout=arguments.timeout, on_output=printer)
    if printer:
        printer.finish()
        for result in results:
            _tell_end(result)
    else:
        print(json.dumps([result.asdict() for result in results]))
    codes = [result.exit for result in results]
    # A dead node explains more than a time limit, and that more than a status.
    return next((code for code in (Exit.NODE, Exit.TIMEOUT, Exit.SCRIPT) if code in codes), Exit.OK)


def _script(arguments: argparse.Namespace) -> str:
    if (arguments.text is None) == (arguments.script is None):
        raise UsageError("give either a script's file or -c TEXT")
    if arguments.text is not None:
        return str(arguments.text)
    if arguments.script == "-":
        return sys.stdin.read()
    try:
        return Path(arguments.script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the script {arguments.script}: {error}") from error


def _nodes(text: str) -> Nodes:
    if text == "all":
        return "all"
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--node is a number, numbers joined by commas, or all; not {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers


class _Printer:
    """Prints output as it comes, whole lines, with the node in front if there are several."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._rest: dict[tuple[int, str], bytes] = {}
        self._lock = threading.Lock()

    def __call__(self, node: int, stream: str, data: bytes) -> None:
        with self._lock:
            *lines, rest = (self._rest.get((node, stream), b"") + data).split(b"\n")
            self._rest[node, stream] = rest
            for line in lines:
                self._print(node, stream, line + b"\n")

    def finish(self) -> None:
        for (node, stream), rest in self._rest.items():
            if rest:
                self._print(node, stream, rest + (b"\n" if self._prefixed else b""))

    def _print(self, node: int, stream: str, line: bytes) -> None:
        out = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
        out.write((f"{node}: ".encode() if self._prefixed else b"") + line)
        out.flush()


def _tell_end(result: Result) -> None:
    status = "no status" if result.status is None else f"status {result.status}"
    text = f"node {result.node}: {status}, {result.seconds:.2f} s"
    say(f"{text}: {result.failure}" if result.failure else text)


# -- faults ----------------------------------------------------------------------------------------


def _fault_arguments(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("fault", _fault, 120, "do something bad to nodes, or undo it")
    _named(sub)
    sub.add_argument(
        "kind",
        choices=("crash", "stall", "resume", "blackhole", "unblackhole", "netem", "leave", "join"),
        help="crash: end at once; stall, resume: stop and go on; blackhole: lose what --node sends to --to; "
        "netem: delay and lose what --node sends, nothing given ends it; leave: unmount and leave the "
        "cluster; join: come back, also after a crash, and with --kernel if you like",
    )
    sub.add_argument("--node", required=True, help="a number, numbers joined by commas, or all")
    sub.add_argument("--to", default="all", help="for blackhole: the receivers (all others)")
    sub.add_argument("--delay", default="", help="for netem, for example 100us")
    sub.add_argument("--loss", default="", help="for netem, for example 1%%")
    sub.add_argument("--kernel", default="", help="for join: boot the node with this one, named as for `up`")


def _fault(arguments: argparse.Namespace) -> int:
    kind = arguments.kind
    if arguments.kernel and kind != "join":
        raise UsageError("--kernel is for join, which boots a node with it")
    lab = Lab(arguments.name)
    nodes = _list(lab, arguments.node)
    receivers = _list(lab, arguments.to)
    if kind == "netem":
        lab.netem(nodes, delay=arguments.delay, loss=arguments.loss)
    elif kind in ("crash", "stall", "resume"):
        getattr(lab, kind)(*nodes)
    elif kind in ("blackhole", "unblackhole"):
        for node in nodes:
            getattr(lab, kind)(node, *receivers)
    elif kind == "join":
        lab.join(nodes, arguments.timeout, kernel=arguments.kernel)
    else:
        lab.leave(nodes, arguments.timeout)
    _tell(arguments, {"fault": kind, "nodes": nodes}, f"{kind}: node {', '.join(map(str, nodes))}")
    return Exit.OK


def _list(lab: Lab, text: str) -> list[int]:
    nodes = _nodes(text)
    if nodes == "all":
        return lab.options.all_nodes
    return [nodes] if isinstance(nodes, int) else [int(node) for node in nodes]


# -- tests -----------------------------------------------------------------------------------------


def _test_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--kernel", choices=sources.VERSIONS, help="in the nodes (6.12)")
    sub.add_argument("--debug", action="store_true", help="kernels that check themselves; a complaint fails")
    xfstests.arguments(sub)
    sub.set_defaults(timeout=None)  # it depends on the tests that run


def _test(arguments: argparse.Namespace) -> int:
    host.need_root()
    general = build.Kernel.default()
    kernel = build.Kernel(arguments.kernel or general.version, debug=arguments.debug or general.debug)
    os.environ[build.DEFAULT_VARIABLE] = str(kernel)
    if arguments.xfstests is not None:
        return xfstests.command(arguments, arguments.rest, arguments.timeout or xfstests.LIMIT)
    return _pytest(arguments.rest, arguments.timeout or TESTS_LIMIT, arguments.json)


def _pytest(words: list[str], limit: float, as_json: bool) -> int:
    """pytest's output is this command's; it ends with pytest's own closing line. With `as_json` that is progress, and
    the result one object."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = _run_pytest([*words, f"--junit-xml={report}"] if as_json else words, limit, to_stderr=as_json)
        if as_json:
            print(json.dumps({"code": code, **_told(report)}))
    return code


def _told(report: Path) -> dict[str, Any]:
    """The content of pytest's own report, if it came to write one."""
    if not report.exists():
        return {"tests": 0, "failed": [], "skipped": 0, "seconds": 0.0}
    suite = next(ElementTree.parse(report).iter("testsuite"))
    cases = list(suite.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {
        "tests": len(cases),
        "failed": [f"{case.get('classname')}.{case.get('name')}" for case in failed],
        "skipped": sum(case.find("skipped") is not None for case in cases),
        "seconds": float(suite.get("time", "0")),
    }


def _run_pytest(words: list[str], limit: float, to_stderr: bool) -> int:
    folder = host.PACKAGE.parent
    # A folder of tests is named by its own name: `labs/kernels/lab test rdma`.
    words = [f"tests/{word}" if (folder / "tests" / word).is_dir() else word for word in words]
    # Killed together with this process; its labs then end, too, because nobody holds their leashes.
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-B", "-m", "pytest", "-v", *words]
    environment = {**os.environ, build.MISSING_VARIABLE: "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=sys.stderr if to_stderr else None)
    try:
        code = process.wait(limit)
        # The tests' requirements could not be built; pytest's own 3 is a failure of its, and 2 an interruption.
        return code if code in (Exit.OK, Exit.LAB, Exit.TIMEOUT) else Exit.SCRIPT
    except subprocess.TimeoutExpired:
        raise LabError("the tests took too long: give them more with --timeout", Exit.TIMEOUT) from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _tell(arguments: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result) if arguments.json else text)
