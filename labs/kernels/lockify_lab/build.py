"""Kernels for nodes, from the distribution's source package, cached by content.

One tree for each source package, `tree-VERSION/source`, holds sources and objects. `stock/` beside it
keeps the original of the few directories that `kernel/apply` may change. A build prepares those
directories anew (original, then `kernel/apply`) in `wanted/` and copies into the tree only the files
that differ, so that make sees new times on exactly those. The result goes to `kernels/DIGEST/`.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import kconfig, sources
from .errors import Exit, LabError, UsageError
from .host import CONFIGS, REPOSITORY, cache_dir, command, locked, say

# Names the kernel that labs use unless they are told otherwise: `labs/kernels/lab test --debug` is for all tests.
DEFAULT_VARIABLE = "LOCKIFY_LAB_KERNEL"
# Set by `labs/kernels/lab test`: what the chosen tests lack is built before the first of them. pytest alone does not.
MISSING_VARIABLE = "LOCKIFY_LAB_BUILD"

# All that kernel/apply may touch; anything else that it changed would be lost, so it is checked.
PATCHED = ("Makefile", "fs/dlm", "fs/gfs2", "fs/ocfs2", "include/linux", "include/trace", "include/uapi")

# Defects of user-mode Linux itself, mended in what is built: versions, file, function, what is replaced how often by what.
# A soft interrupt that runs inside `sigio_handler` lets the next one in, whose events overwrite those of the first
# (`epoll_events` in os-Linux/irq.c), and each event comes but once: one that is lost is a disk that never answers. With
# 50 writers and a flood of pings on two nodes, a node lost 100 in a minute. The one inside may as well do nothing, for
# the one outside asks for events until there are none.
# And it keeps 2696 bytes of a process's vector registers, as processors without AMX have. The host takes only all
# of them back, or the first process dies with `ptrace set fp regs failed, errno = 14`: what nodes do not use are zeros,
# and of a buffer that is too long the host takes as much as it has.
MENDED = (
    (
        sources.VERSIONS,
        "arch/um/kernel/irq.c",
        "void sigio_handler(",
        "_sigio_handler(regs, irqs_suspended);",
        1,
        "{\n\t\tstatic bool busy;\n\n\t\tif (!busy) {\n\t\t\tbusy = true;\n"
        "\t\t\t_sigio_handler(regs, irqs_suspended);\n\t\t\tbusy = false;\n\t\t}\n\t}",
    ),
    (
        sources.INSTALLED,
        "arch/x86/um/os-Linux/registers.c",
        "int restore_fp_registers(",
        "iov.iov_base = fp_regs;\n\t\tiov.iov_len = FP_SIZE * sizeof(unsigned long);",
        1,
        "static unsigned long all[4096];\n\n\t\t__builtin_memcpy(all, fp_regs, FP_SIZE * sizeof(unsigned long));\n"
        "\t\tiov.iov_base = all;\n\t\tiov.iov_len = sizeof(all);",
    ),
)
# lockdep switches itself off after its first report, so one about user-mode Linux itself would hide all others. Its
# network driver resets counters, when an interface comes up, under locks that soft interrupts take, too. In debug
# kernels it keeps these out.
MENDED_FOR_LOCKDEP = (
    (sources.VERSIONS, "arch/um/drivers/vector_kern.c", "static void vector_reset_stats(", "spin_lock(", 2, "spin_lock_bh("),
    (sources.VERSIONS, "arch/um/drivers/vector_kern.c", "static void vector_reset_stats(", "spin_unlock(", 2, "spin_unlock_bh("),
)
_MENDED_FILES = tuple(sorted({name for _, name, *_ in MENDED + MENDED_FOR_LOCKDEP}))


@dataclass(frozen=True)
class Kernel:
    """A kernel to build: version, with our changes or without, with the kernel's own checks or not."""

    version: str = "6.12"
    stock: bool = False
    debug: bool = False

    def __str__(self) -> str:
        kind = "stock" if self.stock else "claim"
        return f"{self.version}-{kind}" + ("-debug" if self.debug else "")

    @staticmethod
    def parse(text: str, default: Kernel) -> Kernel:
        """Reads `[VERSION-][stock|claim][-debug]`; what is absent comes from `default`."""
        version, stock, debug = default.version, default.stock, default.debug
        for word in text.split("-"):
            if word in sources.VERSIONS:
                version = word
            elif word in ("stock", "claim"):
                stock = word == "stock"
            elif word == "debug":
                debug = True
            else:
                raise UsageError(
                    f"no such kernel: {text}. Write stock, claim, {', '.join(sources.VERSIONS)} or debug, "
                    "joined by dashes, for example 6.1-stock"
                )
        return Kernel(version, stock, debug)

    @staticmethod
    def default() -> Kernel:
        return Kernel.parse(os.environ.get(DEFAULT_VARIABLE) or "claim", Kernel())


def claim_dir() -> Path | None:
    """The repository's kernel changes, if there are any."""
    return REPOSITORY / "kernel" if (REPOSITORY / "kernel" / "apply").exists() else None


