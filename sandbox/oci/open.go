package oci

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Open makes the driver that the runner's place allows for. The runtime's file
// must still be one that only root can change.
func Open(place sandbox.Place) (sandbox.Driver, error) {
	// In a user namespace root's files are nobody's: there the caller has looked.
	if err := checkRuntime(place.Runtime); err != nil && !place.Rootless {
		return nil, err
	}
	store, err := linux.OpenStore(place.Images)
	if err != nil {
		return nil, err
	}
	d, err := New(Config{
		Instance: place.Instance, Runtime: place.Runtime, Stage: place.Stage, Disks: place.Disks,
		Run: place.Run, Images: store, Binaries: linux.Binaries{Init: place.Init, Git: place.Git},
		Pool: linux.Pooled, Log: place.Log, Policy: place.Policy, Rootless: place.Rootless, Seccomp: func(p sandbox.Profile) (*specs.LinuxSeccomp, error) {
			return policies.Seccomp(policies.SeccompKind(p))
		},
	})
	if err != nil {
		return nil, err // not a typed nil
	}
	return d, nil
}

// Facts names the runtime and measures what needs no sandbox.
func (d *Driver) Facts(ctx context.Context) (sandbox.Report, error) {
	version, err := d.runtime.version(ctx)
	if err != nil {
		return sandbox.Report{}, startError("probing the runtime", err)
	}
	r := sandbox.Report{Backend: "oci", Runtime: d.runtime.name, Version: version, Path: d.runtime.path, Isolation: d.runtime.isolation}
	if d.config.Rootless {
		r.Controls = rootlessFacts("cgroup_")
		return r, nil
	}
	for _, controller := range []string{"memory", "pids", "cpu"} {
		h, ok := d.cgroups.With(controller)
		c := sandbox.Control{Name: "cgroup_" + controller, Enforced: ok, Seen: version2(h), For: policies.Control(controller)}
		if !ok {
			c.Seen, c.Fix = "not mounted or not delegated", "mount the controller, or delegate it to the unit of this daemon"
		}
		r.Controls = append(r.Controls, c)
	}
	r.Controls = append(r.Controls, linux.DiskControls()...)
	r.Controls = append(r.Controls, d.runtime.usernsControl(ctx))
	return r, nil
}

func version2(h linux.Hierarchy) string {
	if h.Unified {
		return "version 2"
	}
	return "version 1"
}
