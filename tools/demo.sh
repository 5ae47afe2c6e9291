#!/usr/bin/env bash
# Shows one job from pairing to a verifier's verdict: starts veyra-devplane and
# two daemons under the strict policy, a worker and a verifier with state and
# ports of its own, hands their links over, waits, shows evidence and report, and
# looks whether the host is as it was before. Exits 0 only if the result was
# accepted and the verdict is APPROVED. VEYRA_DEMO_JOB is another job, or what is
# to differ from the sample, as in {"fail_criterion": 2}; VEYRA_DEMO_KEEP=1 keeps
# the directory with states and logs.
set -euo pipefail
cd "$(dirname "$0")/.."

began=$(date +%s%N)
say() { printf '%6.2fs  %s\n' "$(($(date +%s%N) - began))e-9" "$*"; }
as_root=()
[ "$(id -u)" = 0 ] || { as_root=(sudo) && sudo -v; }

# What a run may leave on the host, one fact a line.
traces() {
  sort /proc/mounts | sed 's/^/mount /'
  { "${as_root[@]}" losetup -a 2>/dev/null || true; } | sort | sed 's/^/loop /'
  { find /run/veyra-sandboxd 2>/dev/null || true; } | sort | sed 's/^/run /'
  { find /sys/fs/cgroup -type d -name 'veyra-*' 2>/dev/null || true; } | sort | sed 's/^/cgroup /'
  python3 - <<'PY' | sort
import os, re
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\0")
    except OSError:
        continue
    if re.search(r"(^|/)(veyra-[a-z]+|runc|runsc(-[a-z]+)?|\.veyra/[a-z]+)$", words[0]):
        print("process", pid, *words)
PY
}

# http METHOD URL [BODY]: the answer on stdout; 1 for any status but 2xx.
http() {
  python3 - "$@" <<'PY'
import sys, urllib.error, urllib.request
method, url, body = (sys.argv[1:] + [""])[:3]
request = urllib.request.Request(url, data=body.encode() if body else None, method=method)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    print(opener.open(request, timeout=600).read().decode(), end="")
except urllib.error.HTTPError as e:
    print(e.read().decode(), end="", file=sys.stderr)
    sys.exit(1)
except OSError as e:
    sys.exit(f"demo: {method} {url}: {e}")
PY
}

free_ports() {
  python3 -c 'import socket
all = [socket.socket() for _ in range(4)]
for s in all: s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in all])'
}

# Differences between two lists of traces. Other instances on this host come and
# go as they like: their lines are told, but only ours make the demo fail.
# A daemon that was ended while it started leaves the cleaning to its runner,
# which nobody waits for: hence the tries.
compare() {
  local changes ours try name own=(-e "$tmp")
  for name in "${!instance[@]}"; do own+=(-e "${instance[$name]}"); done
  for try in 1 2 3 4 5 6; do
    traces >"$after"
    changes=$(diff "$before" "$after" | grep '^[<>]' || true)
    ours=$changes
    if [ -n "$changes" ] && others_run; then ours=$(grep -F "${own[@]}" <<<"$changes" || true); fi
    [ -n "$ours" ] && [ "$try" -lt 6 ] || break
    sleep 0.5
  done
  if [ -n "$ours" ]; then
    say "the host is not as before:"
    echo "$ours"
    return 1
  fi
  say "as before: /proc/mounts, losetup -a, /run/veyra-sandboxd, cgroups and processes"
  [ -z "$changes" ] || say "(other instances on this host changed $(wc -l <<<"$changes") lines)"
}
others_run() { cat "$before" "$after" | grep -F runner.lock | grep -qvF "${own[@]}"; }

# end NAME…: SIGTERM to each that runs, then wait until they have ended.
end() {
  local name status
  for name in "$@"; do
    [ -z "${pid[$name]:-}" ] || "${as_root[@]}" kill -TERM "${pid[$name]}" 2>/dev/null || true
  done
  for name in "$@"; do
    [ -n "${pid[$name]:-}" ] || continue
    status=0
    wait "${pid[$name]}" || status=$?
    say "the $name has ended with status $status"
  done
}

