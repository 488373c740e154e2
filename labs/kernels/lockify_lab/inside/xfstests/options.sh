# Sourced by xfstests instead of a checkout's local.config. The other nodes have TEST_DEV mounted as well;
# SCRATCH_DEV, which tests make and mount as they like, is this node's alone, but on the DLM, too.
# Tests read the block size out of the options, as a number without unit.
letters=abcdefghijklmnop
export TEST_DEV=/dev/ubda TEST_DIR=/mnt/fs SCRATCH_DEV=/dev/ubd${letters:NODE:1} SCRATCH_MNT=/mnt/scratch
case $FSTYP in
gfs2) export MKFS_OPTIONS="-O -K -q -p lock_dlm -t lab:scratch$NODE -j 1 -J 32" ;;
ocfs2) export MKFS_OPTIONS="-q -F --nodiscard -b 4096 -C 4096 -N 1 -J size=64M --cluster-stack=pcmk --cluster-name=lab" ;;
esac
