#!/usr/bin/env bash
# Runs every test once and shows the runners' summaries. Under CI the list of
# tests that say "not applicable" must equal tools/not-applicable.txt.
set -uo pipefail # without -e: the status of a pipeline is read from PIPESTATUS
cd "$(dirname "$0")/.."
mkdir -p build
log=build/test.log
: >"$log"

show() { grep --line-buffered -E '^(ok|FAIL|---? FAIL|panic:|\?)|^\s+--- FAIL|_test.go:[0-9]+: ' | grep --line-buffered -v -E '^\?.*no test files|not applicable: ' ; }

# Packages that look at mounts, loops and cgroups of the whole host run alone.
alone=$(go list ./sandbox/... ./jobs ./cmd/... ./internal/confine/... ./signer/... ./supervisor)
others=$(go list ./... | grep -vxF "$alone")

echo "test: go vet"
go vet ./... || exit 1
status=0
echo "test: packages that share the host"
# shellcheck disable=SC2086
go test -count=1 -v -timeout 15m $others 2>&1 | tee -a "$log" | show
[ "${PIPESTATUS[0]}" = 0 ] || status=1
echo "test: packages that want the host for themselves"
# shellcheck disable=SC2086
go test -count=1 -v -p 1 -timeout 20m $alone 2>&1 | tee -a "$log" | show
[ "${PIPESTATUS[0]}" = 0 ] || status=1

echo "test: the tools' own tests"
(cd tools && go vet ./... && go test -count=1 ./...) || status=1
echo "test: benchmarks, once each"
go test -run '^$' -bench . -benchtime 1x ./sandbox/oci ./sandbox/runner ./policies ./internal/redact 2>&1 |
  tee -a "$log" | grep -E '^(Benchmark|FAIL|ok)|not applicable: |_test.go:[0-9]+: '
[ "${PIPESTATUS[0]}" = 0 ] || status=1

ran=$(grep -cE '^\s*--- PASS' "$log")
failed=$(grep -cE '^\s*--- FAIL' "$log")
skipped=$(grep -cE '^\s*--- SKIP' "$log")
[ "$failed" = 0 ] && [ "$ran" != 0 ] || status=1
grep -oE 'not applicable: .*' "$log" | sort -u >build/not-applicable.txt
if [ -s build/not-applicable.txt ]; then
  echo "test: not run here:"; sed 's/^/  /' build/not-applicable.txt
fi
if [ "${CI:-}" = true ] && ! diff -u tools/not-applicable.txt build/not-applicable.txt; then
  echo "test: the tests that did not run differ from tools/not-applicable.txt" >&2
  status=1
fi
echo "$ran passed, $failed failed, $skipped skipped"
exit $status
