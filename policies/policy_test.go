package policies_test

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

func builtin(t testing.TB, name string) policies.Policy {
	t.Helper()
	p, err := policies.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuiltinLimitsAreTheDesigns(t *testing.T) {
	want := map[string]policies.Limits{
		"strict": {
			CPUs: 2, MemoryBytes: 4 * gib, PIDs: 512, DiskBytes: 10 * gib, Inodes: 500_000, ShmBytes: 64 * mib,
			OpenFiles: 4096, OutputKeepBytes: mib, OutputReadBytes: 256 * mib, ChangeBytes: 256 * mib,
			FetchTunnels: 64, FetchDownBytes: 2 * gib, FetchUpBytes: mib, SetupPercent: 30, TestPercent: 25,
		},
		"standard": {
			CPUs: 2, MemoryBytes: 8 * gib, PIDs: 2048, DiskBytes: 20 * gib, Inodes: 1_000_000, ShmBytes: 256 * mib,
			OpenFiles: 16384, OutputKeepBytes: 4 * mib, OutputReadBytes: gib, ChangeBytes: gib,
			FetchTunnels: 128, FetchDownBytes: 8 * gib, FetchUpBytes: 8 * mib, SetupPercent: 40, TestPercent: 25,
		},
		"relaxed": {
			CPUs: 0, MemoryBytes: 16 * gib, PIDs: 8192, DiskBytes: 50 * gib, Inodes: 4_000_000, ShmBytes: gib,
			OpenFiles: 65536, OutputKeepBytes: 16 * mib, OutputReadBytes: 4 * gib, ChangeBytes: gib,
			FetchTunnels: 256, FetchDownBytes: 32 * gib, FetchUpBytes: 64 * mib, SetupPercent: 50, TestPercent: 25,
		},
	}
	for _, name := range policies.Names() {
		p := builtin(t, name)
		if diff := cmp.Diff(want[name], p.Limits); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestLoadTellsNamesFromFiles(t *testing.T) {
	for name, want := range map[string]error{
		"./missing.yaml": fs.ErrNotExist, "/etc/no/such/policy": fs.ErrNotExist, "missing.yaml": fs.ErrNotExist,
		"lax": policies.ErrUnknownPolicy, "": policies.ErrUnknownPolicy, "STRICT": policies.ErrUnknownPolicy,
	} {
		if _, err := policies.Load(name); !errors.Is(err, want) {
			t.Errorf("Load(%q) = %v, want %v", name, err, want)
		}
	}
	if p, err := policies.Load("strict"); err != nil || p.Name != "strict" || p.Extends != "strict" || p.YAML() == "" {
		t.Errorf("Load(strict) = %q, %v", p.Name, err)
	}
}

func TestScaleCutsDownAndNeverRaises(t *testing.T) {
	relaxed := builtin(t, "relaxed").Limits
	got, err := relaxed.Scale(policies.Capacity{CPUs: 2, MemoryBytes: gib, DiskBytes: 2 * gib, OpenFiles: 1024})
	if err != nil {
		t.Fatal(err)
	}
	want := relaxed
	want.CPUs, want.MemoryBytes, want.DiskBytes, want.OpenFiles = 2, gib, 2*gib, 1024
	want.Inodes, want.ShmBytes = 2*gib/(4*kib), gib/2
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("small host (-want +got):\n%s", diff)
	}
	strict := builtin(t, "strict").Limits
	got, err = strict.Scale(policies.Capacity{CPUs: 64, MemoryBytes: 1 << 40, DiskBytes: 1 << 50, PIDs: 1 << 22})
	if err != nil || got != strict {
		t.Errorf("large host: %+v, %v", got, err)
	}
}

func TestScaleRefusesHostsUnderTheFloor(t *testing.T) {
	for resource, host := range map[string]policies.Capacity{
		"memory": {MemoryBytes: gib - 1, DiskBytes: 10 * gib},
		"disk":   {MemoryBytes: 4 * gib, DiskBytes: 2*gib - 1},
	} {
		_, err := builtin(t, "strict").Limits.Scale(host)
		var small *policies.TooSmallError
		if !errors.As(err, &small) || small.Resource != resource {
			t.Errorf("%s: %v", resource, err)
		}
	}
}

func TestBudgetsKeepATail(t *testing.T) {
	l := builtin(t, "strict").Limits
	want := policies.Budgets{
		Total: time.Hour, SetUp: 18 * time.Minute, Test: 15 * time.Minute, Tail: 3 * time.Minute,
	}
	if got := l.Budgets(60); got != want {
		t.Errorf("60 minutes: %+v", got)
	}
	if got := l.Budgets(5).Tail; got != time.Minute {
		t.Errorf("tail of 5 minutes: %v", got)
	}
}
