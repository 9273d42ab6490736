#!/usr/bin/env bash
# Runs pods on a machine that has only cgroup v2: Debian's kernel in qemu, without KVM. Its files are an initramfs with
# busybox and the given binaries, and an empty ext4. It runs scripts/vm-cgroup2-guest.sh.
#
#   scripts/vm-cgroup2.sh OUTRIGGER [TESTS]      TESTS: the test program of the embedded runtime, which is also run there
set -euo pipefail
outrigger=$(realpath "$1")
tests=${2:+$(realpath "$2")}
here=$(cd "$(dirname "$0")" && pwd)
cache=${OUTRIGGER_VM_DIR:-$here/../target/vm}
mkdir -p "$cache"
cd "$cache"

PATH=$PATH:/sbin:/usr/sbin
command -v mkfs.ext4 >/dev/null || { echo "mkfs.ext4 is missing: apt-get install e2fsprogs" >&2; exit 1; }
command -v qemu-system-x86_64 >/dev/null || { echo "qemu-system-x86_64 is missing: apt-get install qemu-system-x86" >&2; exit 1; }
if ! ls kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
  apt-get download -q "$package"
  mkdir -p kernel
  dpkg-deb -x "$package"_*.deb kernel
  rm -f "$package"_*.deb
fi
kernel=$(ls kernel/boot/vmlinuz-*)
modules=$(echo kernel/lib/modules/*)

rm -rf root
mkdir -p root/{bin,dev,etc,lib,lib64,probe,proc,run,sys,tmp,modules,usr/bin}
cp /bin/busybox root/bin/busybox
for applet in $(/bin/busybox --list | grep -vx busybox); do ln -s busybox "root/bin/$applet"; done
ln -s /bin/true root/usr/bin/true
binary() {
  objcopy --strip-debug "$1" "root/bin/$2"
  ldd "$1" | awk '/=> \// {print $3} /^\t\/lib/ {print $1}' | while read -r library; do
    mkdir -p "root$(dirname "$library")"
    cp -L "$library" "root$library"
  done
}
binary "$outrigger" outrigger
if [ -n "$tests" ]; then
  binary "$tests" tests
  # The virtual machine has no compiler.
  gcc -static -O1 -o root/probe/probe "$here/../crates/embedded/tests/containers/syscalls.c"
fi
# OCI runtimes of this machine are tested there as well.
for runtime in runc crun; do
  if path=$(command -v $runtime); then binary "$path" $runtime; fi
done
cp "$here/vm-cgroup2-guest.sh" root/init
chmod +x root/init
# The modules in loading order. Modules that are built into the kernel are not found.
for name in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 mbcache jbd2 crc32c_generic ext4 overlay llc stp bridge veth nfnetlink nf_defrag_ipv4 nf_defrag_ipv6 libcrc32c nf_conntrack nf_nat nf_tables nft_chain_nat nft_masq; do
  found=$(find "$modules" -name "$name.ko*" -print -quit)
  if [ -n "$found" ]; then cp "$found" root/modules/; echo "$name" >>root/modules/order; fi
done
(cd root && find . -print0 | /bin/busybox cpio -0 -o -H newc 2>/dev/null | gzip -1) >initramfs.gz

# User namespaces need idmapped mounts, which that kernel does not support for memory file systems. So use a disk.
rm -f disk.img
truncate -s 4G disk.img
mkfs.ext4 -q -F disk.img

timeout "${OUTRIGGER_VM_SECONDS:-1800}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 \
  -nodefaults -no-reboot -display none -serial stdio -net none \
  -drive file=disk.img,if=virtio,format=raw,cache=unsafe -kernel "$kernel" -initrd initramfs.gz -append "console=ttyS0 quiet panic=-1 oops=panic" </dev/null | sed -u 's/\r$//' | tee serial.log
grep -q '^finished: 0 failed$' serial.log
