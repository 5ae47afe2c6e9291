package oci

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// noUserNamespace are what clone(2) says where a user namespace can't be made:
// forbidden, none left, or not known to the kernel. What execve says is none.
var noUserNamespace = []error{unix.EPERM, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS}

// usernsControl really makes a user namespace: a runtime that can't would only
// say that its start failed.
func (r ociRuntime) usernsControl(ctx context.Context) sandbox.Control {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.path, "--version")
	cmd.Env, cmd.SysProcAttr = []string{}, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	c := sandbox.Control{Name: "user_namespaces", Enforced: true, Seen: "one was made"}
	err := cmd.Start()
	if err == nil {
		_ = cmd.Wait() // what it says inside, where no id is mapped, does not count
		return c
	}
	for _, known := range noUserNamespace {
		if errors.Is(err, known) {
			c.Enforced, c.Seen = false, fmt.Sprintf("none can be made: %v", known)
			c.Fix = "sysctl user.max_user_namespaces=10000, and nothing around the daemon that forbids CLONE_NEWUSER"
		}
	}
	return c
}
