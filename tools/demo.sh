#!/usr/bin/env bash
# Shows one job from pairing to an accepted result: starts veyra-devplane and a
# daemon under the strict policy, hands the link over, waits, shows the
# evidence, and looks whether the host is as it was before. VEYRA_DEMO_KEEP=1
# keeps the directory with state and logs.
set -euo pipefail
cd "$(dirname "$0")/.."

began=$(date +%s%N)
say() { printf '%6.2fs  %s\n' "$(($(date +%s%N) - began))e-9" "$*"; }
as_root=()
[ "$(id -u)" = 0 ] || { as_root=(sudo) && sudo -v; }

# What a run may leave on the host, one fact a line.
traces() {
  sort /proc/mounts | sed 's/^/mount /'
  "${as_root[@]}" losetup -a 2>/dev/null | sort | sed 's/^/loop /'
  find /run/veyra-sandboxd 2>/dev/null | sort | sed 's/^/run /'
  find /sys/fs/cgroup -type d -name 'veyra-*' 2>/dev/null | sort | sed 's/^/cgroup /'
  python3 - <<'PY' | sort
import os, re
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\0")
    except OSError:
        continue
    if re.search(r"(^|/)(veyra-[a-z]+|runc|\.veyra/[a-z]+)$", words[0]):
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
all = [socket.socket() for _ in range(2)]
for s in all: s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in all])'
}

# Differences between two lists of traces. Other instances on this host come and
# go as they like: their lines are told, but only ours make the demo fail.
# A daemon that was ended while it started leaves the cleaning to its runner,
# which nobody waits for: hence the tries.
compare() {
  local changes ours try
  for try in 1 2 3 4 5 6; do
    traces >"$after"
    changes=$(diff "$before" "$after" | grep '^[<>]' || true)
    ours=$changes
    if [ -n "$changes" ] && others_run; then ours=$(grep -F -e "$tmp" -e "${instance:-no instance}" <<<"$changes" || true); fi
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
others_run() { cat "$before" "$after" | grep -F runner.lock | grep -qvF "${instance:-no instance}"; }

# end NAME PID: SIGTERM, then wait until it has ended.
end() {
  [ -n "$2" ] || return 0
  local status=0
  "${as_root[@]}" kill -TERM "$2" 2>/dev/null || true
  wait "$2" || status=$?
  say "$1 has ended with status $status"
}

clean_up() {
  local code=$?
  set +e
  trap '' INT TERM # what is left to do is quick, and a second ^C would leave it
  trap - EXIT
  end veyra-sandboxd "$daemon"
  end veyra-devplane "$devplane"
  [ -z "$follower" ] || wait "$follower" || true
  if [ "$code" != 0 ] && [ -s "$tmp/daemon.log" ]; then
    echo "demo: the daemon's last words:" >&2
    tail -n 20 "$tmp/daemon.log" >&2
  fi
  compare || code=1
  if [ -n "${VEYRA_DEMO_KEEP:-}" ]; then say "kept $tmp"; else "${as_root[@]}" rm -rf "$tmp"; fi
  rm -f "$before" "$after"
  say "done, exit status $code"
  exit "$code"
}

daemon='' devplane='' follower='' instance=''
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
bin/veyra-devplane serve --dir "$tmp/repositories" --json >"$tmp/events" 2>"$tmp/devplane.err" &
devplane=$!
until_line "$tmp/devplane.log" '"listening"' "$devplane" || { devplane=''; cat "$tmp/devplane.err" >&2; exit 1; }
origin=$(sed -n '1s/.*"control_plane":"\([^"]*\)".*/\1/p' "$tmp/devplane.log")
say "veyra-devplane serves control plane, git and model at $origin"

read -r port admin < <(free_ports)
settings=(
  VEYRA_CONTROL_PLANE="$origin" VEYRA_GIT_ORIGINS="$origin" GITHUB_API_URL="$origin/api/v3"
  AI_BASE_URL="$origin/v1" AI_MODEL=scripted AI_API_KEY=not-a-real-key AI_PROVIDER=veyra-devplane
  VEYRA_HEARTBEAT_SECONDS=2 VEYRA_TLS_MODE=off VEYRA_ADMIN_ADDR="127.0.0.1:$admin"
  RUNTIME_BIND_HOST=127.0.0.1 RUNTIME_PORT="$port" RUNTIME_PUBLIC_HOST=127.0.0.1
)
sandboxd() { exec "${as_root[@]}" env "${settings[@]}" bin/veyra-sandboxd "$@"; }

# start POLICY: 0 once the daemon serves, else its exit status.
start() {
  sandboxd --policy "$1" --state-dir "$tmp/state" 2>"$tmp/daemon.log" &
  daemon=$!
  until_line "$tmp/daemon.log" '"serving"' "$daemon" && return 0
  local status=0
  wait "$daemon" || status=$?
  daemon=''
  return "$status"
}

policy=strict status=0
start $policy || status=$?
if [ "$status" = 4 ]; then
  say "this host can't enforce strict: $(tail -n 1 "$tmp/daemon.log")"
  (sandboxd doctor --policy strict) 2>/dev/null | grep '^missing' || true
  policy=standard status=0
  start $policy || status=$?
fi
[ "$status" = 0 ] || { say "the daemon did not start under $policy (status $status): see veyra-sandboxd doctor"; exit 1; }
instance=$(sed -n 's/.*"serving","instance":"\([0-9a-f]*\)".*/\1/p' "$tmp/daemon.log")
say "veyra-sandboxd serves under the policy $policy, instance $instance"

link=$(sandboxd link --state-dir "$tmp/state")
say "link: ${link%/*}/…"
http POST "$origin/devplane/link" "{\"link\": \"$link\"}" >/dev/null
say "the control plane has redeemed the link"
http POST "$origin/devplane/jobs" "${VEYRA_DEMO_JOB:-}" >/dev/null
http GET "$origin/devplane/wait?for=qualified&timeout=1m" >/dev/null || { say "the qualification did not pass"; exit 1; }
say "paired, beating, and qualified"

accepted=0
http GET "$origin/devplane/wait?for=accepted&timeout=3m" >"$tmp/state.json" || accepted=$?
[ "$accepted" = 0 ] || { say "no result was accepted"; exit 1; }
say "the worker's result is accepted"

echo; echo "The signed evidence:"
python3 - "$tmp/state.json" "$tmp/daemon.log" <<'PY'
import datetime, json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
def short(value):
    return value if not isinstance(value, str) or len(value) < 400 else value[:180] + " […] " + value[-180:]
print(json.dumps({k: short(v) for k, v in job["evidence"].items()}, indent=2, ensure_ascii=False))
print("evidence_hash", job["evidence_hash"])
print("signature    ", job["signature"])
print("\nFrom lease to accepted:")
def when(line): return datetime.datetime.fromisoformat(line["time"][:26].rstrip("Z"))
lines = [l for l in map(json.loads, open(sys.argv[2])) if l.get("assignment") == job["assignment_id"]]
steps = []
for line in lines:
    name = line.get("phase") or {"accepted": "ACCEPTED_TASK", "delivered": "DELIVERED"}.get(line["msg"])
    if name and (not steps or steps[-1][0] != name):
        steps.append((name, when(line)))
for (name, begin), (_, end) in zip(steps, steps[1:]):
    print(f"  {name:28}{(end - begin).total_seconds():7.2f} s")
print(f"  {'in all':28}{(steps[-1][1] - steps[0][1]).total_seconds():7.2f} s")
PY
echo
