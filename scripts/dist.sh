#!/usr/bin/env bash
# Makes what a release consists of in target/dist: for each machine of MACHINES ("x86_64 aarch64" if not given) an archive
# with the static binary, its manual pages and completions, a Debian package and an SBOM; and SHA256SUMS of all.
# scripts/static.sh says what another machine than this one needs.
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
# Manual pages, completions and the systemd unit are the same for all machines: the binary of this one writes them.
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
