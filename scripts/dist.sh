#!/usr/bin/env bash
# Builds a release in target/dist. For each machine of MACHINES (default: "x86_64 aarch64"), this is an archive with the
# static binary, its manual pages and completions, a Debian package and an SBOM. SHA256SUMS has the checksums of all files.
# scripts/static.sh describes the requirements for machines other than this one.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(scripts/version.sh)
dist=target/dist
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$dist"
mkdir -p "$dist"
# The binary for this machine writes the manual pages, completions and systemd unit, which are the same for all machines.
generator=$(scripts/static.sh)
for machine in ${MACHINES:-x86_64 aarch64}; do
  binary=$(scripts/static.sh "$machine")
  if readelf -lW "$binary" | grep -q INTERP; then
    echo "$binary is not static" >&2
    exit 1
  fi
  package=$(scripts/deb.sh "$binary" "$machine" "$dist" "$generator")
  name=outrigger-$version-linux-$machine
  mkdir -p "$work/$name"
  dpkg-deb -x "$package" "$work/root"
  cp -r "$work/root/usr/bin/outrigger" "$work/root/usr/share/man" LICENSE README.md CHANGELOG.md "$work/$name"
  install -D -m 0644 "$work/root/usr/share/bash-completion/completions/outrigger" "$work/$name/completions/outrigger.bash"
  install -D -m 0644 "$work/root/usr/share/zsh/vendor-completions/_outrigger" "$work/$name/completions/_outrigger"
  install -D -m 0644 "$work/root/usr/share/fish/vendor_completions.d/outrigger.fish" "$work/$name/completions/outrigger.fish"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$work" -c "$name" | gzip -9 -n > "$dist/$name.tar.gz"
  scripts/sbom.py "$machine" "$version" > "$dist/$name.cdx.json"
  rm -rf "$work/root"
done
(cd "$dist" && sha256sum ./*.* | sed 's| \./| |' > SHA256SUMS)
ls -sh "$dist"
