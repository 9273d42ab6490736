#!/usr/bin/env bash
# Prints the version of a package of this commit, so that dpkg sorts versions correctly: 0.1.0 at the tag v0.1.0,
# 0.1.0~COMMITS.gHASH before it, 0.1.0+COMMITS.gHASH after it. Without git, it is the version in Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
if git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then
  hash=$(git rev-parse --short=8 HEAD)
  dirty=$(git diff --quiet HEAD || echo .dirty)
  if git merge-base --is-ancestor "v$version" HEAD 2>/dev/null; then
    after=$(git rev-list --count "v$version..HEAD")
    [ "$after$dirty" = 0 ] || version="$version+$after.g$hash$dirty"
  else
    version="$version~$(git rev-list --count HEAD).g$hash$dirty"
  fi
fi
echo "$version"
