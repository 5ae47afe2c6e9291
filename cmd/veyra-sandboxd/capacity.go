package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// scaledPolicy is the chosen policy scaled down to what this host can give one
// sandbox, with disks in dir. Half of what is free above the floor goes to one
// sandbox, since a job books two.
func scaledPolicy(s *Settings, dir string) (policies.Policy, error) {
	capacity, err := hostCapacity(dir, int64(s.Keep.DiskFloor))
	if rootless() {
		capacity, err = memoryCapacity(runtime.NumCPU())
	}
	if err != nil {
		return policies.Policy{}, err
	}
	return scaledTo(s, capacity)
}

// daemonPolicy is scaledPolicy for the daemon: too little disk does not keep it
// from starting, since finished results want delivering and beats want sending.
// It takes no work until there is room (sayDisk).
func daemonPolicy(s *Settings, dir string) (policies.Policy, error) {
	capacity, err := hostCapacity(dir, int64(s.Keep.DiskFloor))
	if err != nil {
		return policies.Policy{}, err
	}
	capacity.DiskBytes = max(capacity.DiskBytes, policies.MinDiskBytes)
	return scaledTo(s, capacity)
}

func scaledTo(s *Settings, capacity policies.Capacity) (policies.Policy, error) {
	policy, err := s.readPolicy()
	if err != nil {
		return policy, err
	}
	scaled, err := policy.Scaled(capacity)
	if err != nil {
		return policy, withCode(exitHost, "this host is too small for the policy %s: %w", policy.Name, err)
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

// sameDisk tells whether two directories lie on one file system.
func sameDisk(one, other string) bool {
	var a, b unix.Stat_t
	return unix.Stat(one, &a) == nil && unix.Stat(other, &b) == nil && a.Dev == b.Dev
}

// freeBytes is what an ordinary user may still write below dir.
func freeBytes(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}
