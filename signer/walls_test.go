package signer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// supervisorArg makes the test binary a supervisor: it starts a signer, locks
// itself down and goes on using it.
const supervisorArg = "__supervisor"

func playSupervisor(state string) error {
	root := os.Geteuid() == 0
	cfg := signer.Config{StateDir: state, UID: confine.Stay, GID: confine.Stay}
	own := confine.Lockdown{UID: confine.Stay, GID: confine.Stay}
	if root {
		cfg.UID, cfg.GID = 4322, 4321
		own.UID, own.GID = 4321, 4321
	}
	client, err := signer.Start(context.Background(), os.Args[0], cfg)
	if err != nil {
		return err
	}
	log := filepath.Join(state, signer.LogName)
	own.Rules, own.Filter = &confine.Rules{Read: []string{log}}, confine.SupervisorFilter
	if _, err := own.Apply(); err != nil {
		return err
	}
	if _, err := client.Sign(context.Background(), someJob); err != nil {
		return err
	}
	records, err := signer.ReadLog(log)
	if err != nil || len(records) != 1 {
		return fmt.Errorf("%d records: %w", len(records), err)
	}
	if _, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		return errors.New("the supervisor can write the signing log")
	}
	if _, err := os.ReadFile(filepath.Join(state, "identity", "key", "key.pem")); err == nil {
		return errors.New("the supervisor can read the key")
	}
	return client.Close()
}

// TestServesALockedSupervisor shows both processes' walls together, as root and
// as a user who has no power to begin with.
func TestServesALockedSupervisor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: switching to another uid needs root")
	}
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: a cgo build can't confine its threads")
	}
	for _, uid := range []uint32{0, 4321} {
		t.Run(fmt.Sprint("started by ", uid), func(t *testing.T) {
			base := passable(t)
			state, exe := filepath.Join(base, "state"), filepath.Join(base, "exe")
			if err := errors.Join(os.Mkdir(state, 0o700), copyFile(exe, os.Args[0]), os.Chown(state, int(uid), -1)); err != nil {
				t.Fatal(err)
			}
			if uid == 0 { // as the state is given to the daemon's user
				if err := os.Chown(state, 4321, 4321); err != nil {
					t.Fatal(err)
				}
			}
			child := exec.Command(exe, supervisorArg, state)
			child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			var said strings.Builder
			child.Stdout, child.Stderr = &said, &said
			if err := child.Run(); err != nil {
				t.Fatalf("%v: %s", err, said.String())
			}
		})
	}
}

// passable makes a directory that any user may pass.
func passable(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "signer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	return base
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// TestKilledWhileSigning covers invariant 10: whatever was answered is in the
// log, and the next start goes on from it.
func TestKilledWhileSigning(t *testing.T) {
	state := t.TempDir()
	answered := map[signer.Signature]bool{}
	for round := range 6 {
		client := start(t, state)
		killer := make(chan error, 1)
		for n := 0; ; n++ {
			code := round*40 + n%200 - 200
			signature, err := client.Sign(t.Context(), signer.Qualification{ID: someID, FilesHash: someHex, Code: code})
			if errors.Is(err, signer.ErrGone) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			answered[signature] = true
			if n == round*3 { // while the next ones are being signed
				go func() { killer <- syscall.Kill(client.PID(), syscall.SIGKILL) }()
			}
		}
		if err := <-killer; err != nil {
			t.Fatal(err)
		}
		<-client.Done()
	}
	records, err := signer.ReadLog(filepath.Join(state, signer.LogName))
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records {
		delete(answered, record.Signature)
	}
	if len(answered) != 0 || len(records) == 0 {
		t.Errorf("%d answered signatures are not in the log of %d", len(answered), len(records))
	}
}
