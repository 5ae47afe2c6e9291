#!/usr/bin/env bash
# Runs every fuzz target in turn for FUZZTIME (default 20s). The arguments, if
# any, are parts of target names: `tools/fuzz.sh Index Tree`.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
fuzztime=${FUZZTIME:-20s}
wanted=$(IFS='|'; echo "${*:-.}")

targets=$(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^\./?(.*)/[^/]*:[0-9]+:func (.*)$|./\1 \2|' | sort | grep -E " .*($wanted)")
failed=()
while read -r dir name; do
  echo "fuzz: $dir $name for $fuzztime"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" "$dir" || failed+=("$dir $name")
done <<<"$targets"
echo "fuzz: $(wc -l <<<"$targets") targets, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ] || { printf '  %s\n' "${failed[@]}" >&2; exit 1; }
