package sandboxtest

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// fewTasks: with a limit whose tasks fit into memory, every class refuses the
// fork and goes on, and the limit is named, by whichever kernel has refused.
func fewTasks(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.PIDs = 64
	b := h.Create(t, h.Job(t, l), l)
	exit, out := b.Py(endlessProgram(endless["processes"]))
	var errno unix.Errno
	var made int64
	if _, err := fmt.Sscanf(out, "refused %d %d", &errno, &made); err != nil || errno != unix.EAGAIN || made < 30 || made > l.PIDs {
		t.Errorf("processes without end: %q, %v", out, err)
	}
	if exit.Code != 0 || exit.Gone || !h.onlyPIDs(exit) {
		t.Errorf("processes without end gave %+v", exit)
	}
	exit, _ = b.Cmd(sandbox.Command{Argv: []string{"true"}, Alone: true})
	if exit.Code != 0 || len(exit.Limits) != 0 {
		t.Errorf("the command after it: %+v", exit)
	}
}
