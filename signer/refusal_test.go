package signer_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

func connect(challenge string) signer.Connect {
	return signer.Connect{Challenge: challenge, RuntimeID: someRun}
}

// TestH06FieldsAreValidated covers attack case H06 on both sides of the socket.
func TestH06FieldsAreValidated(t *testing.T) {
	state := plant(t)
	client := start(t, state)
	long := strings.Repeat("c", 40)
	for name, statement := range map[string]signer.Statement{
		"empty challenge":      connect(""),
		"23 bytes":             connect(strings.Repeat("c", 23)),
		"257 bytes":            connect(strings.Repeat("c", 257)),
		"colon":                connect(long + ":"),
		"another message":      connect("veyra-job-result-v1:" + someID + ":" + someLease + ":" + someHash),
		"multi-byte":           connect(long + "é"),
		"NUL":                  connect(long + "\x00"),
		"newline":              connect(long + "\n"),
		"padding":              connect(long + "="),
		"another runtime id":   signer.Connect{Challenge: long, RuntimeID: "runtime-" + someLease},
		"no runtime id":        signer.Connect{Challenge: long, RuntimeID: someID},
		"upper-case id":        signer.JobResult{Assignment: "43725AD0-077e-46c3-a4f0-b991a459d879", Lease: someLease, EvidenceHash: someHash},
		"lease with a colon":   signer.JobResult{Assignment: someID, Lease: someLease + ":", EvidenceHash: someHash},
		"hash without 0x":      signer.JobResult{Assignment: someID, Lease: someLease, EvidenceHash: someHex},
		"files hash with 0x":   signer.Qualification{ID: someID, FilesHash: someHash},
		"short hash":           signer.Qualification{ID: someID, FilesHash: someHex[1:]},
		"upper-case hash":      signer.Verifier{ID: someID, Lease: someLease, ReportHash: strings.ToUpper(someHash)},
		"empty id":             signer.Verifier{Lease: someLease, ReportHash: someHash},
		"code out of range":    signer.Qualification{ID: someID, FilesHash: someHex, Code: 256},
		"code below the range": signer.Qualification{ID: someID, FilesHash: someHex, Code: -256},
	} {
		t.Run(name, func(t *testing.T) {
			packet, err := signer.EncodeRequest(1, statement)
			if err != nil {
				t.Fatal(err)
			}
			if signature, err := client.SendRaw(packet); !errors.Is(err, signer.ErrRefused) || signature != "" {
				t.Errorf("the process gave %q, %v", signature, err)
			}
			if signature, err := client.Sign(t.Context(), statement); !errors.Is(err, signer.ErrRefused) || signature != "" {
				t.Errorf("the client gave %q, %v", signature, err)
			}
		})
	}
	if records, err := signer.ReadLog(filepath.Join(state, signer.LogName)); err != nil || len(records) != 0 {
		t.Errorf("%d signatures, %v; want none", len(records), err)
	}
	for _, length := range []int{24, 256} {
		if _, err := client.Sign(t.Context(), connect(strings.Repeat("_", length))); err != nil {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

func TestPacketsThatNoStatementMakesAreRefused(t *testing.T) {
	client := start(t, plant(t))
	good, err := signer.EncodeRequest(7, someJob)
	if err != nil {
		t.Fatal(err)
	}
	for name, packet := range map[string]string{
		"bytes to sign":  `{"n":1,"statement":"bytes","fields":"QUJD"}`,
		"not JSON":       "sign this",
		"no fields":      `{"n":1,"statement":"job_result"}`,
		"extra member":   strings.Replace(string(good), `{"n":7`, `{"x":1,"n":7`, 1),
		"extra field":    strings.Replace(string(good), `"lease"`, `"more":1,"lease"`, 1),
		"repeated field": strings.Replace(string(good), `"lease"`, `"lease":"x","lease"`, 1),
		"other case":     strings.Replace(string(good), `"lease"`, `"Lease"`, 1),
		"white space":    string(good) + "\n",
		"two at once":    string(good) + string(good),
		"other kind":     strings.Replace(string(good), "job_result", "verifier_result", 1),
		"oversized":      strings.Repeat("x", 4097),
		"huge":           strings.Repeat("x", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			if signature, err := client.SendRaw([]byte(packet)); !errors.Is(err, signer.ErrRefused) {
				t.Errorf("got %q, %v; want ErrRefused", signature, err)
			}
		})
	}
	if _, err := client.SendRaw(good); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestUnusableStateIsRefusedAndKept covers H10, J03 and J05 for the identity and
// the log: ErrState, and every file as before.
func TestUnusableStateIsRefusedAndKept(t *testing.T) {
	for name, spoil := range spoilers {
		t.Run(name, func(t *testing.T) {
			state := plant(t)
			client := start(t, state)
			for range 3 {
				if _, err := client.Sign(t.Context(), someJob); err != nil {
					t.Fatal(err)
				}
			}
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(state, "identity", "key"), filepath.Join(state, signer.LogName)); err != nil {
				t.Fatal(err)
			}
			before := tree(t, state)
			client, err := tryStart(t, state)
			if err == nil {
				_ = client.Close()
			}
			if !errors.Is(err, signer.ErrState) {
				t.Fatalf("got %v, want ErrState", err)
			}
			after := tree(t, state)
			for path, text := range before {
				if after[path] != text {
					t.Errorf("%s changed", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files, were %d", len(after), len(before))
			}
		})
	}
}

func rewrite(path string, change func(string) string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(change(string(text))), 0o600)
}

// spoilers each make an identity or a log of three signatures unusable.
var spoilers = map[string]func(key, log string) error{
	"key readable for the group":  func(key, _ string) error { return os.Chmod(key+"/key.pem", 0o640) },
	"directory open for others":   func(key, _ string) error { return os.Chmod(key, 0o711) },
	"runtime id open for others":  func(key, _ string) error { return os.Chmod(key+"/runtime_id", 0o644) },
	"key is a link":               func(key, _ string) error { return linked(key + "/key.pem") },
	"directory is a link":         func(key, _ string) error { return linked(key) },
	"key is missing":              func(key, _ string) error { return os.Remove(key + "/key.pem") },
	"runtime id is missing":       func(key, _ string) error { return os.Remove(key + "/runtime_id") },
	"the whole identity is gone":  func(key, _ string) error { return os.RemoveAll(key) },
	"key is a FIFO":               func(key, _ string) error { return replaced(key+"/key.pem", fifo) },
	"key is a directory":          func(key, _ string) error { return replaced(key+"/key.pem", directory) },
	"key is huge":                 func(key, _ string) error { return os.Truncate(key+"/key.pem", 1<<30) },
	"key is empty":                func(key, _ string) error { return os.Truncate(key+"/key.pem", 0) },
	"key is cut":                  func(key, _ string) error { return os.Truncate(key+"/key.pem", 60) },
	"runtime id is another's":     func(key, _ string) error { return rewrite(key+"/runtime_id", otherID) },
	"runtime id is not one":       func(key, _ string) error { return rewrite(key+"/runtime_id", strings.ToUpper) },
	"key is another's":            otherKey,
	"log is missing":              func(_, log string) error { return os.Remove(log) },
	"log is empty":                func(_, log string) error { return os.Truncate(log, 0) },
	"log is a link":               func(_, log string) error { return linked(log) },
	"log is writable for a group": func(_, log string) error { return os.Chmod(log, 0o660) },
	"log has a second name":       func(_, log string) error { return os.Link(log, log+".2") },
	"log's first line is gone": func(_, log string) error {
		return rewrite(log, func(s string) string { return s[strings.Index(s, "\n")+1:] })
	},
	"a line is gone": func(_, log string) error {
		return rewriteLines(log, func(l []string) []string { return append(l[:2], l[3:]...) })
	},
	"a line is twice there": func(_, log string) error {
		return rewriteLines(log, func(l []string) []string { return append(l, l[3]) })
	},
	"two lines changed places": func(_, log string) error { return rewriteLines(log, swapped) },
	"a field was changed": func(_, log string) error {
		return rewrite(log, func(s string) string { return strings.Replace(s, someLease, someID, 1) })
	},
	"a time was changed": func(_, log string) error {
		return rewrite(log, func(s string) string { return strings.Replace(s, `"seq":2,"time":"2`, `"seq":2,"time":"3`, 1) })
	},
	"an empty line": func(_, log string) error { return rewrite(log, func(s string) string { return s + "\n" }) },
	"zeros in the place": func(_, log string) error {
		return rewrite(log, func(s string) string { return s[:300] + strings.Repeat("\x00", 50) + s[350:] })
	},
	"an endless line": func(_, log string) error { return os.Truncate(log, 1<<30) },
}

func otherID(string) string { return "runtime-" + someLease + "\n" }

func swapped(l []string) []string {
	l[2], l[3] = l[3], l[2]
	return l
}

func rewriteLines(log string, change func([]string) []string) error {
	return rewrite(log, func(s string) string {
		return strings.Join(change(strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")), "") + "\n"
	})
}

func linked(path string) error {
	if err := os.Rename(path, path+".real"); err != nil {
		return err
	}
	return os.Symlink(path+".real", path)
}

func replaced(path string, make func(string) error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return make(path)
}

func fifo(path string) error      { return syscall.Mkfifo(path, 0o600) }
func directory(path string) error { return os.Mkdir(path, 0o700) }

// otherKey swaps in a valid key of another identity, name and all.
func otherKey(key, _ string) error {
	other, err := os.MkdirTemp("", "signer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(other)
	seed := make([]byte, 32)
	seed[0] = 1
	if err := signer.Plant(other, seed, someRun); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(other, "identity", "key", "key.pem"))
	if err != nil {
		return err
	}
	return os.WriteFile(key+"/key.pem", text, 0o600)
}

// tree maps each path to its mode and text (of regular files up to 64 kB).
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		seen := info.Mode().String()
		if info.Mode().IsRegular() && info.Size() < 64<<10 {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			seen += string(text)
		}
		found[strings.TrimPrefix(path, root)] = seen
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestKeyOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: giving a file away needs root")
	}
	state := plant(t)
	if err := os.Chown(filepath.Join(state, "identity", "key", "key.pem"), 4321, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := tryStart(t, state); !errors.Is(err, signer.ErrState) {
		t.Fatalf("got %v, want ErrState", err)
	}
}

func TestTornLastLineIsCutAndNoted(t *testing.T) {
	state := plant(t)
	log := filepath.Join(state, signer.LogName)
	client := start(t, state)
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	const torn = `{"seq":2,"time":"2026`
	if err := rewrite(log, func(s string) string { return s + torn }); err != nil {
		t.Fatal(err)
	}
	if records, err := signer.ReadLog(log); err != nil || len(records) != 1 {
		t.Fatalf("beside a writing signer: %d records, %v", len(records), err)
	}
	client = start(t, state)
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatal(err)
	}
	records, err := signer.ReadLog(log)
	if err != nil || len(records) != 2 || records[1].Cut != int64(len(torn)) || records[0].Cut != 0 {
		t.Fatalf("records %+v, %v; want a note of %d bytes in the second", records, err, len(torn))
	}
}

// TestJ04FullDisk fills a small file system: nothing is signed, and it heals.
func TestJ04FullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: mounting a small file system needs root")
	}
	state := t.TempDir()
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skip("not applicable: no mounts here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	client := start(t, state)
	filler := filepath.Join(state, "filler")
	for err := error(nil); err == nil; { // signs until the log's page is full, too
		_ = os.WriteFile(filler, make([]byte, 64<<10), 0o600) // takes what is left
		_, err = client.Sign(t.Context(), someJob)
		if err != nil && !errors.Is(err, signer.ErrLog) {
			t.Fatalf("got %v, want ErrLog", err)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Sign(t.Context(), someJob); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	records, err := signer.ReadLog(filepath.Join(state, signer.LogName))
	if err != nil || records[len(records)-1].Cut == 0 {
		t.Fatalf("the cut is not noted: %+v, %v", records[len(records)-1], err)
	}
	if confine.LandlockABI() == 0 && len(client.Weakenings()) == 0 {
		t.Error("no weakening on a kernel without Landlock")
	}
}
