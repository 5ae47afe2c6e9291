package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// errApplied is in the chain when an engine did something else than it was asked
// to.
var errApplied = errors.New("the engine applied something else")

// Applied reads every control back from the kernel. The engine's own view of the
// container is not asked: it repeats the request.
func (b *box) Applied(ctx context.Context) (sandbox.Applied, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Applied{}, err
	}
	if b.done || b.closed || b.first == nil {
		return sandbox.Applied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading a sandbox back: it has ended"}
	}
	about := b.job.about
	a := sandbox.Applied{Isolation: about.isolation, Unable: about.unable()}
	err := errors.Join(b.first.group.Apply(&a), b.view.Disk.Apply(b.view.Root(), &a), linux.ReadProcess(b.first.pid, &a),
		b.checkPlaces(), checkIDs(about, a), b.checkKernel(), b.checkLimits())
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	return a, nil
}

// checkIDs compares the kernel's map with what the files were prepared for.
func checkIDs(about facts, a sandbox.Applied) error {
	if a.FirstID != about.first {
		return fmt.Errorf("uid 0 inside is %d on the host, want %d: %w", a.FirstID, about.first, errApplied)
	}
	return nil
}

// checkKernel wants a guest's kernel where the runtime should bring one.
func (b *box) checkKernel() error {
	program, err := os.Readlink("/proc/" + strconv.Itoa(b.first.pid) + "/exe")
	if err != nil {
		return fmt.Errorf("looking at the program of PID 1: %w", err)
	}
	own := program == sandbox.InitPath
	if own == b.job.about.guest() {
		return fmt.Errorf("the host runs %.100q as PID 1: %w", program, errApplied)
	}
	return nil
}

// checkLimits compares the limits of a process that no list of the supervisor has
// with what was asked for. A guest's are its own kernel's, which nobody sees from
// here.
func (b *box) checkLimits() error {
	if b.job.about.guest() {
		return nil
	}
	var failed error
	for _, asked := range b.ulimits {
		var have unix.Rlimit
		if err := unix.Prlimit(b.first.pid, rlimits[asked.Name].which, nil, &have); err != nil {
			return fmt.Errorf("reading limits of PID 1: %w", err)
		}
		if have.Max > uint64(asked.Hard) || have.Cur > uint64(asked.Soft) {
			failed = errors.Join(failed, fmt.Errorf("the limit %s is %d, want %d: %w", asked.Name, have.Max, asked.Hard, errApplied))
		}
	}
	return failed
}

// Counters reads what the kernel counted against the limits.
func (b *box) Counters(ctx context.Context) (sandbox.Counters, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Counters{}, err
	}
	if b.closed || b.first == nil {
		return sandbox.Counters{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading counters: the sandbox is closed"}
	}
	c, err := b.first.counters()
	if err != nil {
		if c, err = b.ask(ctx, c); err != nil {
			return sandbox.Counters{}, fmt.Errorf("reading counters: %w", err)
		}
	}
	if b.view.Disk != nil {
		c.DiskErrors, err = b.view.Disk.Failures()
	}
	return c, err
}

// ask has the engine say whether memory ended a sandbox whose counters went with
// it, before they could be read.
func (b *box) ask(ctx context.Context, c sandbox.Counters) (sandbox.Counters, error) {
	saw, err := b.job.driver.engine.inspect(ctx, b.container)
	if err != nil {
		return c, err
	}
	if saw.oomKilled {
		c.OOMKills++
	}
	return c, nil
}
