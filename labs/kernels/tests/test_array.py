"""GFS2 on a shared array of the nodes' own disks, fenced by fence_lockify: nobody has a shared disk.

Every node changes files, and tells here what fsync(2) has acknowledged, while nodes, devices and links fail. In the end
all of that is there, as each node sees it; fsck.gfs2 and the array's scrub find nothing.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockify_lab import Lab, LabError, array
from lockify_lab.durable import Load, verify

BUILT = ("kernels", "lockify")

# Milliseconds until a silent node is dead, for corosync and for the array: far more than a loaded machine is silent.
TOKEN = 4000
# Seconds until survivors have to go on. Typical is a tenth of it: the token, the fence, and the journal.
PATIENCE = 120
# Seconds in which an array gets closer to being whole.
HEALS = 900
LIMIT = 4 * 3600

MINUTES_VARIABLE, SEED_VARIABLE = "LOCKIFY_ARRAY_MINUTES", "LOCKIFY_ARRAY_SEED"


def up(lab: Lab, nodes: int = 3, size: str = "256M") -> None:
    lab.expect("withdraw")  # of a node that was cut off, in the end
    lab.up(nodes=nodes, fs="gfs2", claim="on", disk=f"array:{size}", journal_size=8, token=TOKEN)


@dataclass
class Cluster:
    """A cluster under load, and the loads so far: those of nodes that were killed count, too."""

    lab: Lab
    loads: dict[int, Load] = field(default_factory=dict)
    ended: list[Load] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def load(self, node: int) -> None:
        """Each has a folder of its own in a folder of all: names of one folder, locks of all nodes."""
        number = len(self.ended) + len(self.loads)
        load = Load(self.lab, node, f"{node}.{number}", f"{number}", LIMIT)
        load.start()
        self.loads[node] = load

    def end(self, node: int) -> Load:
        load = self.loads.pop(node)
        self.ended.append(load)
        return load

    def progress(self, seconds: float = PATIENCE) -> None:
        for load in self.loads.values():
            load.await_progress(seconds)

    @contextmanager
    def disturbed(self, what: str) -> Iterator[None]:
        """Tells how long those who are left were kept waiting by what is done inside."""
        begin = time.monotonic()
        yield
        self.progress()
        pauses = [f"node {node} {load.longest_pause(begin):.1f} s" for node, load in sorted(self.loads.items())]
        print(f"{begin - self.begun:7.1f} s  {what}; longest pauses: {', '.join(pauses)}", flush=True)

    def back(self, node: int) -> None:
        begin = time.monotonic()
        self.lab.join(node, timeout=300)
        self.load(node)
        self.progress()
        took = time.monotonic() - begin
        print(f"           node {node} is back, and the array whole, after {took:.1f} s", flush=True)

    def finish(self) -> None:
        """Every node finds everything; then nobody has the file system, and nothing is wrong with it or below it."""
        nodes = sorted(self.loads)
        for node in nodes:
            self.loads[node].stop()
            self.end(node)
        kept = sum(len(load.times) for load in self.ended)
        self.lab.sh("echo 3 >/proc/sys/vm/drop_caches")  # what is read comes from the array
        for node in nodes:
            looked_at = verify(self.lab, self.ended, node)
        print(f"{kept} changes were kept, and {looked_at} files and pages are right on nodes {nodes}", flush=True)
        self.lab.leave(nodes, timeout=300)
        self.lab.fsck(half_made=True)
        print(self.lab.scrub(), flush=True)


def status(lab: Lab, node: int) -> dict[str, Any]:
    """It ends with 1 as long as a device is missing."""
    [result] = lab.run("array status --json", node, timeout=60)
    told: dict[str, Any] = json.loads(result.out)
    return told


def hosts_of(lab: Lab, node: int, asked: int) -> list[int]:
    """The array's hosts on a node, which have neither ended nor been fenced."""
    [found] = [entry["hosts"] for entry in status(lab, asked)["nodes"] if entry["name"] == f"node{node}"]
    return list(found)


def crash_a_kernel(cluster: Cluster, node: int) -> None:
    with cluster.disturbed(f"node {node} crashes"):
        cluster.lab.crash(node)
        cluster.end(node).wait()
    assert hosts_of(cluster.lab, node, min(cluster.loads)) == [], "it was not fenced"
    cluster.back(node)


def kill_a_device(cluster: Cluster, node: int, away: float) -> None:
    """It comes back before the array goes on without it, or afterwards."""
    with cluster.disturbed(f"the device of node {node} is killed, and back after {away:g} s"):
        cluster.lab.sh(array.stop_device(), node)
        time.sleep(away)
        cluster.lab.sh(array.start_device(60), node, timeout=90)
    whole(cluster, node)


def replace_a_device(cluster: Cluster, node: int) -> None:
    with cluster.disturbed(f"the device of node {node} is replaced"):
        cluster.lab.sh(array.stop_device() + array.wipe(), node)
        cluster.lab.sh(array.start_device(60, new=True), node, timeout=90)
        cluster.lab.sh("array replace --id $((NODE - 1))", node, timeout=300)
    whole(cluster, node)


