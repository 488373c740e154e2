# Sourced by xfstests instead of a checkout's local.config. Of a cluster's file system the other nodes have TEST_DEV mounted as
# well; SCRATCH_DEV, which tests make and mount as they like, is this node's alone, but on the DLM, too. For file systems of one
# host the lab has named both devices.
# Tests read the block size out of the options, as a number without unit.
letters=abcdefghijklmnop
export TEST_DEV=${TEST_DEV:-/dev/ubda} TEST_DIR=/mnt/fs
export SCRATCH_DEV=${SCRATCH_DEV:-/dev/ubd${letters:NODE:1}} SCRATCH_MNT=/mnt/scratch
case $FSTYP in
gfs2) export MKFS_OPTIONS="-O -K -q -p lock_dlm -t lab:scratch$NODE -j 1 -J 32" ;;
ocfs2) export MKFS_OPTIONS="-q -F --nodiscard -b 4096 -C 4096 -N 1 -J size=64M --cluster-stack=pcmk --cluster-name=lab" ;;
esac
