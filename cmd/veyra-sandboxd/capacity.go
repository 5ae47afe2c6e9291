package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// scaledPolicy loads a policy and scales it down to what this host can give
// one sandbox, with disks in dir. Half of what is free above the floor goes to
// one sandbox, since a job books two.
func scaledPolicy(name, dir string, floor int64) (policies.Policy, error) {
	capacity, err := hostCapacity(dir, floor)
	if err != nil {
		return policies.Policy{}, err
	}
	return scaledTo(name, capacity)
}

// daemonPolicy is scaledPolicy for the daemon: too little disk does not keep it
// from starting, since finished results want delivering and beats want sending.
// It takes no work until there is room (sayDisk).
func daemonPolicy(name, dir string, floor int64) (policies.Policy, error) {
	capacity, err := hostCapacity(dir, floor)
	if err != nil {
		return policies.Policy{}, err
	}
	capacity.DiskBytes = max(capacity.DiskBytes, policies.MinDiskBytes)
	return scaledTo(name, capacity)
}

func scaledTo(name string, capacity policies.Capacity) (policies.Policy, error) {
	policy, err := policies.Load(name)
	if err != nil {
		return policy, fmt.Errorf("%w: %w", errSettings, err)
	}
	scaled, err := policy.Scaled(capacity)
	if err != nil {
		return policy, withCode(exitHost, "this host is too small for the policy %s: %w", name, err)
	}
	return scaled, nil
}

func hostCapacity(dir string, floor int64) (policies.Capacity, error) {
	memory, err := linux.Memory()
	if err != nil {
		return policies.Capacity{}, err
	}
	free, err := freeBytes(dir)
	if err != nil {
		return policies.Capacity{}, err
	}
	return policies.Capacity{CPUs: runtime.NumCPU(), MemoryBytes: memory, DiskBytes: max(0, free-floor) / 2}, nil
}

// freeBytes is what an ordinary user may still write below dir.
func freeBytes(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}
