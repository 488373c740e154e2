#!/bin/bash
# Runs xfstests' `check` on this node; the arguments are names of tests. FSTYP, CLAIM and XFSTESTS (the checkout) are in
# the environment. Everything that is written lies in RESULT_BASE, which is a folder of the host: it outlives the node.

here=/run/lab/inside/xfstests
export HOST_OPTIONS=$here/options.sh RESULT_BASE=/run/lab/xfstests/$NODE
export PATH=$here:$PATH

# Users that tests want, for this node only: the host's own files are read-only.
mkdir -p /run/xfstests /run/xfstests/home "$RESULT_BASE" /mnt/scratch
for file in passwd group shadow; do
    [ ! -e /run/xfstests/$file ] || continue
    cp -p /etc/$file /run/xfstests/$file && mount --bind /run/xfstests/$file /etc/$file || exit
done
id=61000
for name in fsgqa 123456-fsgqa fsgqa2; do
    id=$((id + 1))
    grep -q "^$name:" /etc/group || echo "$name:x:$id:" >>/etc/group
    grep -q "^$name:" /etc/passwd || echo "$name:x:$id:$id::/run/xfstests/home:/bin/bash" >>/etc/passwd
    grep -q "^$name:" /etc/shadow || echo "$name:*:19000:0:99999:7:::" >>/etc/shadow
done

# Some tests link to the output that they expect, in the folder that they lie in.
for folder in $(dirname "$@" | sort -u); do
    ! mountpoint -q "$XFSTESTS/tests/$folder" || continue
    copy=/run/xfstests/tests/$folder
    mkdir -p "$copy" && cp -p "$XFSTESTS/tests/$folder/group.list" "$copy" || exit
    for test; do
        [ "${test%/*}" != "$folder" ] || cp -p "$XFSTESTS/tests/$test" "$XFSTESTS/tests/$test".* "$copy" || exit
    done
    mount --bind "$copy" "$XFSTESTS/tests/$folder" || exit
done

# `check` mounts it anew, with its own options.
! mountpoint -q /mnt/fs || umount /mnt/fs || exit

cd "$XFSTESTS" && exec ./check --exact-order "$@"