def find(kernel: Kernel) -> Path:
    """The built kernel, or an error that tells how to get it."""
    path = cache_dir() / "kernels" / digest(kernel) / "linux"
    if path.exists():
        return path
    words = ["labs/kernels/lab build", "--kernel", kernel.version]
    words += ["--stock"] if kernel.stock else []
    words += ["--debug"] if kernel.debug else []
    raise LabError(
        f"there is no built kernel {kernel} for these sources in {cache_dir()}: run `{' '.join(words)}`"
    )


def digest(kernel: Kernel) -> str:
    """Everything that decides what comes out, as one hash."""
    inputs: dict[str, object] = {
        "package": sources.find(kernel.version).package,
        "compiler": command(["gcc", "-dumpfullversion"], 20).strip(),
        "config": {path.name: path.read_text(encoding="utf-8") for path in _fragments(kernel)},
        "changes": _changes(kernel),
        "mended": _mends(kernel),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def build(kernel: Kernel, limit: float, jobs: int) -> tuple[Path, bool]:
    """Builds unless the result is there. Returns the kernel and whether anything was built."""
    if kernel.debug and kernel.version == "6.1":  # its architecture um selects ARCH_NO_PREEMPT
        raise UsageError("user-mode Linux 6.1 has no DEBUG_ATOMIC_SLEEP: build the debug kernel from 6.12")
    end = time.monotonic() + limit
    result = cache_dir() / "kernels" / digest(kernel)
    if (result / "linux").exists():
        return result / "linux", False
    tree = cache_dir() / f"tree-{sources.find(kernel.version).package}"
    with locked(tree.with_suffix(".lock"), limit, f"the source tree {tree}"):
        if (result / "linux").exists():  # built while we waited
            return result / "linux", False
        _unpack(kernel, tree, end)
        _synchronise(kernel, tree, end)
        objects = _configure(kernel, tree, end)
        _make(tree / "source", objects, jobs, end)
        _publish(kernel, objects, result)
    return result / "linux", True


def _fragments(kernel: Kernel) -> list[Path]:
    claims = not kernel.stock and claim_dir() is not None
    names = ["base.config"] + ["claim.config"] * claims + ["debug.config"] * kernel.debug
    return [CONFIGS / name for name in names]


def _changes(kernel: Kernel) -> dict[str, str]:
    """Hashes of all files that take part in kernel/apply; none for a stock kernel."""
    folder = None if kernel.stock else claim_dir()
    if folder is None:
        return {}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    kept = (path for path in files if _takes_part(path.relative_to(folder)))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def _takes_part(path: Path) -> bool:
    hidden = any(part.startswith((".", "__")) for part in path.parts)
    return not hidden and (path.parts[0] in ("apply", "hooks.toml") or path.parts[:2] in (("src", "fs"), ("src", "include")))


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise LabError("the build's time limit is over: give it more with --timeout", Exit.TIMEOUT)
    return left


def _unpack(kernel: Kernel, tree: Path, end: float) -> None:
    if (tree / "stock").exists():
        _keep_originals(tree)
        return
    tarball = sources.find(kernel.version).tarball
    say(f"unpacking {tarball}")
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "source").mkdir(parents=True)
    command(["nice", "tar", "-xf", tarball, "--strip-components=1", "-C", tree / "source"], _left(end))
    _copy_patched(tree / "source", tree / "stock.new")
    (tree / "stock.new").rename(tree / "stock")  # last: its presence means that all is there
    _keep_originals(tree)


def _keep_originals(tree: Path) -> None:
    """Of the files to mend. A tree from before there were any has still their originals."""
    for name in _MENDED_FILES:
        if not (tree / "stock" / name).exists():
            (tree / "stock" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / "source" / name, tree / "stock" / name)


def _copy_patched(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for name in PATCHED:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True)
        else:
            shutil.copy2(source / name, target / name)


def _synchronise(kernel: Kernel, tree: Path, end: float) -> None:
    """Gives the tree the sources that this kernel is made of."""
    folder = None if kernel.stock else claim_dir()
    wanted = tree / "stock"
    if folder is not None:
        wanted = tree / "wanted"
        _copy_patched(tree / "stock", wanted)
        command([folder / "apply", "--code", "--kernel", kernel.version, wanted], min(_left(end), 300))
        _refuse_changes_elsewhere(wanted)
    elif not kernel.stock:
        say("the repository has no kernel/apply: this is the stock kernel")
    changed = sum(_mirror(wanted / name, tree / "source" / name) for name in PATCHED)
    for name, text in mended(tree / "stock", kernel).items():
        changed += _write_if_changed(tree / "source" / name, text)
    if changed:
        say(f"{changed} source files changed")


def _mends(kernel: Kernel) -> tuple[tuple[str, str, str, int, str], ...]:
    mends = MENDED + (MENDED_FOR_LOCKDEP if kernel.debug else ())
    return tuple(mend[1:] for mend in mends if kernel.version in mend[0])


