package signer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// FuzzDecodeRequest: what parses is exactly what is written for the statement,
// and its text, if it has one, is of one kind only.
func FuzzDecodeRequest(f *testing.F) {
	for i, statement := range []signer.Statement{
		connect(strings.Repeat("c", 43)), someJob,
		signer.Qualification{ID: someID, FilesHash: someHex, Code: 1},
		signer.Verifier{ID: someID, Lease: someLease, ReportHash: someHash},
	} {
		packet, err := signer.EncodeRequest(uint64(i), statement)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet)
	}
	f.Add([]byte(`{"n":18446744073709551616,"statement":"connect","fields":null}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		n, statement, err := signer.DecodeRequest(packet)
		if err != nil {
			return
		}
		again, err := signer.EncodeRequest(n, statement)
		if err != nil || !bytes.Equal(again, packet) {
			t.Fatalf("%q prints as %q, %v", packet, again, err)
		}
		text, err := signer.Text(statement)
		if err != nil {
			return
		}
		words := map[int]bool{3: true, 4: true}
		if parts := strings.Split(text, ":"); !words[len(parts)] || strings.ContainsAny(text, "\n\x00 ") {
			t.Fatalf("text %q can be read in two ways", text)
		}
	})
}

// FuzzReadLog: whatever is behind a whole log, the log is refused, or cut back to
// whole lines that say the same again.
func FuzzReadLog(f *testing.F) {
	state := f.TempDir()
	if err := signer.Plant(state, make([]byte, 32), someRun); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(state, signer.LogName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(string(text) + "{")
	f.Add("")
	f.Fuzz(func(t *testing.T, log string) {
		whole, err := signer.CheckLog(log)
		if err != nil {
			return
		}
		if strings.Contains(log[whole:], "\n") {
			t.Fatalf("a whole line is left out: %q", log[whole:])
		}
		if again, err := signer.CheckLog(log[:whole]); err != nil || again != whole {
			t.Fatalf("cut to %d, read again %d, %v", whole, again, err)
		}
	})
}
