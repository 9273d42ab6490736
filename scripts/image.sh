#!/usr/bin/env bash
# Builds an OCI image of the static binary, without docker: scripts/image.sh [ARCHIVE].
# The image contains only the binary. `outrigger operator install` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=${1:-target/outrigger-image.tar}
machine=$(uname -m)
case $machine in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "no image for $machine" >&2; exit 1 ;;
esac
binary=$(scripts/static.sh "$machine")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/bin" "$work/oci/blobs/sha256"
install -m 0755 "$binary" "$work/root/bin/outrigger"
# The same binary always gives the same image.
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/root" -cf "$work/layer.tar" bin
digest() { sha256sum "$1" | cut -d' ' -f1; }
size() { stat -c %s "$1"; }
blob() { local name; name=$(digest "$1"); mv "$1" "$work/oci/blobs/sha256/$name"; echo "$name"; }
layer_size=$(size "$work/layer.tar"); layer=$(blob "$work/layer.tar")
printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/bin/outrigger"],"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$architecture" "$layer" > "$work/config"
config_size=$(size "$work/config"); config=$(blob "$work/config")
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' "$config" "$config_size" "$layer" "$layer_size" > "$work/manifest"
manifest_size=$(size "$work/manifest"); manifest=$(blob "$work/manifest")
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"latest"}}]}' "$manifest" "$manifest_size" > "$work/oci/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' > "$work/oci/oci-layout"
mkdir -p "$(dirname "$archive")"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/oci" -cf "$archive" .
echo "$archive: outrigger for $architecture, $(( layer_size >> 20 )) MiB"
