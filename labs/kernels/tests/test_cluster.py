"""Real clusters: nodes that share a file system, and what happens to them."""

import subprocess
import time
from pathlib import Path

import pytest

from lockify_lab import Exit, Lab, LabError, check_copies, check_single_master


def test_gfs2_is_shared(lab: Lab) -> None:
    lab.up(nodes=2, fs="gfs2")
    lab.sh("echo from node $NODE of $NODES >$MNT/file.$NODE")
    assert lab.sh("cat $MNT/file.2", 1) == "from node 2 of 2\n"
    assert lab.sh("cat $MNT/file.1", 2) == "from node 1 of 2\n"

    tables = lab.dlm_tables()
    assert check_single_master(tables) == []
    assert check_copies(tables) == []
    nodes_of = {view.node for view in tables.resources if view.locks}
    assert nodes_of == {1, 2}, "both nodes must have locks, or the tables were not read"
    assert lab.counters().keys() == {1, 2}
    assert lab.complaints() == {}


def test_five_nodes_work_in_one_folder(lab: Lab) -> None:
    begin = time.monotonic()
    lab.up(nodes=5, fs="gfs2")
    took = time.monotonic() - begin
    lab.sh("for i in $(seq 20); do echo $NODE >$MNT/$NODE.$i; done", timeout=120)
    assert lab.sh("ls $MNT | wc -l; cat $MNT/* | sort | uniq -c | awk '{print $1}'", 3).split() == [
        "100",
        *["20"] * 5,
    ]
    assert check_single_master(lab.dlm_tables()) == []
    print(f"booted in {took:.1f} s")


def test_a_crashed_node_is_recovered_and_comes_back(lab: Lab) -> None:
    lab.up(nodes=2, fs="gfs2", token=2000)
    lab.sh("echo kept >$MNT/file && sync $MNT/file && touch $MNT/held", 2)
    # Files that nobody deletes until a node looks for space or fsck does.
    lab.sh("(exec >$MNT/open 2>&1; rm $MNT/open; sync; sleep 1000) & sleep 1", 2)
    lab.crash(2)
    # Node 2 held the file's lock: this waits for the token, the DLM's and the journal's recovery.
    assert lab.sh("cat $MNT/file && echo more >>$MNT/file", 1, timeout=60) == "kept\n"
    assert [node["state"] for node in lab.status()["nodes"]] == ["running", "crashed"]
    lab.join(2)
    assert lab.sh("cat $MNT/file", 2) == "kept\nmore\n"
    assert check_single_master(lab.dlm_tables()) == []
    with pytest.raises(LabError, match="has the file system mounted"):
        lab.fsck()
    inode = int(lab.sh("sync; stat -c %i $MNT/file", 2))
    lab.leave(2)
    lab.crash(1)
    copy = lab.disk.with_suffix(".copy")
    subprocess.run(["cp", "--sparse=always", lab.disk, copy], check=True)
    with pytest.raises(LabError, match="Cleaned: 1 "):
        lab.fsck()
    copy.replace(lab.disk)
    assert "Cleaned: 1 " in lab.fsck(unlinked=True)
    lab.fsck()
    _damage(lab, inode)
    with pytest.raises(LabError, match="found errors"):
        lab.fsck(unlinked=True)


def _damage(lab: Lab, inode: int, block: int = 4096) -> None:
    """GFS2 and OCFS2 number inodes by their blocks."""
    with open(lab.disk, "r+b") as disk:
        disk.seek(inode * block)
        disk.write(bytes(block))


def test_a_node_leaves_and_joins(lab: Lab) -> None:
    lab.up(nodes=2, fs="gfs2")
    lab.sh("echo one >$MNT/file", 2)
    lab.leave(2)
    assert lab.run("mountpoint -q $MNT", 2)[0].status != 0
    assert lab.sh("echo two >>$MNT/file; cat $MNT/file", 1) == "one\ntwo\n"
    lab.join(2)
    assert lab.sh("cat $MNT/file", 2) == "one\ntwo\n"


