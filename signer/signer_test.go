package signer_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == signer.Subcommand {
		os.Exit(signer.Main(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == supervisorArg {
		if err := playSupervisor(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	someID    = "43725ad0-077e-46c3-a4f0-b991a459d879"
	someLease = "d128dc79-35da-483c-98b1-4c25ea91cd39"
	someRun   = protocol.RuntimeID("runtime-" + someID)
)

var (
	someHex  = strings.Repeat("ab", 32)
	someHash = "0x" + someHex
	someJob  = signer.JobResult{Assignment: someID, Lease: someLease, EvidenceHash: someHash}
)

func start(t *testing.T, state string) *signer.Client {
	t.Helper()
	client, err := tryStart(t, state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func tryStart(t *testing.T, state string) (*signer.Client, error) {
	t.Helper()
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: a cgo build can't confine its threads")
	}
	cfg := signer.Config{StateDir: state, UID: confine.Stay, GID: confine.Stay}
	return signer.Start(t.Context(), os.Args[0], cfg)
}

func plant(t *testing.T) (state string) {
	t.Helper()
	state = t.TempDir()
	if err := signer.Plant(state, make([]byte, 32), someRun); err != nil {
		t.Fatal(err)
	}
	return state
}

type vector struct {
	What, Message, Signature string
	Files, Evidence, Report  json.RawMessage
	FilesHash                string `json:"files_hash"`
	EvidenceHash             string `json:"evidence_hash"`
	ReportHash               string `json:"report_hash"`
}

// statement makes the typed statement from the message's parts, and checks the
// hash in it against the body.
func (v vector) statement(t *testing.T) signer.Statement {
	t.Helper()
	part := strings.Split(v.Message, ":")
	hash := func(body json.RawMessage) string {
		sum, err := canonjson.Hash(parse(t, body))
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	switch v.What {
	case "connect":
		return signer.Connect{Challenge: part[1], RuntimeID: protocol.RuntimeID(part[2])}
	case "qualification":
		return signer.Qualification{ID: protocol.QualificationID(part[1]), FilesHash: hash(v.Files)}
	case "job result":
		return signer.JobResult{
			Assignment: protocol.AssignmentID(part[1]), Lease: protocol.LeaseID(part[2]), EvidenceHash: "0x" + hash(v.Evidence),
		}
	case "verifier result":
		return signer.Verifier{
			ID: protocol.AssignmentID(part[1]), Lease: protocol.LeaseID(part[2]), ReportHash: "0x" + hash(v.Report),
		}
	}
	t.Fatalf("unknown vector %q", v.What)
	return nil
}

func parse(t *testing.T, body json.RawMessage) any {
	t.Helper()
	value, err := canonjson.Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/signatures.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Seed  string `json:"seed_hex"`
		Cases []vector
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(file.Seed)
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	if err := signer.Plant(state, seed, someRun); err != nil {
		t.Fatal(err)
	}
	client := start(t, state)
	for _, v := range file.Cases {
		t.Run(v.What, func(t *testing.T) {
			statement := v.statement(t)
			if text, err := signer.Text(statement); err != nil || text != v.Message {
				t.Fatalf("text %q, %v; want %q", text, err, v.Message)
			}
			got, err := client.Sign(t.Context(), statement)
			if err != nil || string(got) != v.Signature {
				t.Fatalf("signature %q, %v; want %q", got, err, v.Signature)
			}
		})
	}
	if len(file.Cases) != 4 {
		t.Errorf("%d vectors, want one of each statement", len(file.Cases))
	}
}

func TestIdentityIsMadeOnceAndKept(t *testing.T) {
	state := t.TempDir()
	first := start(t, state)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := start(t, state)
	if first.RuntimeID() != second.RuntimeID() || !first.PublicKey().Equal(second.PublicKey()) {
		t.Fatal("a second start has another identity")
	}
	named, err := signer.ReadRuntimeID(filepath.Join(state, "identity"))
	if err != nil || named != first.RuntimeID() {
		t.Fatalf("read %q, %v; want %q", named, err, first.RuntimeID())
	}
	for name, mode := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "key.pem": 0o600, "runtime_id": 0o600} {
		info, err := os.Lstat(filepath.Join(state, "identity", "key", name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%q has mode %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
}

func TestReadRuntimeIDBeforeTheFirstStart(t *testing.T) {
	if _, err := signer.ReadRuntimeID(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v, want ErrNotExist", err)
	}
}

// TestCrashedFirstStartBeginsAnew has a log with a first line, and no identity:
// what a crash right before the rename leaves.
func TestCrashedFirstStartBeginsAnew(t *testing.T) {
	state := plant(t)
	key := filepath.Join(state, "identity", "key")
	if err := os.Rename(key, key+".new"); err != nil {
		t.Fatal(err)
	}
	client := start(t, state)
	if client.RuntimeID() == someRun {
		t.Fatal("an identity that was never published came back")
	}
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err)
	}
	if records, err := signer.ReadLog(filepath.Join(state, signer.LogName)); err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v; want 1", len(records), err)
	}
}

// TestSignerHasNothingButItsDescriptors covers invariant 10 and J15's last line.
func TestSignerHasNothingButItsDescriptors(t *testing.T) {
	state := t.TempDir()
	client := start(t, state)
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err)
	}
	for fd, target := range descriptors(t, client.PID()) {
		want := map[string]string{
			"0": "/dev/null", "1": "/dev/null", "2": "/dev/null", "3": "socket:", "4": filepath.Join(state, signer.LogName),
		}[fd]
		if want == "" {
			want = "anon_inode:"
		}
		if !strings.HasPrefix(target, want) {
			t.Errorf("descriptor %s is %s, want %s", fd, target, want)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", client.PID()))
	if want := "GODEBUG=containermaxprocs=0,updatemaxprocs=0\x00GOMAXPROCS=1\x00"; err != nil || string(environ) != want {
		t.Errorf("environment %q, %v", environ, err)
	}
	threads, err := confine.Threads(client.PID())
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if thread.Effective|thread.Permitted|thread.Bounding|thread.Inheritable|thread.Ambient != 0 {
			t.Errorf("thread %d has capabilities: %+v", thread.ID, thread)
		}
		if !thread.NoNewPrivs || thread.Seccomp != 2 {
			t.Errorf("thread %d: %+v", thread.ID, thread)
		}
	}
}

func descriptors(t *testing.T, pid int) map[string]string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]string{}
	for _, entry := range entries {
		if open[entry.Name()], err = os.Readlink(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if len(open) < 5 {
		t.Fatalf("only %d descriptors were seen", len(open))
	}
	return open
}

func TestSignerRunsAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: switching to another uid needs root")
	}
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: a cgo build can't confine its threads")
	}
	state := t.TempDir()
	client, err := signer.Start(t.Context(), os.Args[0], signer.Config{StateDir: state, UID: 4321, GID: 4322})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err)
	}
	threads, err := confine.Threads(client.PID())
	if err != nil || threads[0].UIDs != [4]int{4321, 4321, 4321, 4321} || threads[0].GIDs[0] != 4322 {
		t.Errorf("threads %+v, %v", threads, err)
	}
	info, err := os.Stat(filepath.Join(state, signer.LogName))
	if err != nil || info.Mode().Perm() != 0o640 || info.Sys().(*syscall.Stat_t).Gid != 4322 {
		t.Errorf("log %+v, %v", info.Sys(), err)
	}
}

