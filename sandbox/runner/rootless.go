package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/subids"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

const (
	// mappedFlag marks the start of an ordinary user's runner that has its ids.
	mappedFlag = "--mapped"
	// mostIDs bounds what is mapped: a range for each of 16 jobs.
	mostIDs = 16 * rangeIDs
	// rangeIDs are the ids of one job's sandboxes.
	rangeIDs = 65_536
	// maxPolicy bounds what the parent sends of the policy, in bytes. Together with
	// the go-ahead it fits into a pipe.
	maxPolicy = 60 << 10
)

// launch starts the process. An ordinary user's begins in a user namespace, waits
// until the programs of uidmap have given it its ids, and reads the policy from
// the same pipe: in there root's files are nobody's, so that it could not tell
// whether anybody else can change the owner's file. The caller has looked.
func (cfg Config) launch(ctx context.Context, cmd *exec.Cmd, policy policies.Policy) error {
	if !cfg.Rootless {
		return cmd.Start()
	}
	blocks, err := subids.Find()
	if err != nil {
		return err
	}
	if blocks.Count() < rangeIDs {
		return fmt.Errorf("this account has %d subordinate ids, want %d (usermod --add-subuids, --add-subgids): %w", blocks.Count(), rangeIDs, os.ErrInvalid)
	}
	text, err := json.Marshal(policy)
	if err != nil || len(text) > maxPolicy {
		return fmt.Errorf("handing over a policy of %d bytes: %w", len(text), errors.Join(err, os.ErrInvalid))
	}
	outside, err := namespaces(os.Getpid(), "mnt", "net")
	if err != nil {
		return err
	}
	cmd.Args = append(cmd.Args, "--outside", outside)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("making a user namespace: %w", err)
	}
	err = blocks.Map(ctx, cmd.Process.Pid, min(blocks.Count()/rangeIDs*rangeIDs, mostIDs))
	if err == nil {
		_, err = stdin.Write(append([]byte{1}, text...))
	}
	_ = stdin.Close() // without the byte it ends
	if err != nil {
		_ = cmd.Wait()
	}
	return err
}

// rootlessStage is hidden by an ordinary user's runner, for itself: everybody may
// pass it, also what is root in a sandbox, which the directories above that user's
// own don't allow. The host's sockets in it go out of sight by the way.
const rootlessStage = "/run"

// stage is where the runner's tmpfs lies.
func (s settings) stage() string {
	if s.outside == "" {
		return s.run
	}
	return rootlessStage
}

// awaitIDs waits for the go-ahead and executes itself once more: as root of the
// namespace that gives it the powers which its first start could not have.
func awaitIDs() error {
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return fmt.Errorf("waiting for ids: %w", err)
	}
	return again(mappedFlag)
}

// readPolicy reads what the owner chose, by itself where it can judge files.
func (s settings) readPolicy() (policies.Policy, error) {
	if s.outside == "" {
		return policies.Load(s.policy)
	}
	var p policies.Policy
	text, err := io.ReadAll(io.LimitReader(os.Stdin, maxPolicy))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, &sandbox.Error{Kind: sandbox.KindStart, Op: "reading the policy", Err: err}
	}
	return p, nil
}
