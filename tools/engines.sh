#!/usr/bin/env bash
# Puts the two Docker Engines that tests start into bin/engines, where they are
# missing: Debian's package in debian/, the current release in current/. Packages
# are unpacked, not installed: no service starts, and an engine that the machine
# has already stays as it is. Quiet when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin/engines
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
fail() { echo "engines: $*" >&2; exit 1; }

# What is done says so by a file that names its inputs.
stamp() { cat "$@" | sha256sum | cut -c1-16; }
done_before() { [ "$(cat "bin/engines/$1/.made" 2>/dev/null)" = "$2" ]; }

# works DIRECTORY: its programs find what they are linked with.
works() {
  local program
  for program in dockerd containerd containerd-shim-runc-v2; do
    case $program in *shim*) set -- "$1" -v ;; *) set -- "$1" --version ;; esac
    LD_LIBRARY_PATH=$1 "$1/$program" "$2" >/dev/null || fail "$1/$program does not start on this machine"
  done
}

download() { apt-get download -qq "$@" >/dev/null 2>&1; }

debian() {
  local to=$PWD/bin/engines/debian work packages=(docker.io containerd libdevmapper1.02.1)
  command -v apt-get >/dev/null || { echo "engines: this machine has no Debian packages; tests on Debian's engine are left out" >&2; return; }
  echo "engines: unpacking Debian's docker.io"
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  chmod 0755 "$work"
  (
    cd "$work"
    download "${packages[@]}" || as_root apt-get update -qq ||
      fail "the list of Debian's packages can't be fetched; look at the network and at /etc/apt, then try again"
    # Newer releases have the client in a package of its own.
    [ -z "$(apt-cache show --no-all-versions docker-cli 2>/dev/null)" ] || packages+=(docker-cli)
    download "${packages[@]}" || fail "these packages can't be downloaded; look at the network and at /etc/apt, then try again: ${packages[*]}"
    for package in *.deb; do dpkg-deb -x "$package" root; done
  )
  rm -rf "$to"
  mkdir -p "$to"
  for file in usr/sbin/dockerd usr/bin/docker usr/bin/containerd usr/bin/containerd-shim-runc-v2; do
    cp "$work/root/$file" "$to/"
  done
  find "$work/root" -name 'libdevmapper.so*' -exec cp {} "$to/" \;
  works "$to"
  echo "$1" >"$to/.made"
}

current() {
  local to=$PWD/bin/engines/current program
  echo "engines: building the current Docker Engine (some minutes)"
  mkdir -p "$to"
  for program in moby/moby/v2/cmd/dockerd containerd/containerd/v2/cmd/containerd containerd/containerd/v2/cmd/containerd-shim-runc-v2; do
    (cd tools/engines && CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath" go build -ldflags "-s -w" -o "$to/" "github.com/$program") ||
      fail "${program##*/} can't be built; if a module can't be downloaded, look at the network and at 'go env GOPROXY', then try again"
  done
  works "$to"
  echo "$1" >"$to/.made"
}

inputs=$(stamp tools/engines.sh)
done_before debian "$inputs" || debian "$inputs"
inputs=$(stamp tools/engines/go.mod tools/engines/go.sum)
done_before current "$inputs" || current "$inputs"
