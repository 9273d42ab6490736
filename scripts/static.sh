#!/usr/bin/env bash
# Builds the static binary for a machine (x86_64 or aarch64) and prints its path: scripts/static.sh [MACHINE].
# OUTRIGGER_BINARY_x86_64 and OUTRIGGER_BINARY_aarch64 are paths of existing binaries to use instead.
# A build for another machine needs `rustup target add MACHINE-unknown-linux-gnu` and, on Debian, the packages
# gcc-MACHINE-linux-gnu and libc6-dev-ARCHITECTURE-cross.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=${1:-$(uname -m)}
case $machine in x86_64 | aarch64) ;; *) echo "no binary for $machine: x86_64 or aarch64" >&2; exit 2 ;; esac
given=OUTRIGGER_BINARY_$machine
if [ -n "${!given:-}" ]; then
  echo "${!given}"
  exit
fi
target=$machine-unknown-linux-gnu
if [ "$machine" != "$(uname -m)" ]; then
  name=${target//-/_}
  export "CC_$name=$machine-linux-gnu-gcc" "CARGO_TARGET_${name^^}_LINKER=$machine-linux-gnu-gcc"
  command -v "$machine-linux-gnu-gcc" >/dev/null || { echo "no $machine-linux-gnu-gcc: install gcc-${machine/_/-}-linux-gnu" >&2; exit 1; }
fi
[ -d "$(rustc --print target-libdir --target "$target")" ] || { echo "no standard library for $machine: rustup target add $target" >&2; exit 1; }
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" cargo build --locked --release -p outrigger --target "$target" >&2
echo "target/$target/release/outrigger"
