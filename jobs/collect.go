package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// maxCollected bounds the entries of an upper layer; what a job leaves in
// ignored directories counts, too.
const maxCollected = 100_000

// collect reads the upper layer out after everything in the sandbox is dead,
// through a spool file: nothing of it is held in memory.
func (j *job) collect(ctx context.Context, b based, place sandbox.Sandbox, result coding.Result) (collected, error) {
	defer j.step("collect")()
	c := collected{based: b, spool: j.spoolPath(spoolName(j.facts.rounds)), ended: result.Ended}
	file, err := os.OpenFile(c.spool, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return c, fmt.Errorf("making a spool file: %w", err)
	}
	defer file.Close()
	if err := collectError(place.Collect(ctx, file)); err != nil {
		return c, err
	}
	uppers, err := j.readSpool(file, b.rules.Policy.Limits)
	if err != nil {
		return c, err
	}
	c.uppers = make(map[string]gitops.Upper, len(uppers))
	for _, u := range uppers {
		c.uppers[u.Path] = u
	}
	c.changes = gitops.Compare(b.manifest, uppers)
	if len(c.changes.Changes) == 0 && len(c.changes.Unsupported) == 0 {
		return c, nothingChanged(result, c.spool)
	}
	return c, nil
}

// collectError: what the backend refuses to collect is the job's doing, for
// example an attribute that would make the tree mean more than it shows (attack
// case E08), and no fault of the sandbox.
func collectError(err error) error {
	if sandbox.KindOf(err) == sandbox.KindRefused {
		return fail(protocol.CodeChangeUnsupported, "collecting the change", err)
	}
	if err != nil {
		return fmt.Errorf("collecting the change: %w", err)
	}
	return nil
}

// nothingChanged: a budget that ran out before anything was changed is told as
// that budget.
func nothingChanged(result coding.Result, spool string) error {
	if result.Ended != "" {
		return &coding.Error{Kind: coding.BudgetUsed, Budget: result.Ended}
	}
	return &returnedError{
		cause: fail(protocol.CodeEmptyDiff, "collecting the change", errors.New("no file differs from the base tree")),
		why:   "Nothing was changed. Make the change that the task asks for.",
	}
}

// readSpool hashes each file and looks for the exact secrets of this host.
func (j *job) readSpool(file *os.File, limits policies.Limits) ([]gitops.Upper, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the change: %w", err)
	}
	in, err := treestream.NewReader(file, treestream.Limits{Entries: maxCollected, Bytes: limits.ChangeBytes})
	if err != nil {
		return nil, fmt.Errorf("reading the change: %w", err)
	}
	var uppers []gitops.Upper
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			return uppers, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the change: %w", err)
		}
		upper, err := j.readEntry(in, entry)
		if err != nil {
			return nil, err
		}
		uppers = append(uppers, upper)
	}
}

func (j *job) readEntry(in *treestream.Reader, e treestream.Entry) (gitops.Upper, error) {
	u := gitops.Upper{Path: e.Path, Kind: upperKind(e), Exec: e.Mode&0o100 != 0, Size: e.Size}
	if u.Kind != gitops.UpperFile {
		return u, nil
	}
	// What the redactor would change holds a secret.
	digest, redacted := sha256.New(), sha256.New()
	scan := j.cfg.Secrets.Writer(redacted)
	if _, err := io.Copy(io.MultiWriter(digest, scan), in); err != nil {
		return u, fmt.Errorf("reading the change: %w", err)
	}
	_ = scan.Close() // a hash takes everything
	copy(u.SHA256[:], digest.Sum(nil))
	if !bytes.Equal(digest.Sum(nil), redacted.Sum(nil)) || j.cfg.Secrets.Contains([]byte(e.Path)) {
		return u, fail(protocol.CodeSecretsFound, "scanning the change", errors.New("a changed file holds one of this runtime's secrets"))
	}
	return u, nil
}

func upperKind(e treestream.Entry) gitops.UpperKind {
	switch e.Kind {
	case treestream.File:
		if e.Links > 1 {
			return gitops.UpperOther
		}
		return gitops.UpperFile
	case treestream.Dir:
		return gitops.UpperDir
	case treestream.Delete:
		return gitops.UpperGone
	case treestream.Opaque:
		return gitops.UpperOpaque
	}
	return gitops.UpperOther
}
