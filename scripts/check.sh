#!/usr/bin/env bash
# Runs the tests that need neither root nor packages. It leaves out tests with `as_root` in their path, the network tests,
# which create network namespaces, and the test programs below. A new test is included unless it is one of these.
set -euo pipefail
cd "$(dirname "$0")/.."
# All tests in these programs need root or packages of `make deps`.
left_out='browser|conformance.*|containers|cri|cri_faults|differential|everyday|failures|images|node|oci|operator|package|rootless'
programs=$(cargo metadata --no-deps --locked --format-version 1 |
  grep -oE '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' | cut -d'"' -f12 | sort -u)
choice=(--lib --bins)
for program in $programs; do
  [[ $program =~ ^($left_out)$ ]] || choice+=(--test "$program")
done
exec scripts/test.sh "${choice[@]}" -- --skip as_root --skip network::tests::
