#!/bin/sh
# The first process of the virtual machine of vm-cgroup2.sh. It sets up a machine that has only cgroup v2, runs pods on it
# and prints `ok NAME` or `FAILED NAME` for each check.

if [ "$1" != second ]; then
  # Containers use pivot_root, which does not work in the initial root. So move to another root.
  mount -t tmpfs -o size=75% root /tmp
  for dir in bin etc lib lib64 modules probe usr init; do cp -a /$dir /tmp/; done
  mkdir -p /tmp/dev /tmp/proc /tmp/run /tmp/sys /tmp/tmp /tmp/var/lib
  exec switch_root /tmp /init second
fi

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs state /var/lib
chmod 1777 /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname machine
echo 'root:x:0:0:root:/:/bin/sh
user:x:1000:1000:user:/:/bin/sh' >/etc/passwd
echo 'root:x:0:
user:x:1000:' >/etc/group
dmesg -n 1
failures=0
say() { # say NAME COMMAND...
  name=$1; shift
  if "$@" >/tmp/said 2>&1; then echo "ok $name"; else echo "FAILED $name"; sed 's/^/    /' /tmp/said; failures=$((failures + 1)); fi
}
equals() { [ "$1" = "$2" ] || { echo "<$1> instead of <$2>"; return 1; }; }
contains() { case "$1" in *"$2"*) ;; *) echo "no <$2> in <$1>"; return 1 ;; esac; }
event() { grep "\"event\":\"$1\"" /tmp/events | grep -q "$2" || { cat /tmp/events; return 1; }; }
pod() { # pod NAME SPEC-LINES: writes the manifest
  printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n%s\n' "$1" "$2" >"/tmp/$1.yaml"
}
run() { outrigger run $flags --output plain --network "${network:-none}" --events /tmp/events "/tmp/$1.yaml" >/tmp/out 2>&1; }

echo "kernel $(uname -r), controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
say 'all cgroups are v2' equals "$(grep -c cgroup /proc/mounts)" 1

pod plain '  restartPolicy: Never
  containers:
  - {name: main, image: "rootfs:/", command: [sh, -c, "echo x >/etc/made; mount | grep \" / \"; exit 7"]}'

# Before the module is loaded, the kernel has no overlayfs.
run plain; say 'without overlayfs: exit code' equals $? 7
say 'without overlayfs: the root is a copy' contains "$(cat /tmp/out)" 'main | '
say 'without overlayfs: the image is not written to' test ! -e /etc/made
for module in $(cat /modules/order); do insmod "/modules/$module.ko" 2>/tmp/said || { echo "cannot load $module: $(cat /tmp/said)"; }; done
run plain; say 'with overlayfs: exit code' equals $? 7
say 'with overlayfs: it is used' contains "$(cat /tmp/out)" 'overlay on / type overlay'
say 'with overlayfs: the image is not written to' test ! -e /etc/made

# From here on, state is on a disk.
say 'a disk' mount -t ext4 /dev/vda /var/lib
mkdir -p /var/lib/tmp /var/lib/rootfs/tmp
cp -a /bin /lib /lib64 /etc /usr /var/lib/rootfs/
cp -a /probe /var/lib/probe
chmod 1777 /var/lib/tmp
pod mapped '  restartPolicy: Never
  containers:
  - {name: main, image: "rootfs:/var/lib/rootfs", command: [sh, -c, "cat /proc/self/uid_map; stat -c %u /bin/busybox; id -u; echo x >/made && stat -c %u /made; mknod /node c 1 1 && echo NODE; exit 7"]}'
run mapped; say 'a user namespace: exit code' equals $? 7
say 'a user namespace: ids' sh -c 'grep -qE "main \\| +0 +[1-9][0-9]+ +65536" /tmp/out'
say 'a user namespace: owners are those of the image' equals "$(grep -c 'main | 0$' /tmp/out)" 3
say 'a user namespace: no device nodes' sh -c '! grep NODE /tmp/out'
say 'a user namespace: no warning' sh -c '! grep WARN /tmp/out'
flags='--userns host'
run mapped; say 'without a user namespace: exit code' equals $? 7
say 'without a user namespace: ids' sh -c 'grep -qE "main \\| +0 +0 +4294967295" /tmp/out'
flags=

pod limited '  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: "rootfs:/"
    command: [sh, -c, "mount | grep cgroup; mkdir /sys/fs/cgroup/x && echo WRITABLE; ls /sys/fs/cgroup; mknod /tmp/k c 1 11; cat /tmp/k && echo OPENED; echo x >/dev/null && echo NULL; touch /tmp/ready; sleep 1000"]
    resources: {limits: {memory: 64Mi, cpu: 500m}, requests: {cpu: 250m}}
    readinessProbe: {exec: {command: [test, -f, /tmp/ready]}, periodSeconds: 1}'
