"""The lab's network: a bridge for the cluster, and one wire from the host's side to each node's agent.

Made by the supervisor inside its own network namespace, so that it goes when the supervisor goes.
Nodes read and write veth ends as raw packets: with tap, user-mode Linux loses wake-ups.
"""

from __future__ import annotations

from pathlib import Path

from .host import command

AGENT_PORT = 7400


def cluster_address(node: int) -> str:
    return f"10.77.0.{node}"


def agent_address(node: int) -> str:
    return f"10.78.{node}.2"


def bridge_port(node: int) -> str:
    """The host's end of a node's cable, in the bridge."""
    return f"v{node}"


def devices(node: int, mtu: int) -> list[str]:
    """The kernel parameters that connect a node. `mtu` is the largest that the interface can have later."""
    return [
        f"vec0:transport=raw,ifname=p{node},depth=64,gro=1,mtu={mtu},mac={_mac(0, node)}",
        f"vec1:transport=raw,ifname=q{node},depth=64,gro=1,mac={_mac(1, node)}",
    ]


def create(nodes: int, mtu: int) -> None:
    for scope in ("all", "default"):
        setting = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if setting.exists():  # a host without IPv6 has nothing to switch off
            setting.write_text("1", encoding="ascii")
    lines = [
        "link set lo up",
        f"link add br0 mtu {mtu} type bridge stp_state 0 mcast_snooping 0",
        "link set br0 up",
    ]
    for node in range(1, nodes + 1):
        lines += _cluster_port(node, mtu) + _agent_wire(node)
    command(["ip", "-batch", "-"], 30, stdin="\n".join(lines) + "\n")


def _cluster_port(node: int, mtu: int) -> list[str]:
    return [
        f"link add p{node} mtu {mtu} type veth peer name v{node} mtu {mtu}",
        f"link set v{node} master br0 up",
        f"link set p{node} arp off up",
    ]


def _agent_wire(node: int) -> list[str]:
    """Fixed neighbours: no packet waits for ARP, and a node that boots is reached at once."""
    return [
        f"link add q{node} type veth peer name w{node}",
        f"link set q{node} arp off up",
        f"link set w{node} up",
        f"address add 10.78.{node}.1/30 dev w{node}",
        f"neigh add {agent_address(node)} lladdr {_mac(1, node)} dev w{node} nud permanent",
    ]


def _mac(wire: int, node: int) -> str:
    return f"02:4c:4b:00:{wire:02x}:{node:02x}"
