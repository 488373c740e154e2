#!/usr/bin/env bash
# A shared array on this machine, from its creation to a clean scrub: five devices, two hosts that export it, fio with
# verification on both at the same time. In the middle a host is killed, then a device; the device is replaced.
#
#   docs/array-tour.sh [FOLDER]     an empty folder on a disk (50 MiB) [default: a new one, removed at the end]
#
# Needs `lockify` in PATH, or LOCKIFY=its path, and fio (apt-get install fio). Takes about a minute. Its devices listen on
# the loopback ports from 7100 on; PORT=N takes others. LOCKIFY_DEVICE=--buffered is for folders that refuse direct I/O.
set -euo pipefail

port=${PORT:-7100} lease=2
lockify=$(realpath "$(command -v "${LOCKIFY:-lockify}")") || { echo "lockify is not in PATH: give LOCKIFY=its path" >&2; exit 2; }
command -v fio >/dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 2; }
folder=${1:-$(mktemp -d "$PWD/array-tour.XXXXXX")}
cd "$folder"

declare -A process
clean_up() {
    local running
    running=$(jobs -p)
    # Some may have ended by themselves.
    [ -z "$running" ] || kill -9 $running 2>/dev/null || true
    wait 2>/dev/null
    [ -n "${1:-}" ] || rm -rf "$folder"
}
trap 'clean_up "$@"' EXIT

say() { printf '\n== %s\n' "$*"; }
until_ok() {
    local end=$((SECONDS + 60))
    until "$@" >status 2>&1; do
        [ $SECONDS -lt $end ] || { cat status; echo "this did not come true: $*" >&2; return 1; }
        sleep 0.2
    done
}

kill_hard() {
    local name
    for name in "$@"; do
        kill -9 "${process[$name]}"
        wait "${process[$name]}" 2>/dev/null || true
    done
}

# A process of a device: its number, its file, what is special. The log of one that had the number before says nothing of it.
device() {
    rm -f "device$1.log"
    "$lockify" array device "$2" --array array.toml --id "$1" ${LOCKIFY_DEVICE:-} "${@:3}" >"device$1.log" 2>&1 &
    process[device$1]=$!
    until_ok grep -q "^device" "device$1.log"
}

# A host's process, which exports the array on a Unix socket.
host() {
    rm -f "host$1.log"
    "$lockify" array export array.toml --state "host$1.state" --socket "$PWD/host$1" >"host$1.log" 2>&1 &
    process[host$1]=$!
    until_ok grep -q "serves the array" "host$1.log"
}

# fio at a host writes a host's half of every stripe (64 KiB) of the first 16 MiB, and verifies what it has written.
load() {
    local where=$1 whose=$2
    mkdir -p "fio$where"
    fio --name="host$whose" --thread --ioengine=nbd --uri="nbd+unix:///?socket=$PWD/host$where" --aux-path="fio$where" \
        --rw=write --bs=16k --iodepth=4 --verify=crc32c --verify_fatal=1 \
        --zonemode=strided --zonerange=64k --zonesize=32k --offset=$(((whose - 1) * 32))k \
        --size=$((16 * 1024 - (whose - 1) * 32))k --io_size=8m "${@:3}" >"fio$where.log" 2>&1 &
    process[fio$where]=$!
}

# Waits until fio has ended at a host, without an error.
done_at() {
    wait "${process[fio$1]}" || { cat "fio$1.log"; return 1; }
}

say "An array of five devices"
addresses=()
for i in 0 1 2 3 4; do addresses+=(--device "127.0.0.1:$((port + i))"); done
"$lockify" array create array.toml --device-size 16MiB --unit 16KiB --lease ${lease}s "${addresses[@]}"
for i in 0 1 2 3 4; do device $i disk$i --create; done
until_ok "$lockify" array status --array array.toml
cat status

say "Two hosts export it, and fio writes on both: to the same stripes, each to its own half of them"
host 1
host 2
load 1 1 --rate_iops=50
load 2 2 --rate_iops=50
sleep 2

say "Host 2 is killed, and its fio: the devices notice within its lease, and repair what it had under way"
kill_hard host2 fio2
sleep $((2 * lease))

say "Device 3 is killed: the array goes on without it"
kill_hard device3
until_ok sh -c "$lockify array status --array array.toml | grep '^3 .*failed'"
cat status
done_at 1
echo "fio on host 1 has noticed nothing"

say "A new device in its place, rebuilt while both hosts write; host 2 is back"
host 2
device 3 disk3-new --create
load 1 1
load 2 2
"$lockify" array replace --array array.toml --id 3
done_at 1
done_at 2

say "Each host verifies what the other has written"
load 1 2 --verify_only
load 2 1 --verify_only
done_at 1
done_at 2

say "All is well"
"$lockify" array status --array array.toml
"$lockify" array scrub --array array.toml
