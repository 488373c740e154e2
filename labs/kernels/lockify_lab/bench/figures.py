"""The paper's figures, each on clusters that run. A figure writes its rows; gates.py judges them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..host import say
from .cluster import Cluster, Run, alternated
from .effort import KINDS, TREE_FOLDERS, Effort
from .load import Phase
from .rows import Case, Rows, ratios

# Figure 7 of the paper: throughput with the claim as a multiple of stock, five clients.
_PUBLISHED_LOW = {"gfs2": 6.4, "ocfs2": 2.9}
_PUBLISHED_HIGH = {("gfs2", "directories"): 5.2, ("gfs2", "files"): 5.4}
_PUBLISHED_HIGH |= {("ocfs2", "directories"): 1.09, ("ocfs2", "files"): 1.11}
_PUBLISHED_SHARE = {"one": 0.044, "stock": 0.467, "claim": 0.08}
_PUBLISHED_POSTMARK = {"gfs2": 2.0, "ocfs2": 1.7}
_PUBLISHED_FILESERVER = {"gfs2": 1.14, "ocfs2": 1.07}
_PUBLISHED_WEBPROXY = {"gfs2": 2.5, "ocfs2": 1.08}
_PUBLISHED_RDMA = 0.88


class Table:
    """Rounds of several clusters: one value for each cluster and round, kept paired."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.cases: dict[tuple[str, str], Case] = {}

    def add(self, cluster: Cluster, workload: str, value: float, active: int = 1) -> None:
        key = (cluster.setup.name, workload)
        self.values[key].append(value)
        self.cases[key] = cluster.case(workload, active)

    def write(self, rows: Rows, bench: str, metric: str) -> None:
        for key, values in self.values.items():
            rows.add(bench, self.cases[key], metric, values)

    def write_ratios(
        self,
        rows: Rows,
        bench: str,
        metric: str,
        base: Callable[[str], str],
        published: Callable[[Case], float | None] = lambda _: None,
    ) -> None:
        """Each cluster against its base, round by round; `base` names a cluster for a cluster."""
        for (name, workload), values in self.values.items():
            other = self.values.get((base(name), workload))
            if base(name) != name and other:
                case = self.cases[name, workload]
                # A baseline runs in the first rounds only.
                rows.add(bench, case, metric, ratios(values, other[: len(values)]), published(case))


def one_of(name: str) -> str:
    """The one-node cluster that a cluster is compared with; names are FS-KIND."""
    return f"{name.split('-')[0]}-one"


def stock_of(name: str) -> str:
    return f"{name.split('-')[0]}-stock"


def _low(case: Case) -> float | None:
    return _PUBLISHED_LOW[str(case["fs"])] if case["claim"] == "on" and case["nodes"] == 5 else None


