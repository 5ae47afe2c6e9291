#!/usr/bin/env bash
# vm.sh [minimal] [systemd]: runs chosen tests in a virtual machine with Debian's
# kernel and cgroups of version 2 only, which is what most machines have and what
# the one that builds may lack. The guest is made once and kept below build/vm;
# nothing is installed on this machine, and a guest's writes are thrown away.
# VEYRA_VM_ACCEL is the accelerator: kvm where the processor says that it can,
# else tcg (software, slow). VEYRA_VM_TESTS is another pattern for sandbox/oci,
# VEYRA_VM_TIMEOUT what one guest gets, in seconds (1800).
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"
cache=$PWD/build/vm
say() { echo "vm: $*"; }

# Where no guest can run, the reason is all that is said; under CI it counts.
cannot() {
  say "not run here: $*"
  [ "${CI:-}" = true ] && exit 1
  exit 0
}
[ "$(id -u)" = 0 ] || cannot "making the guest's disk needs root"
[ "$(uname -m)" = x86_64 ] || cannot "only amd64 has a guest by now"
for pair in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mkfs.ext4:e2fsprogs; do
  command -v "${pair%%:*}" >/dev/null || cannot "no ${pair%%:*} (install ${pair##*:})"
done
images=${VEYRA_CACHE_DIR:-/var/cache/veyra-sandboxd}/images
[ -e "$images/index.json" ] || cannot "no image (make image builds it)"

work=$(mktemp -d /var/tmp/veyra-vm.XXXXXX)
machine=''
clean_up() {
  [ -z "$machine" ] || { kill "$machine" 2>/dev/null && wait "$machine"; } || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

packages=linux-image-cloud-amd64,initramfs-tools,zstd,systemd-sysv,dbus,udev,kmod,e2fsprogs,util-linux,mount,procps,iproute2,uidmap,crun,libseccomp2,python3,git,apparmor,passwd

# guest makes disk, kernel and initial RAM disk, where inputs have changed.
guest() {
  local inputs mirror
  inputs=$({ declare -f guest; echo "$packages"; cat tools/vm/init tools/vm/vm.service; } | sha256sum | cut -c1-16)
  [ "$(cat "$cache/made" 2>/dev/null)" != "$inputs" ] || return 0
  say "making the guest (some minutes)"
  rm -rf "$cache"
  mkdir -p "$cache" "$work/root"
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 2>/dev/null | sed -n 's/^Debian //p' | head -n 1) || true
  mmdebstrap --quiet --mode=root --variant=essential --format=tar --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --include="$packages" stable "$work/root.tar" ${mirror:+"$mirror"} 2>"$work/said" ||
    { cat "$work/said" >&2; say "the guest can't be made"; exit 1; }
  tar -C "$work/root" -xf "$work/root.tar"
  cp "$work"/root/boot/vmlinuz-* "$cache/vmlinuz"
  cp "$work"/root/boot/initrd.img-* "$cache/initrd"
  install -D -m 0755 tools/vm/init "$work/root/vm/init"
  install -D -m 0644 tools/vm/vm.service "$work/root/etc/systemd/system/vm.service"
  mkdir -p "$work/root/payload" "$work/root/etc/systemd/system/default.target.wants"
  ln -s ../vm.service "$work/root/etc/systemd/system/default.target.wants/vm.service"
  echo guest >"$work/root/etc/hostname"
  echo '/dev/vdb /payload ext4 rw 0 0' >"$work/root/etc/fstab"
  disk "$work/root" "$cache/guest.img" 24G
  rm -rf "$work/root" "$work/root.tar"
  echo "$inputs" >"$cache/made"
}

# disk DIRECTORY FILE SIZE: a sparse file with a file system of the directory.
disk() {
  truncate -s "$3" "$2"
  mkfs.ext4 -q -F -d "$1" "$2"
}

