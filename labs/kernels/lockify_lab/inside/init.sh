#!/bin/sh
# Process 1 of a node. The root is the host's own tree, read-only; what a node writes lives in memory.
# The kernel's command line gives NODE (its number), LAB (the lab's folder on the host), MTU and TOOLS
# (folders of programs, joined by colons).

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

# The kernel panics when process 1 ends, which the host sees and reports with this line.
must() {
    "$@" || { echo "lab: node $NODE cannot start: $*"; exit 1; }
}

must mount -t proc proc /proc
must mount -t sysfs sysfs /sys
must mount -t configfs configfs /sys/kernel/config
must mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm
must mount -t devpts devpts /dev/pts
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr

# corosync fails in strange ways without /dev/shm.
for folder in /run /tmp /var/tmp /var/log /mnt /dev/shm /var/lib/corosync /var/lib/nfs; do
    [ ! -d "$folder" ] || must mount -t tmpfs tmpfs "$folder"
done
mkdir -p /run/lab /run/lock /run/jobs /run/corosync /mnt/fs
must mount -t hostfs none /run/lab -o "$LAB"

# Tools may live where a memory file system now lies.
index=0
IFS=:
for folder in $TOOLS; do
    mkdir -p "/run/tools/$index"
    must mount -t hostfs none "/run/tools/$index" -o "$folder"
    index=$((index + 1))
done
unset IFS

# DLM and the daemons for user space find their devices through /proc/misc; there is no udev.
mkdir -p /dev/misc
while read -r minor name; do
    case $name in
    dlm*) mknod "/dev/misc/$name" c 10 "$minor" ;;
    esac
done </proc/misc

must hostname "node$NODE"
must ip link set lo up
must ip link set vec0 mtu "$MTU" up
must ip address add "10.77.0.$NODE/24" dev vec0
# The agent has a wire of its own: faults on the cluster's network must not cut the lab off.
must ip link set vec1 up
must ip address add "10.78.$NODE.2/30" dev vec1

python3 -E -s -B /run/lab/inside/agent.py
echo "lab: the agent of node $NODE ended"
