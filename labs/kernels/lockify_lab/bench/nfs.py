"""The NFS baseline: the kernel's server on one node, exporting a local file system on the lab's disk, and
its client on the active one."""

from __future__ import annotations

import shutil

from .. import net
from ..cluster import MOUNTED
from ..lab import Lab

CLIENT, SERVER = 1, 2
PORT = 2049
_PROGRAMS = ("rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs4", "mkfs.ext4")

# Version 4 only: no portmapper. Nobody can reclaim anything from a server that has just been made, so
# its grace period of 90 s is ended at once.
_SERVE = f"""
set -e
mkfs.ext4 -q -F /dev/ubda
mount -o noatime /dev/ubda {MOUNTED}
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /var/lib/nfs/v4recovery
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
exportfs -i -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 '*:{MOUNTED}'
rpc.nfsd --no-nfs-version 3 --no-udp 4
rpc.mountd --no-nfs-version 3 --no-udp
echo Y >/proc/fs/nfsd/v4_end_grace
"""


def missing() -> list[str]:
    """Programs without which there is no NFS baseline."""
    return [name for name in _PROGRAMS if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]


def start(lab: Lab) -> None:
    """Starts the server and mounts it on the client."""
    lab.sh(_SERVE, SERVER, timeout=120)
    server = net.cluster_address(SERVER)
    lab.sh(f"mount -t nfs4 -o vers=4.0,noatime {server}:/ {MOUNTED}", CLIENT, timeout=120)
