#!/usr/bin/env bash
# Installs what building and testing need and what is missing here: Debian
# packages and the OCI runtime in bin/. Quiet when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
runc_version=$1

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Command or file that shows the package is there : package.
wanted=(
  mmdebstrap:mmdebstrap git:git python3:python3 mkfs.ext4:e2fsprogs losetup:util-linux
  pkg-config:pkg-config gcc:gcc
  /usr/include/seccomp.h:libseccomp-dev
  /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
)
missing=()
for pair in "${wanted[@]}"; do
  what=${pair%%:*}
  case $what in
    /*) [ -e "$what" ] || missing+=("${pair##*:}") ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$what" >/dev/null || missing+=("${pair##*:}") ;;
  esac
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { echo "setup: install these packages, then try again: ${missing[*]}" >&2; exit 1; }
  echo "setup: installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! bin/runc --version 2>/dev/null | grep -q "spec:"; then
  echo "setup: building runc $runc_version"
  mkdir -p bin
  GOBIN=$PWD/bin GOFLAGS=-buildvcs=false CGO_ENABLED=1 go install -tags seccomp "github.com/opencontainers/runc@$runc_version"
  # The daemon runs it as root, so it takes none that somebody else can replace.
  [ "$(id -u)" = 0 ] || as_root chown root:root bin/runc
fi
