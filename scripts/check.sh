#!/usr/bin/env bash
# Runs the tests that need neither root nor packages: all but those that have `as_root` in their path, those of the
# network, which make their own network namespaces, and the programs below. A new test belongs to them unless it says
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
# These programs need root or packages of `make deps` as a whole.
left_out='browser|conformance.*|containers|cri|cri_faults|differential|everyday|failures|images|node|oci|operator|package|rootless'
programs=$(cargo metadata --no-deps --locked --format-version 1 |
  grep -oE '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' | cut -d'"' -f12 | sort -u)
choice=(--lib --bins)
for program in $programs; do
  [[ $program =~ ^($left_out)$ ]] || choice+=(--test "$program")
done
exec scripts/test.sh "${choice[@]}" -- --skip as_root --skip network::tests::