clean_up() {
  local code=$? name
  set +e
  trap '' INT TERM # what is left to do is quick, and a second ^C would leave it
  trap - EXIT
  end worker verifier
  end devplane
  [ -z "$follower" ] || wait "$follower" || true
  for name in worker verifier; do
    [ "$code" != 0 ] && [ -s "$tmp/$name.log" ] || continue
    echo "demo: the $name's last words:" >&2
    tail -n 20 "$tmp/$name.log" >&2
  done
  compare || code=1
  if [ -n "${VEYRA_DEMO_KEEP:-}" ]; then say "kept $tmp"; else "${as_root[@]}" rm -rf "$tmp"; fi
  rm -f "$before" "$after"
  say "done, exit status $code"
  exit "$code"
}

follower=''
declare -A pid=() instance=() public=() admin=() # of devplane, worker and verifier
before=$(mktemp) after=$(mktemp)
traces >"$before"
tmp=$(mktemp -d /tmp/veyra-demo.XXXXXX)
trap clean_up EXIT
trap 'trap "" INT TERM; exit 130' INT TERM

# until_line FILE TEXT PID: waits until a line of FILE holds TEXT; 1 once PID is gone.
until_line() {
  until grep -q -- "$2" "$1" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || return 1
    sleep 0.05
  done
}

# What veyra-devplane tells is kept, and shown as it comes.
follow='
import json, sys, time
began, log = int(sys.argv[1]), open(sys.argv[2], "w", buffering=1)
for line in sys.stdin:
    log.write(line)
    event = json.loads(line)
    name, _ = event.pop("event"), event.pop("elapsed_ms")
    told = "  ".join(f"{k}={v}" for k, v in event.items() if name != "listening")
    print(f"{(time.time_ns() - began) / 1e9:6.2f}s    {name}  {told}".rstrip(), flush=True)
'
mkdir "$tmp/repositories"
mkfifo "$tmp/events"
python3 -c "$follow" "$began" "$tmp/devplane.log" <"$tmp/events" &
follower=$!
bin/veyra-devplane serve --verify --dir "$tmp/repositories" --json >"$tmp/events" 2>"$tmp/devplane.err" &
pid[devplane]=$!
until_line "$tmp/devplane.log" '"listening"' "${pid[devplane]}" || { pid[devplane]=''; cat "$tmp/devplane.err" >&2; exit 1; }
origin=$(sed -n '1s/.*"control_plane":"\([^"]*\)".*/\1/p' "$tmp/devplane.log")
say "veyra-devplane serves control plane, git and model at $origin"

read -r public[worker] admin[worker] public[verifier] admin[verifier] < <(free_ports)
settings=(
  VEYRA_CONTROL_PLANE="$origin" VEYRA_GIT_ORIGINS="$origin" GITHUB_API_URL="$origin/api/v3"
  AI_BASE_URL="$origin/v1" AI_MODEL=scripted AI_API_KEY=not-a-real-key AI_PROVIDER=veyra-devplane
  VEYRA_SANDBOX_RUNTIME="${VEYRA_SANDBOX_RUNTIME:-runc}" # auto would take the strongest, which is slower
  VEYRA_HEARTBEAT_SECONDS=2 VEYRA_TLS_MODE=off RUNTIME_BIND_HOST=127.0.0.1 RUNTIME_PUBLIC_HOST=127.0.0.1
)
# sandboxd NAME ARG…: becomes veyra-sandboxd with the settings of one of the two.
sandboxd() {
  exec "${as_root[@]}" env "${settings[@]}" VEYRA_RUNTIME_ROLE="${1^^}" RUNTIME_PORT="${public[$1]}" \
    VEYRA_ADMIN_ADDR="127.0.0.1:${admin[$1]}" bin/veyra-sandboxd "${@:2}" --state-dir "$tmp/$1"
}