def low_contention(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """Figures 2b, 5, 7 and 11, and packets: mdtest's tree, one active node."""
    compared = _items(clusters, effort)
    for delay in effort.delays_us:
        rate, created, counts = Table(), Table(), _Counts()
        # The final barrier takes as long after few creations as after many: in short runs it counts for more.
        before, barrier = Table(), Table()
        for cluster in _turns(clusters, delay, rounds):
            items = compared if cluster.setup.stack == "dlm" else effort.baseline_items
            for kind, run in cluster.tree(items).items():
                created.add(cluster, kind, run.phase.operations)
                rate.add(cluster, kind, run.phase.rate)
                before.add(cluster, kind, run.phase.rate_before_barrier)
                barrier.add(cluster, kind, run.phase.barrier_ms)
                counts.add(cluster, kind, run)
        rate.write(rows, "7", "creates_per_s")
        created.write(rows, "7", "creations")
        rate.write_ratios(rows, "7", "ratio_to_one_node", one_of)
        rate.write_ratios(rows, "7", "ratio_to_stock", stock_of, _low)
        before.write_ratios(rows, "7", "ratio_to_one_node_before_barrier", one_of)
        barrier.write(rows, "7", "final_barrier_ms")
        counts.write(rows)
        largest = max(cluster.setup.nodes for cluster in clusters)
        for key, values in rate.values.items():
            base = rate.values.get((one_of(key[0]), key[1]))
            if base and key[0].endswith("-claim") and rate.cases[key]["nodes"] == largest:
                rows.add("11", rate.cases[key], "ratio_to_one_node", ratios(values, base), _PUBLISHED_RDMA)


def _items(clusters: Sequence[Cluster], effort: Effort) -> int:
    """How many a cluster of the lock manager makes in each directory: as one node needs `shortest` for."""
    one = [cluster for cluster in clusters if cluster.setup.nodes == 1]
    if not effort.shortest or not one:
        return effort.items
    fastest = max(run.phase.rate_before_barrier for run in one[0].tree(effort.items).values())
    items = round(fastest * effort.shortest / TREE_FOLDERS)
    return min(max(items, effort.items), effort.most_items)


class _Counts:
    """Packets, round trips and barriers of creations: they do not vary with the machine's load."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = defaultdict(Table)

    def add(self, cluster: Cluster, kind: str, run: Run) -> None:
        if cluster.packets:
            self.tables["packets_per_create"].add(cluster, kind, run.each(run.packets))
        if run.counters and cluster.packets:
            lookups = run.each(run.counters["lookups"] + run.counters["claims_strict"])
            self.tables["round_trips_per_create"].add(cluster, kind, lookups)
        if cluster.setup.claim == "on":
            self.tables["refusals"].add(cluster, kind, run.counters["refusals"])
            self.tables["barrier_waits"].add(cluster, kind, run.counters["barrier_waits"])

    def write(self, rows: Rows) -> None:
        for metric, table in self.tables.items():
            table.write(rows, "packets", metric)
        self.tables["packets_per_create"].write_ratios(rows, "packets", "packets_ratio_to_stock", stock_of)


def sizes(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """Figures 2b and 7 with fewer nodes: the last node leaves, again and again."""
    clusters = [cluster for cluster in clusters if cluster.setup.stack != "nfs"]
    for size in effort.sizes:
        for cluster in clusters:
            while len(cluster.members) > max(size, 1) and cluster.setup.nodes > 1:
                cluster.leave()
        say(f"figure 7 with {size} nodes")
        low_contention(clusters, replace(effort, items=effort.sizes_items), rows, rounds)


def latency(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """Figures 3 and 9: the DLM's share of a creation's time, its messages and its round trips."""
    clusters = [cluster for cluster in clusters if cluster.setup.stack == "dlm"]
    for delay in effort.delays_us:
        tables: dict[str, Table] = defaultdict(Table)
        for cluster in _turns(clusters, delay, rounds):
            for kind, run in cluster.tree(effort.traced_items, traced=True).items():
                _add_traced(tables, cluster, kind, run)
        for metric, table in tables.items():
            for key, values in table.values.items():
                case = table.cases[key]
                published = (
                    _PUBLISHED_SHARE.get(key[0].split("-")[-1]) if metric == "lock_wait_share" else None
                )
                rows.add("9", case, metric, values, published if case["fs"] == "gfs2" else None)
        # Not the sum over locks: many of OCFS2's are waited for at the same time.
        _beyond_one_node(tables["lock_waiting_us_per_create"], "lock_wait_us_beyond_one_node", rows)
        _beyond_one_node(tables["lock_wait_us_typical"], "lock_wait_us_typical_beyond_one_node", rows)
        _beyond_one_node(tables["lock_wait_share"], "lock_wait_share_beyond_one_node", rows)
        _consistency(tables, rows)


def _beyond_one_node(table: Table, metric: str, rows: Rows) -> None:
    for (name, kind), values in table.values.items():
        base = table.values.get((one_of(name), kind))
        if base and one_of(name) != name:
            beyond = [value - other for value, other in zip(values, base, strict=True)]
            rows.add("9", table.cases[name, kind], metric, beyond)


def _add_traced(tables: dict[str, Table], cluster: Cluster, kind: str, run: Run) -> None:
    trace = run.trace
    assert trace is not None
    latency_us = run.phase.seconds / run.phase.operations * 1e6
    tables["lock_wait_us_per_create"].add(cluster, kind, run.each(sum(trace.waits_us)))
    tables["lock_waiting_us_per_create"].add(cluster, kind, run.each(trace.waiting_us))
    tables["lock_wait_share"].add(cluster, kind, run.each(trace.waiting_us) / latency_us)
    tables["lock_wait_us_typical"].add(cluster, kind, run.each(trace.typical_wait_us))
    tables["create_us"].add(cluster, kind, latency_us)
    tables["locks_per_create"].add(cluster, kind, run.each(len(trace.waits_us)))
    tables["messages_per_create"].add(cluster, kind, run.each(trace.messages.total()))
    tables["traced_round_trips_per_create"].add(cluster, kind, run.each(trace.synchronous))


def _consistency(tables: dict[str, Table], rows: Rows) -> None:
    """The claim's saving of a creation, against the decrease of the DLM's wait: 1 if the wait explains the
    throughput. A share of 46.7 % that becomes 8 % explains 1.73 x, not 6.4 x."""
    time, wait = tables["create_us"], tables["lock_waiting_us_per_create"]
    for (name, kind), claimed in time.values.items():
        stock = (stock_of(name), kind)
        if not name.endswith("-claim") or stock not in time.values:
            continue
        saved = [other - mine for mine, other in zip(claimed, time.values[stock], strict=True)]
        waited = [
            other - mine for mine, other in zip(wait.values[name, kind], wait.values[stock], strict=True)
        ]
        explained = [part / whole for part, whole in zip(waited, saved, strict=True) if whole > 0]
        rows.add("9", time.cases[name, kind], "saving_explained_by_wait", explained)


def high_contention(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """Figure 8: all five nodes create in one tree."""
    several = [cluster for cluster in clusters if cluster.setup.nodes > 1 and cluster.setup.stack == "dlm"]
    if len(several) < 2:
        return
    items = {"gfs2": effort.shared_items, "ocfs2": effort.ocfs2_shared_items}
    for delay in effort.shared_delays_us:
        rate = Table()
        for cluster in _turns(several, delay, rounds):
            for kind in KINDS:
                value = cluster.shared_tree(items[cluster.setup.fs], kind)
                rate.add(cluster, kind, value, active=len(cluster.members))
        rate.write(rows, "8", "creates_per_s")
        rate.write_ratios(
            rows, "8", "ratio_to_stock", stock_of,
            lambda case: _PUBLISHED_HIGH[str(case["fs"]), str(case["workload"])],
        )  # fmt: skip


def applications(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """Figure 10: Postmark, fileserver and webproxy on the active node."""
    clusters = [cluster for cluster in clusters if cluster.setup.stack != "nfs"]
    loads: dict[str, Callable[[Cluster], Phase | None]] = {
        "postmark": lambda cluster: _postmark(cluster, effort),
        "fileserver": lambda cluster: cluster.filebench("fileserver", effort.files, effort.seconds).phase,
        "webproxy": lambda cluster: cluster.filebench("webproxy", effort.files, effort.seconds).phase,
    }
    for delay in effort.delays_us:
        rate = Table()
        for cluster in clusters:
            cluster.set_delay(delay)
        for turn in range(rounds):
            for name, run in loads.items():
                for cluster in alternated(clusters, turn):
                    phase = run(cluster)
                    if phase:
                        rate.add(cluster, name, phase.rate)
            _rest(clusters)
        rate.write(rows, "10", "ops_per_s")
        rate.write_ratios(rows, "10", "ratio_to_one_node", one_of)
        rate.write_ratios(rows, "10", "ratio_to_stock", stock_of, _published_application)


def _published_application(case: Case) -> float | None:
    if case["claim"] != "on":
        return None
    of = {"postmark": _PUBLISHED_POSTMARK, "fileserver": _PUBLISHED_FILESERVER}
    return of.get(str(case["workload"]), _PUBLISHED_WEBPROXY)[str(case["fs"])]


def _postmark(cluster: Cluster, effort: Effort) -> Phase | None:
    """The paper's: 500 files of 1 to 4 KiB. Postmark counts whole seconds, so lockify-load takes the time."""
    if cluster.programs.postmark is None:
        return None
    folder = cluster.new_folder("postmark")
    words = cluster.wrapped(folder, effort.postmark, cluster.programs.postmark)
    script = f"""
mkdir {folder}
printf '%s\\n' 'set number 500' 'set size 1024 4096' 'set transactions {effort.postmark}' \\
    'set report terse' "set location {folder}" run quit >/run/postmark
{words} </run/postmark
"""
    return cluster.counted(script).phase


def deletion(clusters: Sequence[Cluster], effort: Effort, rows: Rows, rounds: int) -> None:
    """`rm -r` of a tree that the node has just created. Blocks are used again afterwards: comes last."""
    clusters = [cluster for cluster in clusters if cluster.setup.stack != "nfs"]
    for delay in effort.delays_us:
        rate, packets = Table(), Table()
        for cluster in _turns(clusters, delay, rounds):
            run = cluster.remove_tree(effort.traced_items)
            rate.add(cluster, "rm -r", run.phase.rate)
            if cluster.packets:
                packets.add(cluster, "rm -r", run.each(run.packets))
        rate.write(rows, "deletion", "removes_per_s")
        rate.write_ratios(rows, "deletion", "ratio_to_one_node", one_of)
        rate.write_ratios(rows, "deletion", "ratio_to_stock", stock_of)
        packets.write(rows, "deletion", "packets_per_remove")


def _turns(clusters: Sequence[Cluster], delay_us: int, rounds: int) -> Iterator[Cluster]:
    """Each cluster once a round, in alternating order, under the delay; all rest after a round."""
    for cluster in clusters:
        cluster.set_delay(delay_us)
    for turn in range(rounds):
        yield from (cluster for cluster in alternated(clusters, turn) if turn < cluster.most_rounds)
        _rest(clusters)


def _rest(clusters: Sequence[Cluster]) -> None:
    for cluster in clusters:
        cluster.rest()
