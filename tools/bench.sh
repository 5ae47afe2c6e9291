#!/usr/bin/env bash
# Measures what the design is judged by, beside the peers that this machine has,
# and prints figures with their bounds. Peers run in the same minute on the same
# work, since only ratios mean something on a busy machine.
#   BENCHTIME  how often each benchmark runs (default 20x)
#   BENCH_JOB=no leaves the whole job out
# Ends 0 when everything could be measured, whatever the figures say.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
times=${BENCHTIME:-20x}
mkdir -p build
out=build/bench.txt
: >"$out"
failed=0

# benchmark PACKAGE PATTERN TIMES: runs it and keeps its lines.
benchmark() {
  echo "bench: $2 in $1, $3" >&2
  go test -count=1 -run '^$' -bench "^($2)\$" -benchtime "$3" "$1" >build/bench.part 2>&1 || { cat build/bench.part >&2; failed=1; }
  cat build/bench.part >>"$out"
}

# metric BENCHMARK UNIT: the figure that a benchmark reported, or nothing.
metric() {
  awk -v name="$1" -v unit="$2" '$1 ~ "^"name"(-[0-9]+)?$" {for (i = 3; i < NF; i++) if ($(i+1) == unit) print $i}' "$out" | tail -n 1
}

ratio() { [ -n "$1" ] && [ -n "$2" ] && awk -v a="$1" -v b="$2" 'BEGIN {if (b > 0) printf "%.3f", a / b}'; }

# row WHAT MEASURED UNIT BOUND: says "over" where a bound does not hold.
row() {
  local verdict=' '
  if [ -z "$2" ]; then
    printf '%-58s %12s   %s\n' "$1" "not measured" "${4:+bound $4 $3}"
    return
  fi
  [ -n "$4" ] && verdict=$(awk -v a="$2" -v b="$4" 'BEGIN {print (a <= b) ? "ok" : "over"}')
  printf '%-58s %9.3f %-7s%s  %s\n' "$1" "$2" "$3" "${4:+bound $4}" "$verdict"
}

# The whole job, from the lease to the accepted result, under strict, by step.
with_job() {
  [ "${BENCH_JOB:-}" != no ] || return 0
  benchmark ./cmd/veyra-sandboxd BenchmarkJob "$times"
  steps=$(steps_of_job)
  benchmark ./cmd/veyra-sandboxd BenchmarkJobGuest "$times"
  guest_steps=$(steps_of_job)
}
steps='' guest_steps=''

steps_of_job() { sed -n '/^step  /,/^lease to accepted/p' build/bench.part; }

# by_step RUNTIME STEPS
by_step() {
  [ -z "$2" ] || printf '\nThe small Python job on %s, by step; steps overlap, "begins" is the median time after the lease:\n%s\n' "$1" "$2"
}

# Resident memory of an idle daemon that is not paired, in MB.
supervisor_mb='' runner_mb=''
with_daemon() {
  local state daemon pid i
  state=$(mktemp -d)
  echo "bench: an idle daemon" >&2
  env RUNTIME_BIND_HOST=127.0.0.1 RUNTIME_PORT=0 VEYRA_ADMIN_ADDR=127.0.0.1:0 VEYRA_TLS_MODE=off AI_HEALTHCHECK_MODE=mock \
    VEYRA_SANDBOX_RUNTIME=runc \
    bin/veyra-sandboxd --state-dir "$state" 2>build/bench.daemon &
  daemon=$!
  for ((i = 0; i < 300; i++)); do
    grep -q '"serving"' build/bench.daemon && break
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  sleep 3
  supervisor_mb=$(resident "$daemon")
  for pid in $(cat "/proc/$daemon/task"/*/children 2>/dev/null); do
    grep -qa __runner "/proc/$pid/cmdline" && runner_mb=$(resident "$pid")
  done
  kill -TERM "$daemon" && wait "$daemon" || { tail -n 5 build/bench.daemon >&2; failed=1; }
  rm -rf "$state"
}
resident() { awk '$1 == "VmRSS:" {printf "%.1f", $2 / 1024}' "/proc/$1/status" 2>/dev/null; }

benchmark ./sandbox/oci 'BenchmarkStart|BenchmarkCommand|BenchmarkStartGuest|BenchmarkCommandGuest' "$times"
benchmark ./sandbox/oci BenchmarkStartBesideEngine "$times"
benchmark ./sandbox/oci BenchmarkCollect "$times"
benchmark ./gitops/worker 'BenchmarkBaseLayer' 1x
benchmark ./gitops/worker 'BenchmarkCommit' "$times"
benchmark ./sandbox/docker BenchmarkEngine "$times"
with_daemon
with_job

docker_run=$(metric BenchmarkStartBesideEngine ms/docker-run) docker_exec=$(metric BenchmarkEngine ms/docker-exec)
start=$(metric BenchmarkStart ms/start) command=$(metric BenchmarkCommand ms/command)
echo
echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), $times"
row "sandbox start to first command's exit" "$start" ms ""
row "  beside bare runc ($(metric BenchmarkStart ms/bare) ms)" "$(metric BenchmarkStart x-bare)" x 2.0
row "  beside docker run${docker_run:+ ($docker_run ms)}" "$(metric BenchmarkStartBesideEngine x-docker-run)" x 0.2
row "command in a live sandbox" "$command" ms 3
row "  beside docker exec${docker_exec:+ ($docker_exec ms)}" "$(ratio "$command" "$docker_exec")" x 0.05
row "sandbox start to first command's exit, docker backend" "$(metric BenchmarkEngine ms/start)" ms ""
row "command in a live sandbox, docker backend" "$(metric BenchmarkEngine ms/command)" ms 3
row "sandbox start to first command's exit, on runsc" "$(metric BenchmarkStartGuest ms/start)" ms ""
row "  beside bare runsc ($(metric BenchmarkStartGuest ms/bare) ms)" "$(metric BenchmarkStartGuest x-bare)" x 2.0
row "command in a live sandbox, on runsc" "$(metric BenchmarkCommandGuest ms/command)" ms ""
row "lease to accepted result, small Python job, scripted model" "$(metric BenchmarkJob ms/job)" ms ""
row "  beside its git and test commands alone, on the bare host ($(metric BenchmarkJob ms/bare) ms)" "$(ratio "$(metric BenchmarkJob ms/job)" "$(metric BenchmarkJob ms/bare)")" x ""
row "  on runsc ($(metric BenchmarkJobGuest ms/job) ms) beside runc" "$(ratio "$(metric BenchmarkJobGuest ms/job)" "$(metric BenchmarkJob ms/job)")" x 3.0
row "collect 3 changed files of 100,000" "$(metric BenchmarkCollect ms/collect)" ms 50
row "base layer of 13,000 files, CPU beside git clone --depth 1" "$(metric BenchmarkBaseLayer ratio)" x 2
row "commit and pack of 3 files of 13,000, CPU beside git" "$(metric BenchmarkCommit ratio)" x 0.5
row "resident memory, supervisor idle" "$supervisor_mb" MB 60
row "resident memory, runner idle" "$runner_mb" MB 40
by_step runc "$steps"
by_step runsc "$guest_steps"
cat <<'TEXT'

Not measured by now:
  the reference runtime on the same job (the bound of the row "lease to accepted")
  peak memory of the base layer; the CPU of the push request
  heartbeat interval error under load; resident memory with eight jobs
  left-overs after 1,000 jobs; kill -9 at every journal step in every role
TEXT
exit $failed
