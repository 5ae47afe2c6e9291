package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/proof"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

const (
	// proveTime bounds all attacks together.
	proveTime = 60 * time.Second
	// maxProofBytes bounds the kept record.
	maxProofBytes = 256 << 10
)

// basis is what a proof was made with. On any other it says nothing, so that
// evidence then names none.
type basis struct {
	Backend       string            `json:"backend"`
	Runtime       string            `json:"runtime"`
	RuntimeSHA256 string            `json:"runtime_sha256"` // of the runtime's file; of an engine's word about itself
	Isolation     sandbox.Isolation `json:"isolation"`
	PolicySHA256  string            `json:"policy_sha256"` // for a job without image and narrowing
	Program       string            `json:"program"`       // our version
	Kernel        string            `json:"kernel"`
}

// proofRecord is what `doctor --prove` saw: STATE/proof.json, and in the
// diagnosis.
type proofRecord struct {
	Basis    basis             `json:"basis"`
	At       time.Time         `json:"at"`
	Controls []sandbox.Control `json:"controls"`
	// SHA256 is empty unless every control was seen enforced.
	SHA256 string `json:"sha256"`
}

// digest covers what was proven and not what varies from run to run: counts,
// times, versions of host software.
func (r proofRecord) digest() (string, error) {
	controls := make([]any, len(r.Controls))
	for i, c := range r.Controls {
		controls[i] = map[string]any{"name": c.Name, "enforced": c.Enforced}
	}
	return canonjson.Hash(map[string]any{
		"backend": r.Basis.Backend, "runtime": r.Basis.Runtime, "isolation": string(r.Basis.Isolation),
		"policy_sha256": r.Basis.PolicySHA256, "controls": controls,
	})
}

func proofFile(state string) string { return filepath.Join(state, "proof.json") }

// basisOf measures what a proof of this report and policy rests on.
func basisOf(report sandbox.Report, policy policies.Policy) (basis, error) {
	effective, err := policy.Effective()
	if err != nil {
		return basis{}, err
	}
	digest, err := effective.Digest("")
	if err != nil {
		return basis{}, err
	}
	runtime, err := hashRuntime(report)
	if err != nil {
		return basis{}, fmt.Errorf("hashing the OCI runtime: %w", err)
	}
	var name unix.Utsname
	_ = unix.Uname(&name)
	return basis{
		Backend: report.Backend, Runtime: report.Runtime, RuntimeSHA256: runtime, Isolation: report.Isolation,
		PolicySHA256: digest, Program: version, Kernel: unix.ByteSliceToString(name.Release[:]),
	}, nil
}

// hashRuntime tells a runtime from any other. The files that an engine runs are
// its own business: what it says of its versions counts.
func hashRuntime(report sandbox.Report) (string, error) {
	info, err := os.Stat(report.Path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return hashFile(report.Path)
	}
	versions := []any{report.Version}
	for _, program := range report.Software {
		versions = append(versions, program.Name+" "+program.Version)
	}
	return canonjson.Hash(versions)
}

func hashFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// prove attacks sandboxes of the chosen runtime and keeps what holds. A proof
// that fails takes an earlier one with it.
func (d *diagnosis) prove(ctx context.Context, s *Settings, c chosen, scaled policies.Policy) error {
	policy, err := s.readPolicy()
	if err != nil {
		return err
	}
	record := proofRecord{At: time.Now().UTC().Truncate(time.Second)}
	if record.Basis, err = basisOf(c.report, policy); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	record.Controls, err = proof.Run(ctx, proof.Config{
		Backend: c.client, Isolation: c.report.Isolation, Limits: scaled.Limits,
		HostWords: []string{s.StateDir, s.CacheDir}, Progress: tellAttack,
	})
	d.Proof = &record
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the attacks took longer than %s: %w", proveTime, err)
	}
	if err == nil {
		err = unenforced(sandbox.Report{Controls: record.Controls})
	}
	if err != nil {
		return errors.Join(err, dropProof(s.StateDir))
	}
	return record.keep(s.StateDir)
}

// tellAttack is progress for whoever waits.
func tellAttack(control string) { fmt.Fprintln(os.Stderr, "attack   "+control) }

// dropProof leaves no proof behind that does not hold any more.
func dropProof(state string) error {
	if err := os.Remove(proofFile(state)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the proof that does not hold any more: %w", err)
	}
	return nil
}

func (r *proofRecord) keep(state string) (err error) {
	if r.SHA256, err = r.digest(); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("%w: keeping the proof: %w", supervisor.ErrState, err)
	}
	if err := durable.WriteFile(proofFile(state), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("%w: keeping the proof: %w", supervisor.ErrState, err)
	}
	return nil
}

// readProof returns the kept proof, if there is one that only its owner could
// have written and whose digest is its own.
func readProof(state string) (r proofRecord, err error) {
	path := proofFile(state)
	if err := ownersOnly(path); err != nil {
		return r, err
	}
	text, err := durable.ReadFile(path, maxProofBytes)
	if err != nil {
		return r, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	digest, err := r.digest()
	if err != nil || digest != r.SHA256 {
		return r, errors.Join(err, fmt.Errorf("%s holds another digest than its controls have", path))
	}
	return r, unenforced(sandbox.Report{Controls: r.Controls})
}

// provenDigest is the digest of the kept proof for evidence, or "" where there
// is none that was made with what runs now; the log says which.
func provenDigest(state string, report sandbox.Report, policy policies.Policy, log *slog.Logger) string {
	if _, err := os.Lstat(proofFile(state)); errors.Is(err, fs.ErrNotExist) {
		log.Info("evidence names no proof of this host: `veyra-sandboxd doctor --prove` makes one")
		return ""
	}
	kept, err := readProof(state)
	var now basis
	if err == nil {
		now, err = basisOf(report, policy)
	}
	if err == nil && kept.Basis != now {
		err = fmt.Errorf("it was made with %+v, this is %+v", kept.Basis, now)
	}
	if err != nil {
		log.Warn("evidence names no proof of this host: make a new one with `veyra-sandboxd doctor --prove`", "why", err)
		return ""
	}
	log.Info("evidence names the proof of this host", "sha256", kept.SHA256, "made", kept.At)
	return kept.SHA256
}

// provenNow is that digest as long as the runtime is the file that it was at the
// start.
func (h *host) provenNow() string {
	if h.fitness != nil && h.fitness.replaced.Load() {
		return ""
	}
	return h.proof
}

// print says what came of each attack.
func (r *proofRecord) print() {
	for _, c := range r.Controls {
		mark := "proven"
		if !c.Enforced {
			mark = "broken"
		}
		fmt.Printf("%-7s  %-22s %s", mark, c.Name, c.Seen)
		if c.Fix != "" {
			fmt.Printf("  → %s", c.Fix)
		}
		fmt.Println()
	}
	if r.SHA256 != "" {
		fmt.Println("proof    " + r.SHA256)
	}
}
