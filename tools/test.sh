#!/usr/bin/env bash
# Runs every test once and shows the runners' summaries. Under CI the list of
# tests that say "not applicable" must equal tools/not-applicable.txt.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build bin/tools
reasons=build/not-applicable.txt
: >"$reasons.all"

(cd tools && go build -o ../bin/tools/testsummary ./testsummary) || exit 1

# Packages that look at mounts, loops and cgroups of the whole host, or fill it,
# run alone.
alone=$(go list ./sandbox/... ./jobs ./cmd/... ./internal/confine/... ./signer/... ./supervisor)
others=$(go list ./... | grep -vxF "$alone")
status=0
timeout=40m # a hang ends here; a slow machine should not
if [ -n "${VEYRA_SOAK:-}" ]; then
  timeout=90m
  export VEYRA_SOAK_TABLE=$PWD/build/soak.txt
  rm -f "$VEYRA_SOAK_TABLE"
fi

# run WORDS PACKAGES…: what it says ends with the runner's summary.
run() {
  local parallel=$1
  shift
  go test -json -count=1 -p "$parallel" -timeout "$timeout" "$@" 2>&1 | bin/tools/testsummary -reasons "$reasons.all"
  local codes=("${PIPESTATUS[@]}")
  [ "${codes[0]}" = 0 ] && [ "${codes[1]}" = 0 ] || status=1
}

echo "test: go vet"
go vet ./... || exit 1
echo "test: packages that share the host"
# shellcheck disable=SC2086
run 2 $others
echo "test: packages that want the host for themselves"
# shellcheck disable=SC2086
run 1 $alone

echo "test: the tools' own tests"
(cd tools && go vet ./... && go test -count=1 ./...) || status=1
echo "test: benchmarks, once each"
go test -run '^$' -bench . -benchtime 1x -timeout "$timeout" ./sandbox/oci ./sandbox/docker ./sandbox/runner ./policies ./internal/redact ./cmd/veyra-sandboxd 2>&1 |
  grep -E '^(Benchmark|FAIL|ok)|not applicable: |_test.go:[0-9]+: '
[ "${PIPESTATUS[0]}" = 0 ] || status=1

sort -u "$reasons.all" >"$reasons"
if [ -s "$reasons" ]; then
  echo "test: not run here:"; sed 's/^/  /' "$reasons"
fi
if [ "${CI:-}" = true ] && ! diff -u tools/not-applicable.txt "$reasons"; then
  echo "test: the tests that did not run differ from tools/not-applicable.txt" >&2
  status=1
fi
if [ -s "${VEYRA_SOAK_TABLE:-/nonexistent}" ]; then
  echo "test: what the mixed jobs took of the host, first and last"; sed 's/^/  /' "$VEYRA_SOAK_TABLE"
fi
[ $status = 0 ] && echo "test: everything passed" || echo "test: FAILED"
exit $status
