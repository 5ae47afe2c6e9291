#!/usr/bin/env bash
# Installs what building and testing need and what is missing here: Debian
# packages and the OCI runtimes in bin/. Quiet when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
runc_version=$1
runsc_version=$2

fail() { echo "setup: $*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Command or file that shows the package is there : package.
wanted=(
  mmdebstrap:mmdebstrap git:git python3:python3 mkfs.ext4:e2fsprogs losetup:util-linux
  pkg-config:pkg-config gcc:gcc crun:crun newuidmap:uidmap setpriv:util-linux
  pgrep:procps openssl:openssl perl:perl-base
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
  command -v apt-get >/dev/null || fail "install these packages, then try again: ${missing[*]}"
  echo "setup: installing ${missing[*]}"
  as_root apt-get update -qq || fail "the list of Debian's packages can't be fetched; look at the network and at /etc/apt, then try again"
  # A fresh machine may be installing by itself for a while.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "these packages can't be installed; look at the network and at /etc/apt, then try again: ${missing[*]}"
fi

# The daemon runs a runtime as root, so it takes none that somebody else can
# replace.
owned_by_root() { [ "$(id -u)" = 0 ] || as_root chown root:root "$1"; }

# is FILE LINE: the program says this in the first line of its version.
is() {
  local said
  said=$("$1" --version 2>/dev/null) && [ "${said%%$'\n'*}" = "$2" ]
}

cannot_build() { fail "$1 can't be built; if a module can't be downloaded, look at the network and at 'go env GOPROXY', then try again"; }

mkdir -p bin
if ! is bin/runc "runc version ${runc_version#v}"; then
  echo "setup: building runc $runc_version"
  GOBIN=$PWD/bin GOFLAGS=-buildvcs=false CGO_ENABLED=1 go install -tags seccomp "github.com/opencontainers/runc@$runc_version" ||
    cannot_build "runc $runc_version"
  owned_by_root bin/runc
fi

# gVisor as a Go module has no version in its text, so it is told: what is
# probed, logged and compared is then what was built.
if ! is bin/runsc "runsc version $runsc_version"; then
  echo "setup: building runsc $runsc_version"
  GOBIN=$PWD/bin GOFLAGS='-buildvcs=false -trimpath' CGO_ENABLED=0 go install \
    -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$runsc_version" "gvisor.dev/gvisor/runsc@$runsc_version" ||
    cannot_build "runsc $runsc_version"
  owned_by_root bin/runsc
fi
