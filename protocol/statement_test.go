package protocol_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

type signedCase struct {
	What         string `json:"what"`
	Message      string `json:"message"`
	Signature    string `json:"signature"`
	FilesHash    string `json:"files_hash"`
	EvidenceHash string `json:"evidence_hash"`
	ReportHash   string `json:"report_hash"`

	Files    json.RawMessage `json:"files"`
	Evidence json.RawMessage `json:"evidence"`
	Report   json.RawMessage `json:"report"`
}

type signedCases struct {
	Seed      string       `json:"seed_hex"`
	PublicKey string       `json:"public_key"`
	Cases     []signedCase `json:"cases"`
}

func readSignatures(t *testing.T) (signedCases, ed25519.PrivateKey) {
	t.Helper()
	text, err := os.ReadFile("testdata/signatures.json")
	if err != nil {
		t.Fatal(err)
	}
	var all signedCases
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(all.Seed)
	if err != nil {
		t.Fatal(err)
	}
	return all, ed25519.NewKeyFromSeed(seed)
}

// state makes the text of a recorded case from its fields.
func state(c signedCase) (string, error) {
	const challenge = "ccccccccccccccccccccccccccccccccccccccccccc"
	switch c.What {
	case "connect":
		return protocol.ConnectStatement(challenge, "runtime-"+uuidA)
	case "qualification":
		return protocol.QualificationStatement(uuidA, c.FilesHash, 0)
	case "job result":
		return protocol.JobResultStatement(uuidA, uuidB, c.EvidenceHash)
	case "verifier result":
		return protocol.VerifierStatement(uuidA, uuidB, c.ReportHash)
	}
	return "", errors.New("unknown case")
}

// TestHashVectors: the hashes in the statements are those of the bodies.
func TestHashVectors(t *testing.T) {
	all, _ := readSignatures(t)
	hashed := 0
	for _, c := range all.Cases {
		want := c.FilesHash + c.EvidenceHash + c.ReportHash
		body := append(append(append([]byte{}, c.Files...), c.Evidence...), c.Report...)
		if want == "" {
			continue
		}
		hashed++
		text, err := canonjson.Canonicalise(body)
		if err != nil {
			t.Fatalf("%s: %v", c.What, err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != strings.TrimPrefix(want, "0x") {
			t.Errorf("%s: hash %s, want %s", c.What, got, want)
		}
	}
	if hashed != 3 {
		t.Errorf("%d bodies", hashed)
	}
}

func TestStatementVectors(t *testing.T) {
	all, key := readSignatures(t)
	if len(all.Cases) != 4 {
		t.Fatalf("%d cases", len(all.Cases))
	}
	for _, c := range all.Cases {
		t.Run(c.What, func(t *testing.T) {
			got, err := state(c)
			if err != nil || got != c.Message {
				t.Fatalf("text %q, error %v, want %q", got, err, c.Message)
			}
			signature := base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(got)))
			if signature != c.Signature {
				t.Errorf("signature %s, want %s", signature, c.Signature)
			}
		})
	}
}

// TestNothingElseIsStated covers attack case H06.
func TestNothingElseIsStated(t *testing.T) {
	hash := strings.Repeat("a", 64)
	text := func(_ string, err error) error { return err }
	runtimeID := protocol.RuntimeID("runtime-" + uuidA)
	tests := map[string]error{
		"23 characters":     text(protocol.ConnectStatement(strings.Repeat("c", 23), runtimeID)),
		"257 characters":    text(protocol.ConnectStatement(strings.Repeat("c", 257), runtimeID)),
		"another message":   text(protocol.ConnectStatement("veyra-job-result-v1:"+uuidA+":"+uuidB+":0x"+hash, runtimeID)),
		"newline":           text(protocol.ConnectStatement(strings.Repeat("c", 30)+"\n", runtimeID)),
		"nul":               text(protocol.ConnectStatement(strings.Repeat("c", 30)+"\x00", runtimeID)),
		"multi-byte":        text(protocol.ConnectStatement(strings.Repeat("\u00e9", 30), runtimeID)),
		"bad utf-8":         text(protocol.ConnectStatement(strings.Repeat("\xff", 30), runtimeID)),
		"padding":           text(protocol.ConnectStatement(strings.Repeat("c", 30)+"=", runtimeID)),
		"runtime id":        text(protocol.ConnectStatement(strings.Repeat("c", 30), "runtime-x")),
		"empty runtime id":  text(protocol.ConnectStatement(strings.Repeat("c", 30), "")),
		"qualification id":  text(protocol.QualificationStatement("a:b", hash, 0)),
		"0x before files":   text(protocol.QualificationStatement(uuidA, "0x"+hash, 0)),
		"upper hash":        text(protocol.QualificationStatement(uuidA, strings.ToUpper(hash), 0)),
		"63 digits":         text(protocol.QualificationStatement(uuidA, hash[1:], 0)),
		"assignment id":     text(protocol.JobResultStatement("../x", uuidB, "0x"+hash)),
		"lease id":          text(protocol.JobResultStatement(uuidA, "", "0x"+hash)),
		"no 0x":             text(protocol.JobResultStatement(uuidA, uuidB, hash)),
		"0X":                text(protocol.JobResultStatement(uuidA, uuidB, "0X"+hash)),
		"hash with newline": text(protocol.JobResultStatement(uuidA, uuidB, "0x"+hash[1:]+"\n")),
		"verification id":   text(protocol.VerifierStatement(uuidA+":", uuidB, "0x"+hash)),
	}
	for name, err := range tests {
		if !errors.Is(err, protocol.ErrStatement) {
			t.Errorf("%s: error = %v", name, err)
		}
	}
	for _, n := range []int{24, 256} {
		if _, err := protocol.ConnectStatement(strings.Repeat("-", n), runtimeID); err != nil {
			t.Errorf("%d characters: %v", n, err)
		}
	}
	if got, err := protocol.QualificationStatement(uuidA, hash, -1); err != nil || !strings.HasSuffix(got, ":-1") {
		t.Errorf("negative code: %q, %v", got, err)
	}
}
