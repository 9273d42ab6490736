#!/usr/bin/env bash
# Runs all tests, or those selected by the given arguments of `cargo test`. The last line of output counts them.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --locked --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
awk '/^test result:/ { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i
                                                  if ($(i+1) ~ /^ignored/) s += $i; if ($(i+1) ~ /^filtered/) s += $i } }
     END { printf "\n%d passed, %d failed, %d skipped\n", p, f, s }' "$log"
exit "$status"