@pytest.mark.parametrize("stack", ["dlm", "o2cb"])
def test_ocfs2_is_shared(lab: Lab, stack: str) -> None:
    lab.up(nodes=2, fs="ocfs2", stack=stack)
    lab.sh("echo from node $NODE >$MNT/file.$NODE")
    assert lab.sh("cat $MNT/file.2", 1) == "from node 2\n"
    assert lab.sh("cat $MNT/file.1", 2) == "from node 1\n"
    inode = int(lab.sh("sync; stat -c %i $MNT/file.1", 1))
    if stack == "dlm":
        assert check_single_master(lab.dlm_tables()) == []
    else:
        with pytest.raises(LabError, match="without the kernel's DLM"):
            lab.dlm_tables()
    assert lab.complaints() == {}
    lab.crash(1, 2)
    lab.fsck()
    _damage(lab, inode)
    with pytest.raises(LabError, match="found errors"):
        lab.fsck()


def test_the_claim_is_switched_on(lab: Lab) -> None:
    lab.up(nodes=2, fs="gfs2", claim="on")
    assert lab.sh("cat /sys/kernel/dlm/fs/claim") == "on\non\n"
    lab.sh("touch $MNT/$NODE.{1..50}")
    assert all(counts["claims"] > 0 for counts in lab.counters().values())
    lab.set_claim("off", 2)
    assert lab.sh("cat /sys/kernel/dlm/fs/claim") == "on\noff\n"


def test_a_claim_needs_a_kernel_that_has_it(lab: Lab) -> None:
    with pytest.raises(LabError, match="this node's kernel has no claim"):
        lab.up(nodes=1, fs="gfs2", kernel="stock", claim="on")
    lab.up(nodes=1, fs="gfs2", kernel="stock", claim="off")
    assert lab.counters() == {1: {}}


def test_kernels_are_mixed(lab: Lab) -> None:
    lab.up(nodes=2, fs="gfs2", kernel_of={1: "stock"})
    assert [result.ok for result in lab.run("[ -e /sys/kernel/dlm/fs/claim ]")] == [False, True]
    lab.sh("echo $NODE >$MNT/$NODE")
    assert lab.sh("cat $MNT/1 $MNT/2") == "1\n2\n" * 2


def test_a_node_comes_back_with_another_kernel(lab: Lab) -> None:
    """After it left, and after a crash."""
    claim = "[ -e /sys/kernel/dlm/fs/claim ]"
    lab.up(nodes=2, fs="gfs2", token=2000, kernel_of={2: "stock"})
    with pytest.raises(LabError, match="node 2 is in the cluster"):
        lab.join(2, kernel="claim")
    with pytest.raises(LabError, match="no such kernel"):
        lab.join(2, kernel="other")
    lab.sh("echo stock >$MNT/file", 2)
    lab.leave(2)
    lab.join(2, kernel="claim")
    assert lab.sh(f"{claim} && cat $MNT/file", 2) == "stock\n"
    assert lab.options.kernel_of == {2: "claim"}
    lab.crash(2)
    lab.join(2, kernel="stock")
    assert lab.sh(f"! {claim} && cat $MNT/file", 2) == "stock\n"


def test_options_reach_the_nodes(lab: Lab, tmp_path: Path) -> None:
    tool = tmp_path / "a-tool"
    tool.write_text("#!/bin/sh\necho used\n", encoding="utf-8")
    tool.chmod(0o755)
    lab.up(
        nodes=1,
        fs="gfs2",
        disk="200M",
        journals=3,
        journal_size=8,
        mkfs=("-r", "64"),
        mount_options="noatime,errors=panic",
        memory="256M",
        pin={1: 0},
        tools=(str(tmp_path),),
        append=("lab.test=1",),
    )
    assert lab.sh("blockdev --getsize64 /dev/ubda") == f"{200 << 20}\n"
    assert "errors=panic" in lab.sh("grep gfs2 /proc/mounts")
    assert "lab.test=1" in lab.sh("cat /proc/cmdline")
    assert int(lab.sh("awk '/MemTotal/ {print $2}' /proc/meminfo")) < 256 << 10
    assert lab.sh("a-tool") == "used\n"
    lab.leave(1)
    lab.fsck()
    kernels = [
        process
        for process in Path("/proc").glob("[0-9]*")
        if f"{lab.folder}/disk.img".encode() in _bytes(process / "cmdline")
    ]
    assert kernels
    assert all(b"Cpus_allowed_list:\t0\n" in _bytes(process / "status") for process in kernels)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process ended meanwhile


