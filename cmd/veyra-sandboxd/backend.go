package main

import (
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// The words of sandbox.backend. autoBackend is oci: it needs no daemon and holds
// its sandboxes more tightly.
const (
	autoBackend   = "auto"
	ociBackend    = "oci"
	dockerBackend = "docker"

	backendChoices = "auto, oci or docker"
)

func knownBackend(word string) bool {
	return word == autoBackend || word == ociBackend || word == dockerBackend
}

func (s *Settings) usesDocker() bool { return s.Sandbox.Backend == dockerBackend }

// aim names what the runner of the chosen backend starts sandboxes with.
func (s *Settings) aim(config *runner.Config, runtime string) (err error) {
	if !s.usesDocker() {
		config.Runtime, err = findRuntime(runtime)
		return err
	}
	config.Socket = s.Sandbox.DockerSocket
	if runtime != autoRuntime {
		config.Runtime = runtime
	}
	return nil
}

// openDriver opens the backend that the runner was aimed at. There is never
// another one in its place.
func openDriver(place sandbox.Place) (sandbox.Driver, error) {
	if place.Socket != "" {
		return docker.Open(place)
	}
	return oci.Open(place)
}
