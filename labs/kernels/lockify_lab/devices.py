"""Devices of the kernel's lockspaces, for libdlm in a node."""

# Part of a script: names for lockspaces' devices, which elsewhere are udev's work. It goes on as the process $devices.
DEVICES = """
while sleep 0.1; do
    while read -r minor name; do
        case $name in dlm_*) [ -e "/dev/misc/$name" ] || mknod "/dev/misc/$name" c 10 "$minor" ;; esac
    done </proc/misc
    for device in /dev/misc/dlm_*; do
        grep -q " ${device##*/}\\$" /proc/misc || rm -f "$device"
    done
done & devices=$!
"""