def mended(stock: Path, kernel: Kernel) -> dict[str, str]:
    """The text of every file that is mended in some kernel, as it is in this one."""
    texts = {name: (stock / name).read_text(encoding="utf-8") for name in _MENDED_FILES}
    for name, function, old, count, new in _mends(kernel):
        text = texts[name]
        begin = text.find(function)
        end = text.find("\n}", begin)
        found = text.count(old, begin, end) if begin >= 0 else 0
        if found != count:
            times = f"{found} times `{old}` in `{function}` instead of {count}"
            raise LabError(f"{name}: {times}: see MENDED in {__file__}")
        texts[name] = text[:begin] + text[begin:end].replace(old, new) + text[end:]
    return texts


def _write_if_changed(path: Path, text: str) -> int:
    if path.read_text(encoding="utf-8") == text:
        return 0
    path.write_text(text, encoding="utf-8")
    return 1


def _refuse_changes_elsewhere(wanted: Path) -> None:
    allowed = {Path(name) for name in PATCHED}
    parents = {parent for name in allowed for parent in name.parents}
    for path in sorted(wanted.rglob("*")):
        here = path.relative_to(wanted)
        if here in parents or here in allowed or allowed & set(here.parents):
            continue
        raise LabError(f"kernel/apply made {here}, which the lab does not copy: extend PATCHED in {__file__}")


def _mirror(wanted: Path, actual: Path) -> int:
    """Makes `actual` equal to `wanted`, leaving equal files and their times alone. Returns the changes."""
    if wanted.is_file():
        if actual.is_file() and filecmp.cmp(wanted, actual, shallow=False):
            return 0
        shutil.copyfile(wanted, actual)  # the time is now: make must see it
        shutil.copymode(wanted, actual)
        return 1
    actual.mkdir(exist_ok=True)
    here, there = set(os.listdir(actual)), set(os.listdir(wanted))
    for name in here - there:
        (shutil.rmtree if (actual / name).is_dir() else os.unlink)(actual / name)
    return len(here - there) + sum(_mirror(wanted / name, actual / name) for name in sorted(there))


def _configure(kernel: Kernel, tree: Path, end: float) -> Path:
    """Objects live inside the source tree, where kbuild refers to the sources by a relative path."""
    objects = tree / "source" / ("objects-debug" if kernel.debug else "objects")
    wanted: dict[str, str] = {}
    for path in _fragments(kernel):
        wanted |= kconfig.read(path)
    stamp = objects / "lab.config"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == kconfig.lines(wanted):
        return objects
    say("configuring")
    objects.mkdir(exist_ok=True)
    make = ["make", "-C", str(tree / "source"), "ARCH=um", f"O={objects}"]
    command([*make, "defconfig"], min(_left(end), 300))
    with open(objects / ".config", "a", encoding="utf-8") as config:
        config.write(kconfig.lines(wanted))
    command([*make, "olddefconfig"], min(_left(end), 300))
    kconfig.check(wanted, objects / ".config")
    stamp.write_text(kconfig.lines(wanted), encoding="utf-8")
    return objects


def _make(source: Path, objects: Path, jobs: int, end: float) -> None:
    running, log = objects / "lab.running", objects / "lab.log"
    if running.exists():
        _forget_half_written(objects, log)
    running.touch()
    # If this process is killed, so is unshare, and with its process namespace all of make's children.
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]
    words += ["nice", "make", "-C", str(source)]
    words += ["ARCH=um", f"O={objects}", f"-j{jobs}", "linux"]
    say(f"building with {jobs} jobs; log in {log}")
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            _wait_telling(process, log, end)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in tail if "error" in line.lower() or "***" in line] or tail
        raise LabError("the kernel does not build:\n" + "\n".join(told[-20:]) + f"\nall of it: {log}")
    running.unlink()


def _forget_half_written(objects: Path, log: Path) -> None:
    """A killed make may have left objects that look finished. It wrote them at its end, and its log says
    when that was: whatever is not clearly older goes."""
    if not log.exists():
        return
    begin = log.stat().st_mtime - 120
    for path in objects.rglob("*"):
        if path.suffix in (".o", ".a", ".cmd") and path.is_file() and path.stat().st_mtime >= begin:
            path.unlink()


def _wait_telling(process: subprocess.Popen[bytes], log: Path, end: float) -> None:
    told = time.monotonic()
    while process.poll() is None:
        _left(end)
        time.sleep(0.2)
        if time.monotonic() - told >= 30:
            told = time.monotonic()
            steps = log.read_text(encoding="utf-8", errors="replace").count("\n")
            say(f"  {steps} steps done")


def _publish(kernel: Kernel, objects: Path, result: Path) -> None:
    new = result.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    shutil.copy2(objects / "linux", new / "linux")
    shutil.copy2(objects / ".config", new / "config")
    shutil.copy2(objects / "System.map", new / "System.map")
    about = {"kernel": str(kernel), "package": sources.find(kernel.version).package, "changes": _changes(kernel)}
    (new / "build.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    new.rename(result)
