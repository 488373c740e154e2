"""How much of everything a benchmark does."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """Sizes and repetitions. `FULL` has the paper's trees; with all its other sizes it would take days."""

    name: str
    limit: float  # seconds for everything, unless --timeout says otherwise
    rounds: int  # paired and alternated, for every comparison
    baseline_rounds: int  # for O2CB, which takes 100 times as long, and NFS: no gate is about them
    application_rounds: int  # the same for Postmark and Filebench's loads
    items: int  # of each kind in each of the tree's seven directories (mdtest -I)
    baseline_items: int  # the same with O2CB and NFS
    sizes_items: int  # the same with fewer nodes
    # The same for each of five active nodes. GFS2 keeps a lock that others want for at least 10 jiffies,
    # which are 0.1 s here: a node that has created its share earlier lets all wait for a lock of no use.
    shared_items: int
    ocfs2_shared_items: int  # it hands a lock over at once, and without the claim waits for most of the time
    shared_delays_us: tuple[int, ...]
    traced_items: int  # the same when tracepoints are on
    delays_us: tuple[int, ...]
    sizes: tuple[int, ...]  # numbers of nodes between one and the largest
    postmark: int  # transactions
    files: int  # of Filebench's sets
    seconds: float  # of Filebench's loads
    memory: str  # of a node
    disk: str
    # Each, in MiB. gfs2_logd flushes without a pause while those who wait for log space want more than 2/5 of
    # a journal: on a kernel with one CPU and no preemption they never get to take it then. Fileserver's 50
    # writers want 26 MiB on a new file system, and were seen to want 80 on one that figures 7 to 9 had used.
    journal: int
    # Figure 7's runs take at least as many seconds on one node, by more than `items`, but not more than
    # `most_items`: the final barrier would be a large part of a short run. 0: `items`, always.
    shortest: float = 0
    most_items: int = 0


# About twelve hours on two cores, by the rates that `QUICK` measures there.
FULL = Effort(
    name="full", limit=18 * 3600, rounds=15, baseline_rounds=3, application_rounds=15,
    items=5000, baseline_items=1000, sizes_items=2000,
    shared_items=1000, ocfs2_shared_items=200, shared_delays_us=(0, 100),
    traced_items=1000, delays_us=(0, 100), sizes=(4, 3, 2), postmark=20_000, files=2000, seconds=10,
    memory="2G", disk="24G", journal=512,
)  # fmt: skip
QUICK = Effort(
    name="quick", limit=2 * 3600, rounds=5, baseline_rounds=2, application_rounds=3,
    items=300, baseline_items=150, sizes_items=300,
    shared_items=500, ocfs2_shared_items=100, shared_delays_us=(100,),
    traced_items=150, delays_us=(0, 100), sizes=(3,), postmark=3_000, files=500, seconds=3,
    memory="2G", disk="12G", journal=512, shortest=0.4, most_items=1500,
)  # fmt: skip
SMOKE = Effort(
    name="smoke", limit=3600, rounds=3, baseline_rounds=3, application_rounds=3,
    items=100, baseline_items=100, sizes_items=100,
    shared_items=20, ocfs2_shared_items=20, shared_delays_us=(100,),
    traced_items=50, delays_us=(100,), sizes=(), postmark=500, files=200, seconds=1,
    memory="512M", disk="2G", journal=128,
)  # fmt: skip

ALL = (FULL, QUICK, SMOKE)

TREE_FOLDERS = 7  # mdtest -z 2 -b 2
DEPTH = BRANCH = 2
KINDS = ("directories", "files")


def chosen(quick: bool, smoke: bool, rounds: int) -> Effort:
    effort = SMOKE if smoke else QUICK if quick else FULL
    return replace(effort, rounds=rounds, application_rounds=rounds) if rounds else effort
