package linux

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestB18BookingsOutliveWhoeverTidies: an instance that ends removes the directory
// of bookings when it is empty, while others book.
func TestB18BookingsOutliveWhoeverTidies(t *testing.T) {
	run := hostlocktest.Root(t)
	dir := run.Name()
	stop := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Remove(filepath.Join(dir, bookingsDir))
			}
		}
	})
	defer remover.Wait()
	defer close(stop)
	ledger := Ledger{Run: run, Instance: "one", Disks: dir}
	limits := policies.Limits{MemoryBytes: 1 << 20, DiskBytes: 1 << 20}
	for range 500 {
		lock, err := ledger.Book(t.Context(), sandbox.JobSpec{ID: "job", Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		_, dev, err := freeDisk(dir)
		if err != nil {
			t.Fatal(err)
		}
		if sum, err := booked(run, dev); err != nil || sum.Memory != 1<<20 || sum.Disk != disksPerJob<<20 {
			t.Fatalf("booked %+v, %v", sum, err)
		}
		lock.Release()
	}
}
