#!/usr/bin/env bash
# Static checks: formatting, vet, staticcheck, known vulnerabilities, import
# arrows. `lint.sh vuln` checks for vulnerabilities alone, with the newest
# database instead of the pinned one. Needs no host but the module proxy.
set -euo pipefail
cd "$(dirname "$0")/.."

# The toolchain of releases: its standard library is what we ship, so that is
# what is judged. Comes as a Go module by itself.
release=go1.27.4
# A bump is a commit, so that lint turns red by a change of ours only.
vulndb=v0.0.0-20261105234957-e22db6528018

export CGO_ENABLED=0
tools=$PWD/bin/tools

# Built with the release's toolchain, and again when versions or sources change.
build_tools() {
  local stamp
  stamp=$(echo "$release" | cat - tools/go.mod tools/go.sum tools/*/*.go | sha256sum | cut -c1-16)
  [ -e "$tools/$stamp" ] && return
  echo "lint: building the tools"
  rm -rf "$tools"; mkdir -p "$tools"
  (cd tools && GOBIN=$tools GOFLAGS=-buildvcs=false GOTOOLCHAIN=$release go install tool ./vulnindex ./findings)
  : >"$tools/$stamp"
}

# vulnerabilities VERSION [-due]
vulnerabilities() {
  local version=$1 source target
  source=$(cd tools && go mod download -json "golang.org/x/vulndb@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  [ -n "$source" ] || { echo "lint: the vulnerability database $version can't be downloaded" >&2; return 1; }
  target=$PWD/build/vulndb/$(basename "$source")
  if [ ! -e "$target/index/db.json" ]; then
    rm -rf build/vulndb
    "$tools/vulnindex" "$source" "$target"
  fi
  GOTOOLCHAIN=$release "$tools/govulncheck" -db "file://$target" -format json ./... |
    "$tools/findings" "${@:2}" tools/accepted-findings.txt
}

# step NAME COMMAND...: shows what fails and goes on, so that one run tells all.
status=0
step() {
  echo "lint: $1"
  "${@:2}" || { echo "lint: $1 FAILED" >&2; status=1; }
}

nothing_printed() {
  local out
  out=$("$@")
  [ -z "$out" ] || { echo "$out"; return 1; }
}

build_tools
if [ "${1:-}" = vuln ]; then
  step "vulnerabilities, newest database" vulnerabilities latest -due
  exit $status
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.go' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
step gofmt nothing_printed gofmt -l "${files[@]}"
step gofumpt nothing_printed "$tools/gofumpt" -l "${files[@]}"
step "go vet" go vet ./...
step staticcheck "$tools/staticcheck" ./...
step "vulnerabilities, database $vulndb" vulnerabilities "$vulndb"
step "import arrows and documents" go test -count=1 .
step "the tools' own tests" sh -c 'cd tools && go vet ./... && go test ./...'
exit $status