# start NAME POLICY: 0 once the daemon serves, else its exit status.
start() {
  sandboxd "$1" --policy "$2" 2>"$tmp/$1.log" &
  pid[$1]=$!
  local status=0
  if ! until_line "$tmp/$1.log" '"serving"' "${pid[$1]}"; then
    wait "${pid[$1]}" || status=$?
    pid[$1]=''
    return "$status"
  fi
  instance[$1]=$(sed -n 's/.*"serving","instance":"\([0-9a-f]*\)".*/\1/p' "$tmp/$1.log")
  say "the $1 serves under the policy $2, instance ${instance[$1]}"
}

# pair NAME: hands a daemon's link to the control plane; sets agent to the id.
pair() {
  local link
  link=$(sandboxd "$1" link)
  agent=$(http POST "$origin/devplane/link" "{\"link\": \"$link\", \"role\": \"${1^^}\"}")
  agent=$(sed 's/.*"agent_id":"\([^"]*\)".*/\1/' <<<"$agent")
  say "the control plane has redeemed the $1's link ${link%/*}/…"
}

# reach QUERY: waits for what it names; the state is kept.
reach() { http GET "$origin/devplane/wait?$1" >"$tmp/state.json"; }

policy=strict status=0
start worker $policy || status=$?
if [ "$status" = 4 ]; then
  say "this host can't enforce strict: $(tail -n 1 "$tmp/worker.log")"
  (sandboxd worker doctor --policy strict) 2>/dev/null | grep '^missing' || true
  policy=standard status=0
  start worker $policy || status=$?
fi
[ "$status" = 0 ] || { say "the worker did not start under $policy (status $status): see veyra-sandboxd doctor"; exit 1; }
pair worker
worker=$agent
http POST "$origin/devplane/jobs" "${VEYRA_DEMO_JOB:-}" >/dev/null

# The verifier comes while the worker works.
start verifier $policy || { say "the verifier did not start under $policy (status $?)"; exit 1; }
pair verifier
reach "for=qualified&agent=$worker&timeout=1m" || { say "the qualification did not pass"; exit 1; }
say "the worker is paired, beating, and qualified"
reach "for=accepted&timeout=3m" || { say "no result was accepted"; exit 1; }
say "the worker's result is accepted"
reach "for=verified&timeout=1m" || { say "no verdict came"; exit 1; }

# show KIND LOG: what was signed for the first of the jobs or verifications, and
# the time of each step by its daemon's log.
show() {
  python3 - "$tmp/state.json" "$@" <<'PY'
import datetime, json, sys
done = json.load(open(sys.argv[1]))[sys.argv[2]][0]
lines = [json.loads(line) for line in open(sys.argv[3])]
signed = done.get("report") or done.get("evidence")
def short(value):
    return value if not isinstance(value, str) or len(value) < 400 else value[:180] + " […] " + value[-180:]
print(json.dumps({k: short(v) for k, v in signed.items()}, indent=2, ensure_ascii=False))
print("hash     ", done.get("report_hash") or done.get("evidence_hash"))
print("signature", done["signature"])
print("\nFrom lease to accepted:")
def when(line): return datetime.datetime.fromisoformat(line["time"][:26].rstrip("Z"))
own, steps = done.get("verification_id") or done.get("assignment_id"), []
for line in lines:
    name = line.get("phase") or {"accepted": "ACCEPTED_TASK", "sealed": "DELIVERING", "delivered": "DELIVERED"}.get(line["msg"])
    if name and line.get("assignment") == own and (not steps or steps[-1][0] != name):
        steps.append((name, when(line)))
for (name, begin), (_, end) in zip(steps, steps[1:]):
    print(f"  {name:28}{(end - begin).total_seconds():7.2f} s")
print(f"  {'in all':28}{(steps[-1][1] - steps[0][1]).total_seconds():7.2f} s")
PY
}
verdict=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verifications"][0]["verdict"])' "$tmp/state.json")
say "the verifier's verdict is $verdict"
echo; echo "The worker's signed evidence:"
show jobs "$tmp/worker.log"
echo; echo "The verifier's signed report:"
show verifications "$tmp/verifier.log"
echo
[ "$verdict" = APPROVED ] || { say "only APPROVED is a success"; exit 1; }