rm -f /tmp/events
outrigger run --output plain --network none --events /tmp/events /tmp/limited.yaml >/tmp/out 2>&1 &
agent=$!
waited=0
until grep -q '"event":"ready"' /tmp/events 2>/dev/null || [ $waited = 120 ]; do sleep 0.5; waited=$((waited + 1)); done
say 'an exec probe passes' event ready main
group=$(dirname "$(find /sys/fs/cgroup/outrigger -name cgroup.procs -exec grep -l . {} + | head -1)")
say 'memory.max' equals "$(cat "$group/memory.max")" 67108864
say 'cpu.max' equals "$(cat "$group/cpu.max")" '50000 100000'
say 'cpu.weight' equals "$(cat "$group/cpu.weight")" 10
say 'cgroups are read-only inside' contains "$(cat /tmp/out)" 'cgroup2 (ro,'
say 'no cgroup can be made inside' sh -c '! grep WRITABLE /tmp/out'
say 'a container sees its own cgroup only' sh -c '! grep "main | outrigger" /tmp/out'
say 'devices are limited' sh -c '! grep OPENED /tmp/out && grep -q "not permitted" /tmp/out'
say 'the usual devices work' contains "$(cat /tmp/out)" NULL
kill -TERM $agent; wait $agent
say 'stopped' equals $? 143
say 'nothing is left in the cgroups' sh -c '[ -z "$(find /sys/fs/cgroup/outrigger -mindepth 1 -type d)" ]'
say 'nothing is left in the state directory' sh -c '[ -z "$(ls /var/lib/outrigger/pods)" ]'
say 'nothing is left mounted' sh -c '! grep outrigger /proc/mounts'

pod hungry '  restartPolicy: Never
  containers:
  - {name: main, image: "rootfs:/", command: [tail, -c, "200000000", /dev/zero], resources: {limits: {memory: 32Mi}}}'
run hungry; say 'too much memory: exit code' equals $? 137
say 'too much memory: said' event exited '"reason":"OOMKilled"'

for runtime in runc crun; do
  [ -x "/bin/$runtime" ] || continue
  flags="--oci-runtime $runtime"
  run plain; say "$runtime: exit code" equals $? 7
  run hungry; say "$runtime: too much memory: exit code" equals $? 137
  say "$runtime: too much memory: said" event exited '"reason":"OOMKilled"'
  say "$runtime: nothing is left in the cgroups" sh -c '[ -z "$(find /sys/fs/cgroup/outrigger -mindepth 1 -type d)" ]'
done
flags=

network=private
pod networked '  restartPolicy: Never
  containers:
  - {name: main, image: "rootfs:/var/lib/rootfs", command: [sh, -c, "ip -4 addr show eth0 | grep -q inet && ping -c 1 -W 5 $(ip route | sed -n s/default.via.//p | cut -d\" \" -f1)"]}'
run networked; say 'a private network reaches the host' equals $? 0
say 'no warning about it' sh -c '! grep WARN /tmp/out'
network=none

chmod 755 /bin/outrigger
mkdir -p /tmp/u; chown user /tmp/u
say 'another user runs pods' sh -c 'su user -c "OUTRIGGER_RUNTIME_DIR=/tmp/u/run outrigger run --network none --state-dir /tmp/u /tmp/plain.yaml" >/tmp/out 2>&1; code=$?; cat /tmp/out; [ $code = 7 ]'
mkdir /sys/fs/cgroup/user
echo '+memory +cpu +pids' >/sys/fs/cgroup/cgroup.subtree_control
chown user /sys/fs/cgroup/user /sys/fs/cgroup/user/cgroup.procs /sys/fs/cgroup/user/cgroup.subtree_control
sh -c 'echo $$ >/sys/fs/cgroup/user/cgroup.procs; exec su user -c "exec env OUTRIGGER_RUNTIME_DIR=/tmp/u/run outrigger run --output plain --network none --state-dir /tmp/u --events /tmp/u/events /tmp/hungry.yaml"' >/tmp/out 2>&1
say 'a user with a cgroup of its own has limits' equals $? 137
say 'they are known to be the reason' sh -c 'grep -q OOMKilled /tmp/u/events || { cat /tmp/out; exit 1; }'
say 'nothing is left in the cgroup of the user' sh -c '[ -z "$(find /sys/fs/cgroup/user/outrigger -mindepth 1 -type d)" ]'
say 'doctor' outrigger doctor
outrigger doctor | sed 's/^/    /'

if [ -x /bin/tests ]; then
  # The tests of `machines` hide cgroups, so they need a machine that has more of them.
  OUTRIGGER_TEST_PROBE=/var/lib/probe TMPDIR=/var/lib/tmp tests --skip machines:: 2>&1 | tee /tmp/tests | grep -v ' ok$'
  say 'tests of the runtime' sh -c 'grep -q "^test result: ok" /tmp/tests'
fi
echo "finished: $failures failed"
poweroff -f
