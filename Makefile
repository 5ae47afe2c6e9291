# The two commands to know: make demo, make test. Everything installs what it
# needs (Debian packages, Go modules, the OCI runtime) and says what it does.
SHELL      := /bin/bash
export CGO_ENABLED := 0
export GOFLAGS     := -buildvcs=false -trimpath
RUNC_VERSION  := v1.5.3
RUNSC_VERSION := v0.0.0-20260905035102-160fafc42237
VERSION       := $(shell sed -n 's/^## \[\([^]]*\)\].*/\1/p' CHANGELOG.md | head -1)
COMMIT        := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
LDFLAGS       := -s -w -X main.version=$(VERSION)+$(COMMIT)
HELPERS       := cmd/veyra-sandboxd/helpers
PREFIX        ?= /usr/local
# Mounts, id ranges and image building need root; everything else does not.
AS_ROOT       := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: all setup engines build image test lint vuln bench demo install soak vm fuzz clean

all: build

setup:
	@tools/setup.sh $(RUNC_VERSION) $(RUNSC_VERSION)

# The two helpers that run inside sandboxes are embedded into the daemon.
build: setup
	@echo "build: helpers, daemon, devplane"
	@go build -ldflags "-s -w" -o $(HELPERS)/veyra-init ./cmd/veyra-init
	@go build -ldflags "-s -w" -o $(HELPERS)/veyra-git ./cmd/veyra-git
	@go build -ldflags "$(LDFLAGS)" -o bin/veyra-sandboxd ./cmd/veyra-sandboxd
	@go build -ldflags "$(LDFLAGS)" -o bin/veyra-devplane ./cmd/veyra-devplane

# The default image is built once a host and a recipe, and kept in the shared store.
image: build
	@$(AS_ROOT) bin/veyra-sandboxd image build --missing python >/dev/null

# Docker Engines that tests and the benchmark start: unpacked and built once.
engines: build
	@tools/engines.sh

test: image engines
	@tools/test.sh

lint: build
	@tools/lint.sh

# The same check for vulnerabilities, with the newest database.
vuln: build
	@tools/lint.sh vuln

bench: image engines
	@tools/bench.sh

demo: image
	@tools/demo.sh

soak: image engines
	@VEYRA_SOAK=1 tools/test.sh
	@tools/vm.sh

vm: image
	@$(AS_ROOT) tools/vm.sh

fuzz: build
	@tools/fuzz.sh

install: build
	install -D -m 0755 bin/veyra-sandboxd $(DESTDIR)$(PREFIX)/bin/veyra-sandboxd
	install -D -m 0755 bin/runc $(DESTDIR)$(PREFIX)/libexec/veyra-sandboxd/runc
	install -D -m 0755 bin/runsc $(DESTDIR)$(PREFIX)/libexec/veyra-sandboxd/runsc
	install -D -m 0644 deploy/veyra-sandboxd@.service $(DESTDIR)/etc/systemd/system/veyra-sandboxd@.service
	install -d -m 0755 $(DESTDIR)/etc/veyra-sandboxd

clean:
	rm -rf bin build $(HELPERS)/veyra-init $(HELPERS)/veyra-git
