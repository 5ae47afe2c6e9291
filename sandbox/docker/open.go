package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Open makes the driver that the runner's place allows for.
func Open(place sandbox.Place) (sandbox.Driver, error) {
	store, err := linux.OpenStore(place.Images)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := New(ctx, Config{
		Instance: place.Instance, Socket: place.Socket, Runtime: place.Runtime, Stage: place.Stage, Disks: place.Disks,
		Run: place.Run, RunDir: place.Stage, Images: store, Binaries: linux.Binaries{Init: place.Init, Git: place.Git},
		Pool: linux.Pooled, Log: place.Log, Policy: place.Policy, Seccomp: filterOf,
	})
	if err != nil {
		return nil, err // not a typed nil
	}
	return d, nil
}

// filterOf writes a filter down in the runtime's own form: the same for every
// engine, whatever templates it knows.
func filterOf(profile sandbox.Profile) ([]byte, error) {
	filter, err := policies.Seccomp(policies.SeccompKind(profile))
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(filter)
	if err != nil {
		return nil, fmt.Errorf("encoding the seccomp profile: %w", err)
	}
	return raw, nil
}

// Facts names the engine and what it says that it can limit.
func (d *Driver) Facts(ctx context.Context) (sandbox.Report, error) {
	f, err := d.ask(ctx)
	if err != nil {
		return sandbox.Report{}, err
	}
	r := sandbox.Report{
		Backend: "docker", Runtime: f.runtime, Version: f.runtimeVersion,
		Path: d.config.Socket, Isolation: f.isolation, Software: []sandbox.Software{{Name: "docker", Version: f.version}},
		Controls: append([]sandbox.Control{{Name: "engine_api", Enforced: true, Seen: f.api}}, f.controls...),
	}
	r.Controls = append(r.Controls, linux.DiskControls()...)
	return r, nil
}
