#!/usr/bin/env bash
# Installs what the tests use and the machine lacks: a static busybox for the containers' root file system, a registry
# and skopeo for the image tests, containerd and runc for the tests of the CRI runtime (they start their own).
set -euo pipefail
packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need gcc gcc
need docker-registry docker-registry
need skopeo skopeo
need openssl openssl
need containerd containerd
need runc runc
if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then packages+=(busybox-static); fi
if [ "${#packages[@]}" -gt 0 ]; then
  echo "installing ${packages[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