func TestKilledSignerIsGone(t *testing.T) {
	client := start(t, t.TempDir())
	if err := syscall.Kill(client.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-client.Done()
	if _, err := client.Sign(t.Context(), someJob); !errors.Is(err, signer.ErrGone) {
		t.Fatalf("got %v, want ErrGone", err)
	}
}

// TestHungSigner covers J15: the asker gets its turn back, and a late answer is
// not taken for the next one's.
func TestHungSigner(t *testing.T) {
	client := start(t, plant(t))
	if err := syscall.Kill(client.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	other := signer.Qualification{ID: someID, FilesHash: someHex}
	done := make(chan error)
	go func() {
		_, err := client.Sign(ctx, other)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want Canceled", err)
	}
	if err := syscall.Kill(client.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err) // a signature of the other statement would not be valid
	}
}

func TestRecordsAreReadBack(t *testing.T) {
	state := plant(t)
	client := start(t, state)
	statements := []signer.Statement{
		signer.Connect{Challenge: strings.Repeat("c", 43), RuntimeID: someRun},
		signer.Qualification{ID: someID, FilesHash: someHex, Code: -9},
		someJob,
		signer.Verifier{ID: someID, Lease: someLease, ReportHash: someHash},
	}
	var signatures []signer.Signature
	for _, statement := range statements {
		signature, err := client.Sign(t.Context(), statement)
		if err != nil {
			t.Fatal(err)
		}
		signatures = append(signatures, signature)
	}
	records, err := signer.ReadLog(filepath.Join(state, signer.LogName))
	if err != nil {
		t.Fatal(err)
	}
	var read []signer.Statement
	for i, record := range records {
		read = append(read, record.Statement)
		if record.Signature != signatures[i] || record.Seq != uint64(i+1) || record.Time.IsZero() {
			t.Errorf("record %d: %+v", i, record)
		}
	}
	if diff := cmp.Diff(statements, read); diff != "" {
		t.Error(diff)
	}
}