# payload puts sources, programs, tests and images onto a disk of their own.
payload() {
  local to=$work/payload name
  mkdir -p "$to"/vm/{made,bin,tests} "$to/repo/bin" "$to/cache"
  # A file that is deleted, and not yet committed, is left out.
  git ls-files -z | while IFS= read -r -d '' name; do [ ! -f "$name" ] || printf '%s\0' "$name"; done | xargs -0 cp --parents -t "$to/repo"
  cp bin/runc bin/runsc "$to/repo/bin/"
  for name in veyra-init veyra-git; do
    go build -ldflags "-s -w" -o "$to/vm/made/" "./cmd/$name"
    printf '"%s": "%s",' "$PWD/cmd/veyra-sandboxd/helpers/$name" "$to/vm/made/$name"
  done | sed 's/^/{"Replace": {/; s/,$/}}/' >"$work/overlay.json"
  go build -ldflags "-s -w" -overlay "$work/overlay.json" -o "$to/repo/bin/" ./cmd/veyra-sandboxd
  go test -c -ldflags "-s -w" -o "$to/vm/tests/sandbox-oci.test" ./sandbox/oci
  cp tools/vm/go "$to/vm/bin/"
  cp tools/vm/run tools/vm/*.sh "$to/vm/"
  printf 'VEYRA_VM_TESTS=%q\n' "${VEYRA_VM_TESTS:-}" >"$to/vm/settings"
  cp -a "$images" "$to/cache/"
  disk "$to" "$work/payload.img" 24G
  rm -rf "$to"
}

# One processor: the emulation of Debian 12 runs a kernel that changes its own
# instructions, or compares 16 bytes at once, astray on two.
accelerator() {
  local use=tcg
  if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then use=kvm; fi
  case ${VEYRA_VM_ACCEL:-$use} in
    kvm) echo "-accel kvm -cpu host -smp 2" ;;
    *) echo "-accel tcg -cpu EPYC-v1,-cx16 -smp 1" ;;
  esac
}

# boot VARIANT INIT: a guest from its start to its end.
boot() {
  local words began=$SECONDS status=0
  say "$1: booting"
  : >"$work/said"
  # shellcheck disable=SC2046
  timeout "${VEYRA_VM_TIMEOUT:-1800}" qemu-system-x86_64 $(accelerator) -m 4G -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$cache/vmlinuz" -initrd "$cache/initrd" -append "console=ttyS0 root=/dev/vda rw quiet panic=-1 $2" -snapshot \
    -drive "file=$cache/guest.img,format=raw,if=virtio,cache=unsafe" -drive "file=$work/payload.img,format=raw,if=virtio,cache=unsafe" \
    -serial "file:$work/console" -serial "file:$work/said" 2>"$work/qemu" &
  machine=$!
  wait "$machine" || status=$?
  machine=''
  cp "$work/said" "build/vm.$1.txt"
  judge "$1" "$work/said" || failed=1
  if ! grep -q '^vm: over' "$work/said"; then
    say "$1: the guest has not come to its end (status $status); its console's last words:"
    tail -n 15 "$work/console" "$work/qemu" >&2
    failed=1
  fi
  say "$1: ended after $((SECONDS - began)) s"
}

# judge VARIANT FILE: what the guest said; each test program's part is for the
# runner's own summary.
judge() {
  local line status=0 package=''
  if grep -qE '^vm: (FAIL|end [^0])' "$2"; then status=1; fi
  while IFS= read -r line; do
    case $line in
      "vm: begin "*) package=${line#vm: begin }; : >"$work/part" ;;
      "vm: end "*)
        go tool test2json -p "$1/$package" <"$work/part" | bin/tools/testsummary || status=1
        package=''
        ;;
      *) if [ -n "$package" ]; then printf '%s\n' "$line" >>"$work/part"; else printf '%s\n' "$line"; fi ;;
    esac
  done <"$2"
  if [ -n "$package" ]; then # it did not end
    go tool test2json -p "$1/$package" <"$work/part" | bin/tools/testsummary || status=1
  fi
  return $status
}

mkdir -p build bin/tools
(cd tools && go build -o ../bin/tools/testsummary ./testsummary)
guest
payload
failed=0
[ $# -gt 0 ] || set -- minimal systemd
for variant in "$@"; do
  case $variant in
    minimal) boot minimal init=/vm/init ;;
    systemd) boot systemd '' ;;
    *) say "no variant $variant: minimal, systemd"; exit 2 ;;
  esac
done
[ $failed = 0 ] && say "everything passed" || say "FAILED"
exit $failed
