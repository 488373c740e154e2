"""`labs/kernels/lab bench array`: a shared array beside Linux's own RAID over network block devices.

A user with one host would take md for this: RAID-5 or RAID-6 over five exports of nbdkit, each behind Linux's NBD client. Node 1 has that.
Node 2 has five devices of a shared array, its export, and Linux's NBD client in front. The same fio jobs run on both block devices
in turns, each time in the other order. Node 2 has the array as a ublk device, too, which is compared with NBD. Nodes 3 and 4 then
export the same array as well, and all three work at once: md has one host only. Each side has five disks of its own, all are files of this machine, and all programs run inside the nodes. So system
calls and switches between processes cost much more than on machines: ratios are worse for whoever needs more of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from .. import net
from ..errors import LabError, UsageError
from ..host import need_root, say
from ..lab import Lab
from .rows import Row, Rows, quartiles, ratios

_DEVICES = 5
_PARITIES = {5: 1, 6: 2}  # by level
_HOSTS = (2, 3, 4)
_MD = 1
_DISKS = "bcdefghijk"  # /dev/ubdb and so on: md's five, then the array's
_LIMIT = 3600.0
_PROGRAMS = {"fio": "fio", "nbdkit": "nbdkit", "mdadm": "mdadm", "nbd-client": "nbd-client"}


@dataclass(frozen=True)
class Job:
    """A load of fio: 16 requests under way, past the cache."""

    title: str
    words: str


def jobs(level: int) -> tuple[Job, ...]:
    """Of RAID-5 or RAID-6. Whole stripes are the data units, of 64 KiB each, of five devices."""
    stripe = 64 * (_DEVICES - _PARITIES[level])
    return (
        Job("read 64 KiB", "--rw=randread --bs=64k"),
        Job("write 64 KiB", "--rw=randwrite --bs=64k"),
        Job("70 % reads, 64 KiB", "--rw=randrw --rwmixread=70 --bs=64k"),
        Job(f"write {stripe} KiB, whole stripes", f"--rw=randwrite --bs={stripe}k --blockalign={stripe}k"),
        Job("read 4 KiB", "--rw=randread --bs=4k"),
        Job("write 4 KiB", "--rw=randwrite --bs=4k"),
    )


_LOOK = """
look() {  # look TEXT COMMAND...: until it succeeds
    local what=$1; shift
    for i in $(seq 300); do "$@" >/run/looked 2>&1 && return; sleep 0.1; done
    cat /run/looked /run/*.log >&2; echo "in vain waited: $what" >&2; exit 1
}
"""
# md asks for a flush where it wants one; nbdkit tells the disk then. Both sides read and write the disk, not a cache of it.
_START_MD = (
    _LOOK
    + """
n=0
for disk in {disks}; do
    n=$((n + 1))
    nbdkit --unix /run/nbd$n.sock --pidfile /run/nbdkit$n.pid file /dev/ubd$disk cache=none >/run/nbdkit$n.log 2>&1 </dev/null
    look "nbdkit $n listens" test -s /run/nbdkit$n.pid
    nbd-client -unix /run/nbd$n.sock /dev/nbd$n -block-size 4096 >/run/client$n.log 2>&1 || { cat /run/client$n.log >&2; exit 1; }
    dd if=/dev/zero of=/dev/nbd$n bs=64k count=16 oflag=direct 2>/dev/null
done
mdadm --create /dev/md0 --run --assume-clean --level={level} --raid-devices=5 --chunk=64 --bitmap=none \
    /dev/nbd1 /dev/nbd2 /dev/nbd3 /dev/nbd4 /dev/nbd5 >/run/mdadm.log 2>&1 || { cat /run/mdadm.log >&2; exit 1; }
blockdev --getsize64 /dev/md0
"""
)
_START_DEVICES = (
    _LOOK
    + """
n=0
for disk in {disks}; do
    setsid /run/lab/out/bin/lockify array device /dev/ubd$disk --create --array /run/lab/out/array.toml --cluster-key /run/lab/out/key --node 1 \
        --id $n >/run/device$n.log 2>&1 </dev/null &
    n=$((n + 1))
done
"""
)
_EXPORT = (
    _LOOK
    + """
setsid /run/lab/out/bin/lockify array export /run/lab/out/array.toml --cluster-key /run/lab/out/key --node 1 --socket /run/nbd.sock \
    --patience 60s >/run/export.log 2>&1 </dev/null &
look "the array is exported" grep "serves the array" /run/export.log
nbd-client -unix /run/nbd.sock /dev/nbd0 -block-size 4096 >/run/client.log 2>&1 || { cat /run/client.log >&2; exit 1; }
blockdev --getsize64 /dev/nbd0
"""
)
_UBLK = (
    _LOOK
    + """
setsid /run/lab/out/bin/lockify array export /run/lab/out/array.toml --cluster-key /run/lab/out/key --node 1 --ublk 0 \
    --patience 60s >/run/ublk.log 2>&1 </dev/null &
look "the array is a ublk device" grep "serves the array" /run/ublk.log
"""
)
# The whole device is used, and has content: neither side reads what was never written.
_FILL = "dd if=/dev/urandom of={device} bs=1M count={mib} oflag=direct status=none"
_FIO = """
fio --name=job --filename={device} --size={mib}m --direct=1 --ioengine=libaio --iodepth=16 --time_based --runtime={seconds} \
    --ramp_time=1 --norandommap --randrepeat=0 --output-format=json {words}
"""


def _with(script: str, **values: str | int) -> str:
    """A script with its words; shell has braces of its own."""
    for name, value in values.items():
        script = script.replace("{" + name + "}", str(value))
    return script


def arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--lockify", type=Path, default=Path("target/release/lockify"), metavar="PROGRAM")
    sub.add_argument("--rounds", type=int, default=5, metavar="N")
    sub.add_argument("--seconds", type=int, default=3, metavar="S", help="of each job on each side (%(default)s)")
    sub.add_argument("--level", type=int, choices=(5, 6), default=5, help="RAID-5 or RAID-6, of both (%(default)s)")
    sub.add_argument("--mib", type=int, default=128, metavar="N", help="that are read and written (%(default)s)")
    sub.add_argument("--out", type=Path, default=Path("target/array-md.jsonl"), metavar="FILE")
    sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    sub.add_argument("--timeout", type=float, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    sub.set_defaults(bench=run, limit=lambda _: _LIMIT)


def run(given: argparse.Namespace) -> int:
    need_root()
    if given.rounds < 1 or not 1 <= given.seconds <= 600 or not 16 <= given.mib <= 4096:
        raise UsageError("--rounds is at least 1, --seconds 1 to 600, --mib 16 to 4096")
    if not given.lockify.is_file():
        raise UsageError(f"{given.lockify} is missing: `cargo build --release -p lockify-cli --features ublk`")
    for program, package in _PROGRAMS.items():
        if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            raise LabError(f"{program} is missing: apt-get install {package}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out)
    with Lab("array") as lab:
        say("four nodes: md over nbdkit, and an array with three hosts")
        # Of a device's space, a ninth is for sectors beside blocks.
        disk = f"{given.mib // 2 + 64}M"
        lab.up(nodes=len(_HOSTS) + 1, fs="none", stack="none", kernel="stock", scratch=disk, scratches=2 * _DEVICES)
        _start(lab, given)
        measured = [_measure(lab, job, given, rows) for job in jobs(given.level)]
    rows.close()
    verdicts = [verdict for pair in measured for verdict in pair]
    for verdict in verdicts:
        print(verdict)
    if given.json:
        print(json.dumps({"out": str(given.out), "goals": verdicts}))
    return 0


def _start(lab: Lab, given: argparse.Namespace) -> None:
    folder = lab.folder / "out"
    folder.mkdir()
    (folder / "bin").mkdir()
    shutil.copy(given.lockify, folder / "bin" / "lockify")
    lockify = "/run/lab/out/bin/lockify"
    md, ours = " ".join(_DISKS[:_DEVICES]), " ".join(_DISKS[_DEVICES:])
    say(lab.sh(_with(_START_MD, disks=md, level=given.level), _MD, timeout=120).strip() + " bytes in md's array")
    address = net.cluster_address(_HOSTS[0])
    devices = " ".join(f"--device {address}:{7100 + index}@1" for index in range(_DEVICES))
    create = f"{lockify} cluster key /run/lab/out/key && {lockify} array create /run/lab/out/array.toml"
    size = f"$(blockdev --getsize64 /dev/ubd{_DISKS[_DEVICES]})B"
    # Nodes that share few processors are paused by each other, which is not measured here.
    redundancy = "--raid6 " if given.level == 6 else ""
    lab.sh(f"{create} {redundancy}--durable-on-flush --lease 30s --device-size {size} {devices}", _HOSTS[0])
    lab.sh(_with(_START_DEVICES, disks=ours), _HOSTS[0], timeout=60)
    for host in _HOSTS:
        said = lab.sh(_EXPORT, host, timeout=120)
    say(said.strip() + " bytes in the shared array")
    lab.sh(_UBLK, _HOSTS[0], timeout=120)
    for device, node in (("/dev/md0", _MD), ("/dev/nbd0", _HOSTS[0])):
        lab.sh(_with(_FILL, device=device, mib=given.mib), node, timeout=600)


def _measure(lab: Lab, job: Job, given: argparse.Namespace, rows: Rows) -> list[str]:
    """The verdicts of a job: one host against md, all hosts together, and ublk against NBD."""
    sides: dict[str, tuple[str, tuple[int, ...]]] = {
        "md": ("/dev/md0", (_MD,)),
        "array": ("/dev/nbd0", _HOSTS[:1]),
        "ublk": ("/dev/ublkb0", _HOSTS[:1]),
        "hosts": ("/dev/nbd0", _HOSTS),
    }
    found: dict[str, list[float]] = {side: [] for side in sides}
    for round_ in range(given.rounds):
        names = list(sides)
        for name in names if round_ % 2 == 0 else reversed(names):
            device, nodes = sides[name]
            script = _with(_FIO, device=device, mib=given.mib, seconds=given.seconds, words=job.words)
            found[name].append(_rate(lab, script, list(nodes), given.seconds))
    for name, rates in found.items():
        rows.add("array-md", {"job": job.title, "side": name, "level": given.level}, "ops_per_s", rates)
    return [
        _verdict(rows, job, "one host against md", found["array"], found["md"], 0.9),
        _verdict(rows, job, f"{len(_HOSTS)} hosts together against md's one", found["hosts"], found["md"], 1.0),
        _verdict(rows, job, "ublk against NBD, one host", found["ublk"], found["array"], 1.0, "ratio_to_nbd"),
    ]


def _verdict(
    rows: Rows, job: Job, what: str, ours: list[float], theirs: list[float], least: float, metric: str = "ratio_to_md"
) -> str:
    rounds = ratios(ours, theirs)
    rows.add("array-md", {"job": job.title, "side": what}, metric, rounds)
    return line(rows.all[-1], least)


def line(row: Row, least: float) -> str:
    """A goal: pass, or how far it falls short."""
    first, third = quartiles(row.rounds)
    verdict = "pass       " if row.value >= least else "FALLS SHORT"
    spread = f"[{first:.2f} .. {third:.2f}] of {len(row.rounds)}"
    return f"{verdict} {row.case['job']}, {row.case['side']}: {row.value:.2f} {spread}, wanted >= {least:g}"


def _rate(lab: Lab, script: str, nodes: list[int], seconds: int) -> float:
    """Requests per second of all nodes together."""
    results = lab.run(script, nodes, timeout=seconds + 60)
    return sum(_requests(result.node, result.out, result.err or result.failure) for result in results)


def _requests(node: int, out: str, err: str) -> float:
    begin = out.find("{")
    try:
        job = json.loads(out[begin:])["jobs"][0]
        rate = float(job["read"]["iops"]) + float(job["write"]["iops"])
    except (ValueError, LookupError):
        raise LabError(f"fio on node {node} says no rate: {out[-300:]}{err[-300:]}") from None
    if job["error"] or rate <= 0:
        raise LabError(f"fio on node {node} failed: {out[-300:]}{err[-300:]}")
    return rate
