#!/bin/bash
# Gives an ordinary user a place on this machine and runs a command as that user. Everything is in mount and network
# namespaces of its own: accounts, set-aside ids, missing programs, the network. Only cgroups are the machine's, and go at
# the end.
#
#   SEAT_DIR      an empty directory
#   SEAT_UID      the user
#   SEAT_RANGES   how many ids are set aside for it ("" for none)
#   SEAT_HIDE     programs that are not installed
#   SEAT_CGROUPS  "1": cgroups of its own; "v2": one of the second generation, and no other is there
#   SEAT_WORLD    the command that serves in the network beyond the machine's
set -euo pipefail
if [ "${1:-}" != inside ]; then
  exec unshare --mount --net --propagation private "$BASH" "$0" inside "$@"
fi
shift
cp -a /etc "$SEAT_DIR/etc"
chmod 755 "$SEAT_DIR" "$SEAT_DIR/etc"
mkdir -m 700 "$SEAT_DIR/home" "$SEAT_DIR/run"
mkdir -m 1777 "$SEAT_DIR/tmp"
# A root file system of root's, without mount points.
mkdir -p "$SEAT_DIR/theirs/bin" "$SEAT_DIR/theirs/etc"
cp /bin/busybox "$SEAT_DIR/theirs/bin/sh"
echo theirs >"$SEAT_DIR/theirs/etc/name"
chmod -R go+rX "$SEAT_DIR/theirs"
chown "$SEAT_UID:$SEAT_UID" "$SEAT_DIR/home" "$SEAT_DIR/run"
echo "seated:x:$SEAT_UID:$SEAT_UID::$SEAT_DIR/home:/bin/sh" >>"$SEAT_DIR/etc/passwd"
: >"$SEAT_DIR/etc/subuid"
[ -z "$SEAT_RANGES" ] || echo "seated:700000:$SEAT_RANGES" >"$SEAT_DIR/etc/subuid"
cp "$SEAT_DIR/etc/subuid" "$SEAT_DIR/etc/subgid"
rm -f "$SEAT_DIR/etc/resolv.conf"
echo "nameserver 198.51.100.2" >"$SEAT_DIR/etc/resolv.conf"
mount --bind "$SEAT_DIR/etc" /etc
for program in $SEAT_HIDE; do
  if path=$(command -v "$program"); then mount --bind /dev/null "$path"; fi
done
if [ -e /dev/net/tun ]; then
  mknod -m 666 "$SEAT_DIR/tun" c 10 200
  mount --bind "$SEAT_DIR/tun" /dev/net/tun
fi
ip link set lo up
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip netns add world
ip link add out type veth peer name out netns world
ip addr add 198.51.100.1/24 dev out
ip link set out up
ip -n world addr add 198.51.100.2/24 dev out
ip -n world link set out up
ip -n world link set lo up
ip route add default via 198.51.100.2
ip netns exec world $SEAT_WORLD &
world=$!
cgroups=()
if [ "$SEAT_CGROUPS" = v2 ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
  umount --lazy /sys/fs/cgroup
  mount -t cgroup2 none /sys/fs/cgroup
fi
if [ -n "$SEAT_CGROUPS" ]; then
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    cgroups+=("/sys/fs/cgroup/outrigger-seat-$$")
  else
    for name in memory cpu pids; do
      [ -d "/sys/fs/cgroup/$name" ] && cgroups+=("/sys/fs/cgroup/$name/outrigger-seat-$$")
    done
  fi
  for dir in "${cgroups[@]}"; do
    mkdir "$dir"
    chown -R "$SEAT_UID" "$dir"
    echo $$ >"$dir/cgroup.procs"
  done
fi
code=0
setpriv --reuid "$SEAT_UID" --regid "$SEAT_UID" --clear-groups \
  env HOME="$SEAT_DIR/home" XDG_RUNTIME_DIR="$SEAT_DIR/run" TMPDIR="$SEAT_DIR/tmp" USER=seated "$@" || code=$?
kill $world 2>/dev/null || true
for dir in "${cgroups[@]}"; do
  echo $$ >"${dir%/*}/cgroup.procs"
  find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
done
exit $code
