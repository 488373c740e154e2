"""Corosync's links: addresses of any number, names, and connections that ride on whichever link is up.

Run as labs/namespaces/test_corosync.py.
"""

from __future__ import annotations

import subprocess

from yard import LOCKIFY, LOCKIFYD, Yard, address, name_of


def test_a_cluster_with_only_ring1_addr() -> None:
    with Yard(3, links=(1,)) as yard:
        yard.until_members([1, 2, 3])
        yard.hold(1, "held")
        assert not yard.can_lock(2, "held")
        assert f"{address(1, 1)}:7430" in listens(yard, 1)


def test_a_daemon_rides_on_whichever_link_is_up() -> None:
    with Yard(3, links=(0, 1), names=True) as yard:
        yard.until_members([1, 2, 3])
        assert {f"{address(2, 0)}:7430", f"{address(2, 1)}:7430"} <= listens(yard, 2)
        kept = yard.hold(3, "kept")
        for down, up in ((0, 1), (1, 0), (0, 1)):
            yard.set_link(down, up=False)
            # The nodes notice by themselves, long before anybody is left behind for it.
            yard.until("connections over the other link",
                       lambda link=up: [link_of(p) for p in connections(yard, 1)] == [link, link])
            for number in yard.nodes:
                yard.lock(number, f"over link {up}")
            yard.set_link(down, up=True)
            assert kept.poll() is None, yard.told()
        assert not yard.can_lock(1, "kept")
        assert all(node.said("every lock is lost") == 0 for node in yard.nodes.values())
        yard.check()


def test_a_restarted_daemon_listens_on_all_its_links_again() -> None:
    with Yard(3, links=(0, 1)) as yard:
        yard.until_members([1, 2, 3])
        kept = yard.hold(3, "kept")
        line = [str(LOCKIFY), "restart", "--socket", str(yard.nodes[3].socket)]
        assert subprocess.run(line, capture_output=True, timeout=60, check=False).returncode == 0
        yard.until("it listens again", lambda: f"{address(3, 1)}:7430" in listens(yard, 3))
        # Node 3 is dialled by the others: over the second link it must listen for that.
        yard.set_link(0, up=False)
        yard.until("all are connected over the other link", lambda: [link_of(p) for p in connections(yard, 3)] == [1, 1])
        yard.lock(1, "name")
        assert kept.poll() is None
        yard.check()


def test_nodes_that_start_while_a_link_is_down_find_each_other() -> None:
    with Yard(3, links=(0, 1)) as yard:
        yard.until_members([1, 2, 3])
        yard.set_link(0, up=False)
        yard.kill_daemon(2)
        yard.until_members([1, 3])
        yard.start_daemon(2)
        yard.until_members([1, 2, 3])
        yard.lock(2, "name")
        yard.set_link(0, up=True)


def test_a_name_that_is_loopback_is_refused_with_the_reason() -> None:
    with Yard(1, names=True) as yard:
        yard.until_members([1])
        node = yard.nodes[1]
        assert node.daemon is not None
        node.daemon.terminate()
        node.daemon.wait(60)
        # As Debian's installer writes it.
        (node.folder / "hosts").write_text(f"127.0.1.1 {name_of(1)}\n", encoding="utf-8")
        done = subprocess.run(node.inside(LOCKIFYD, node.folder / "lockify.toml"), capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode != 0
        assert f"ring0_addr {name_of(1)} of node 1 in corosync.conf is 127.0.1.1 on this machine" in done.stderr
        assert "no other machine reaches" in done.stderr
        node.daemon = None


def listens(yard: Yard, number: int) -> set[str]:
    return {words[3] for words in sockets(yard, number, "--listening")}


def connections(yard: Yard, number: int) -> list[str]:
    """The peers' addresses of a daemon's connections, to it or from it."""
    return [words[4] for words in sockets(yard, number) if "7430" in words[3] + words[4]]


def sockets(yard: Yard, number: int, *options: str) -> list[list[str]]:
    done = subprocess.run(yard.nodes[number].inside("ss", "--tcp", "--numeric", "--no-header", *options),
                          capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [words for words in lines if options or words[0] == "ESTAB"]


def link_of(peer: str) -> int:
    return int(peer.split(".")[2])