class TestOneNode:
    """Tests that need no cluster."""

    @pytest.fixture(autouse=True)
    def up(self, lab: Lab) -> None:
        lab.up(nodes=1, fs="none", stack="none")

    def test_a_script_has_output_status_and_little_delay(self, lab: Lab) -> None:
        lab.run("true")
        (result,) = lab.run("echo out; echo err >&2; printf '\\xff'; exit 3")
        assert (result.out, result.err, result.status, result.exit) == (
            "out\n\ufffd",
            "err\n",
            3,
            Exit.SCRIPT,
        )
        assert result.seconds < 5  # typically 0.03; this is no benchmark

    def test_much_output_arrives(self, lab: Lab) -> None:
        (result,) = lab.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; seq 1000 >&2")
        assert result.ok
        assert len(result.out) == 3_000_001
        assert result.err.split() == [str(number) for number in range(1, 1001)]

    def test_a_daemon_does_not_keep_its_script(self, lab: Lab) -> None:
        (result,) = lab.run("sleep 300 & echo started")
        assert (result.out, result.status) == ("started\n", 0)
        assert lab.sh("pidof sleep | wc -w") == "1\n"

    def test_a_script_that_takes_too_long_is_killed_and_shows_where(self, lab: Lab) -> None:
        (result,) = lab.run("sleep 300", timeout=1)
        assert result.exit == Exit.TIMEOUT
        assert "killed" in result.failure
        assert "(sleep), state S" in result.err and "nanosleep" in result.err
        assert lab.run("pidof sleep")[0].status == 1

    def test_a_panic_is_told_with_the_last_words(self, lab: Lab) -> None:
        lab.expect("sysrq triggered crash")
        (result,) = lab.run(
            "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 60", timeout=20
        )
        assert result.exit == Exit.NODE
        assert "node 1 is not running (panicked" in result.failure
        assert "Kernel panic - not syncing: sysrq triggered crash" in result.failure
        assert lab.run("true")[0].exit == Exit.NODE
        (state,) = lab.status()["nodes"]
        assert state["state"] == "panicked"
        assert any("Kernel panic" in line for line in state["complaints"])

    def test_a_stalled_node_keeps_nobody_waiting(self, lab: Lab) -> None:
        lab.stall(1)
        (result,) = lab.run("true", timeout=1)
        assert result.exit == Exit.TIMEOUT
        assert "it is stalled" in result.failure
        lab.resume(1)
        assert lab.run("true")[0].ok

    def test_a_node_cannot_change_the_host(self, lab: Lab) -> None:
        (result,) = lab.run("touch /root/a /usr/a /home/a; touch /tmp/a /run/a")
        assert result.err.count("Read-only file system") == 3


def test_faults_of_the_network(lab: Lab) -> None:
    lab.up(nodes=2, fs="none", stack="none", delay="20ms")
    ping = "ping -q -c 3 -i 0.2 -W 1 10.77.0.{} | tail -1 | cut -d/ -f5"
    assert float(lab.sh(ping.format(2), 1)) >= 40
    lab.netem()
    assert float(lab.sh(ping.format(2), 1)) < 20

    lab.blackhole(1, 2)
    assert not lab.run("ping -c 1 -W 1 10.77.0.2", 1)[0].ok
    # One way only: what node 2 sends still arrives at node 1, whose answer is lost.
    received = "grep ^Icmp: /proc/net/snmp | tail -1 | cut -d' ' -f2"
    before = int(lab.sh(received, 1))
    assert not lab.run("ping -c 2 -i 0.2 -W 1 10.77.0.1", 2)[0].ok
    assert int(lab.sh(received, 1)) == before + 2
    lab.unblackhole(1)
    assert lab.run("ping -c 1 -W 1 10.77.0.2", 1)[0].ok

    lab.netem(1, loss="100%")
    assert not lab.run("ping -c 1 -W 1 10.77.0.2", 1)[0].ok
    with pytest.raises(LabError, match="is no loss"):
        lab.netem(1, loss="some")


def test_labs_run_side_by_side() -> None:
    with Lab("side-a") as first, Lab("side-b") as second:
        first.up(nodes=1, fs="gfs2")
        second.up(nodes=1, fs="gfs2")
        first.sh("echo first >$MNT/file")
        second.sh("echo second >$MNT/file")
        assert (first.sh("cat $MNT/file"), second.sh("cat $MNT/file")) == ("first\n", "second\n")
        with pytest.raises(LabError, match="runs already"):
            Lab("side-a").up(nodes=1)
        first.down()
        assert second.run("cat $MNT/file")[0].ok
