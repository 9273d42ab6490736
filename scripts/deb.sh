#!/usr/bin/env bash
# Creates a Debian package: scripts/deb.sh BINARY MACHINE DIRECTORY [GENERATOR].
# GENERATOR is an outrigger binary that runs on this machine (default: BINARY). It writes the manual pages, the
# completions and the systemd unit. The same binary always gives the same package.
set -euo pipefail
binary=$1 machine=$2 directory=$3 generator=$(realpath "${4:-$1}")
here=$(cd "$(dirname "$0")/.." && pwd)
case $machine in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "no package for $machine: x86_64 or aarch64" >&2; exit 2 ;;
esac
version=$("$here/scripts/version.sh")
maintainer="The Outrigger authors <maintainers@outrigger.dev>"
: "${SOURCE_DATE_EPOCH:=$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root share=$work/root/usr/share
mkdir -p "$root/DEBIAN" "$root/usr/lib/systemd/system" "$root/etc/outrigger/pods" "$share/doc/outrigger" \
  "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
install -D -m 0755 "$binary" "$root/usr/bin/outrigger"

# Clear the environment, so that it does not influence the generated files.
outrigger() { env -i PATH=/usr/bin:/bin "$generator" "$@"; }
outrigger man --dir "$share/man/man1"
outrigger completions bash > "$share/bash-completion/completions/outrigger"
outrigger completions zsh > "$share/zsh/vendor-completions/_outrigger"
outrigger completions fish > "$share/fish/vendor_completions.d/outrigger.fish"
outrigger node --systemd-unit --manifests /etc/outrigger/pods |
  sed 's|^ExecStart=.* node |ExecStart=/usr/bin/outrigger node |' > "$root/usr/lib/systemd/system/outrigger.service"

cp "$here/CHANGELOG.md" "$share/doc/outrigger"
cat > "$share/doc/outrigger/changelog" <<CHANGELOG
outrigger ($version) unstable; urgency=medium

  * See CHANGELOG.md.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
gzip -9 -n "$share/doc/outrigger"/{CHANGELOG.md,changelog} "$share/man/man1"/*.1
cat > "$share/doc/outrigger/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: outrigger
Source: https://github.com/outrigger-dev/outrigger

Files: *
Copyright: 2026 The Outrigger authors
License: Apache-2.0
 On Debian systems the full text of the licence is in /usr/share/common-licenses/Apache-2.0.
COPYRIGHT

cat > "$root/DEBIAN/control" <<CONTROL
Package: outrigger
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Section: admin
Priority: optional
Homepage: https://github.com/outrigger-dev/outrigger
Recommends: uidmap, passt | slirp4netns
Suggests: containerd
Description: runs pods whose containers start, run and stop in the right order
 Outrigger runs Kubernetes pods on one machine, without a cluster: sidecars
 start first and stop last, and never keep a finished Job alive.
 .
 The service outrigger.service runs the manifests in /etc/outrigger/pods. It is
 not enabled when the package is installed.
CONTROL
# Pods keep running while the package is updated, because the new node adopts them.
cat > "$root/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ -n "$2" ]; then systemctl try-restart outrigger.service; fi
fi
SCRIPT
# Stop the pods before the removal, because this needs the program.
cat > "$root/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  if systemctl is-active --quiet outrigger.service; then outrigger stop --all --state-dir /var/lib/outrigger || true; fi
  systemctl disable --now --quiet outrigger.service || true
fi
SCRIPT
cat > "$root/DEBIAN/postrm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
SCRIPT
chmod 0755 "$root/DEBIAN"/{postinst,prerm,postrm}
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"

mkdir -p "$directory"
package=$directory/outrigger_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
