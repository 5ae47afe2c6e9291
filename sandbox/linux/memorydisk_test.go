package linux

import (
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestDisksInMemoryAreBookedAsMemory: an ordinary user's job gets no disks that the
// host's memory can't hold beside its own.
func TestDisksInMemoryAreBookedAsMemory(t *testing.T) {
	total, err := Memory()
	if err != nil {
		t.Fatal(err)
	}
	root := hostlocktest.Root(t)
	ledger := Ledger{Run: root, Instance: "inside", Disks: root.Name(), InMemory: true}
	spec := sandbox.JobSpec{ID: "one", Limits: policies.Limits{MemoryBytes: total / 4, DiskBytes: total / 4}}
	first, err := ledger.Book(t.Context(), spec)
	if err != nil {
		t.Fatalf("three quarters of the host's memory: %v", err)
	}
	spec.ID, spec.Limits.DiskBytes = "two", total/64
	if _, err := ledger.Book(t.Context(), spec); sandbox.KindOf(err) != sandbox.KindNoRoom || !strings.Contains(err.Error(), "of memory") {
		t.Errorf("more than all of it: %v", err)
	}
	first.Release()
	second, err := ledger.Book(t.Context(), spec)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	second.Release()
}
