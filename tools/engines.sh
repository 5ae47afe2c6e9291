#!/usr/bin/env bash
# Puts the two Docker Engines that tests start into bin/engines, where they are
# missing: Debian's package in debian/, the current release in current/. Packages
# are unpacked, not installed: no service starts, and an engine that the machine
# has already stays as it is. Quiet when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin/engines
# What is done says so by a file that names its inputs.
stamp() { cat tools/engines.sh tools/engines/go.mod | sha256sum | cut -c1-16; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
done_before() { [ "$(cat "$1/.made" 2>/dev/null)" = "$(stamp)" ]; }

debian() {
  local to=$PWD/bin/engines/debian work
  command -v apt-get >/dev/null || { echo "engines: this machine has no Debian packages; tests on Debian's engine are left out" >&2; return; }
  echo "engines: unpacking Debian's docker.io"
  work=$(mktemp -d)
  chmod 0755 "$work"
  (
    cd "$work"
    packages="docker.io containerd libdevmapper1.02.1"
    # shellcheck disable=SC2086
    apt-get download -qq $packages >/dev/null 2>&1 || { as_root apt-get update -qq && apt-get download -qq $packages >/dev/null 2>&1; }
    for package in *.deb; do dpkg-deb -x "$package" root; done
  )
  rm -rf "$to"
  mkdir -p "$to"
  for file in usr/sbin/dockerd usr/sbin/docker-proxy usr/bin/docker usr/bin/containerd usr/bin/containerd-shim-runc-v2; do
    cp "$work/root/$file" "$to/"
  done
  find "$work/root" -name 'libdevmapper.so*' -exec cp {} "$to/" \;
  rm -rf "$work"
  stamp >"$to/.made"
}

current() {
  local to=$PWD/bin/engines/current program
  echo "engines: building the current Docker Engine (some minutes)"
  mkdir -p "$to"
  for program in moby/moby/v2/cmd/dockerd containerd/containerd/v2/cmd/containerd containerd/containerd/v2/cmd/containerd-shim-runc-v2; do
    (cd tools/engines && CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath" go build -ldflags "-s -w" -o "$to/" "github.com/$program")
  done
  stamp >"$to/.made"
}

done_before bin/engines/debian || debian
done_before bin/engines/current || current