def to_do(lab: Lab, node: int) -> int:
    """Stripes that devices have to check, or that are not rebuilt yet."""
    devices = status(lab, node)["devices"]
    return sum((device["unchecked"] or 0) - (device["done"] or 0) for device in devices)


def whole(cluster: Cluster, node: int) -> None:
    """A device that has restarted checks its stripes first, if the array had a dead host: minutes, or more on a busy machine."""
    begin = time.monotonic()
    left: int | None = None
    while True:
        try:
            cluster.lab.sh(array.heal(HEALS), node, timeout=HEALS)
            break
        except LabError:
            now = to_do(cluster.lab, node)
            if left is not None and now >= left:
                raise
            left = now
    print(f"           the array is whole after {time.monotonic() - begin:.1f} s more", flush=True)


def cut_a_link(cluster: Cluster, node: int) -> None:
    """The node lives on behind it, and writes. When the link is back it finds out that it is cut off for good."""
    lab = cluster.lab
    others = [other for other in lab.options.all_nodes if other != node]
    with cluster.disturbed(f"the link of node {node} is cut, both ways"):
        load = cluster.end(node)
        lab.blackhole(node, *others)
        for other in others:
            lab.blackhole(other, node)
    assert hosts_of(lab, node, others[0]) == [], "it was not fenced"
    # The array fences by itself, too, and changes may have needed no lock of others. A link that is back while dlm_controld still
    # fences brings back a member of the same life, which only its restart ends.
    lab.sh(array.lockspaces_without(node, PATIENCE), others, timeout=PATIENCE + 30)
    for one in (node, *others):
        lab.unblackhole(one)
    lab.sh(array.export_ends(90), node, timeout=120)
    cluster.progress()
    lab.crash(node)  # as a watchdog would
    load.wait()
    # An fsync that had nothing left to write may have ended after the fence. Any other one would be missed here.
    verify(lab, [load], others[0])
    cluster.back(node)


def loaded(lab: Lab) -> Cluster:
    up(lab)
    cluster = Cluster(lab)
    for node in (1, 2, 3):
        cluster.load(node)
    cluster.progress()
    return cluster


def test_nothing_is_lost_when_devices_fail(lab: Lab) -> None:
    cluster = loaded(lab)
    kill_a_device(cluster, 2, away=0.5)
    replace_a_device(cluster, 1)
    cluster.finish()


@pytest.mark.long
def test_nothing_is_lost_when_nodes_fail(lab: Lab) -> None:
    """A node takes its device with it. If its host was writing, a block of that device may be lost, which RAID-5 does
    not bear (docs/array.md, "When content is at risk"): then this fails with error 5. That was seen once."""
    cluster = loaded(lab)
    crash_a_kernel(cluster, 3)
    cut_a_link(cluster, 2)
    cluster.finish()


@pytest.mark.long
def test_faults_at_random(lab: Lab) -> None:
    """For LOCKIFY_ARRAY_MINUTES (10), with LOCKIFY_ARRAY_SEED or a new one."""
    minutes = float(os.environ.get(MINUTES_VARIABLE) or 10)
    seed = os.environ.get(SEED_VARIABLE) or str(random.randrange(1 << 32))
    print(f"{SEED_VARIABLE}={seed} {MINUTES_VARIABLE}={minutes:g}", flush=True)
    choose = random.Random(seed)
    nodes = choose.choice((3, 4, 5))
    up(lab, nodes, "1G")  # nothing is removed
    cluster = Cluster(lab)
    for node in range(1, nodes + 1):
        cluster.load(node)
    faults: list[Callable[[Cluster, int], None]] = [
        crash_a_kernel,
        cut_a_link,
        replace_a_device,
        lambda cluster, node: kill_a_device(cluster, node, away=0.5),
        lambda cluster, node: kill_a_device(cluster, node, away=3 * TOKEN / 1000),
    ]
    while time.monotonic() < cluster.begun + 60 * minutes:
        choose.choice(faults)(cluster, choose.randrange(nodes) + 1)
        time.sleep(choose.uniform(0, 10))
        verify(lab, [*cluster.ended], choose.choice(sorted(cluster.loads)))
    cluster.finish()


@pytest.mark.long
def test_all_may_crash_at_once(lab: Lab) -> None:
    """As in a power cut: what fsync has acknowledged is on the nodes' own disks."""
    up(lab)
    cluster = Cluster(lab)
    for node in (1, 2, 3):
        cluster.load(node)
    for load in cluster.loads.values():
        load.await_progress(PATIENCE, changes=20)
    lab.crash(1, 2, 3)
    for node in (1, 2, 3):
        cluster.end(node).wait()
    lab.fsck(half_made=True)
    lab.join([1, 2, 3], timeout=300)
    verify(lab, cluster.ended, 2)
    with pytest.raises(LabError, match="has the file system mounted"):
        lab.fsck()
    lab.leave([1, 2, 3], timeout=300)
    lab.scrub()
