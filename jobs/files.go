package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
)

// Bounds of a run's own record, in bytes.
const (
	maxLog        = 8 << 20
	maxTranscript = 32 << 20
	maxPatch      = 8 << 20
)

// files is the record of a run on disk: log and transcript, redacted and
// capped, 0600. A record that can't be written is told once and is no reason
// to stop a paid job.
type files struct {
	dir        string
	log        *recordFile
	transcript *recordFile
}

func openFiles(secrets *redact.Set, dir string, log *slog.Logger) *files {
	return &files{
		dir:        dir,
		log:        openRecord(secrets, filepath.Join(dir, "log"), maxLog, log),
		transcript: openRecord(secrets, filepath.Join(dir, "transcript"), maxTranscript, log),
	}
}

// say writes one line of our own words to the log. Strangers' texts in it are
// quoted by the caller.
func (f *files) say(format string, args ...any) {
	line := time.Now().UTC().Format("15:04:05.000 ") + fmt.Sprintf(format, args...) + "\n"
	_, _ = io.WriteString(f.log, line)
}

// closeLog ends the log and returns the SHA-256 of the bytes that are stored.
func (f *files) closeLog() string { return f.log.close() }

func (f *files) close() {
	f.log.close()
	f.transcript.close()
}

// recordFile writes through the redactor into a capped file whose stored bytes
// it hashes. Its Write never fails and may be called by several goroutines.
type recordFile struct {
	mu      sync.Mutex
	file    *os.File
	out     io.WriteCloser // redacts, then calls store
	sum     hash.Hash
	left    int64
	marked  bool
	closed  bool
	problem error
}

// openRecord goes on with the record of an earlier execution of the run, which
// a restart must not wipe out: the hash is over all that is stored.
func openRecord(secrets *redact.Set, name string, limit int64, log *slog.Logger) *recordFile {
	r := &recordFile{sum: sha256.New(), left: limit}
	r.out = secrets.Writer(storer{r})
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		log.Warn("the job's record can't be written", "error", err)
		return r
	}
	r.file = file
	stored, err := io.Copy(r.sum, file)
	if err != nil {
		log.Warn("the job's earlier record can't be read", "error", err)
	}
	r.left = max(limit-stored, 0)
	return r
}

// A change set on its way from one sandbox to the next lies in the run's
// directory until the execution ends: the patch is what is kept.
const spoolPrefix, spoolSuffix = "change-", ".tree"

func spoolName(round int) string { return fmt.Sprintf("%s%d%s", spoolPrefix, round, spoolSuffix) }

// dropSpools removes what an execution spooled, which may be large.
func dropSpools(dir string, log *slog.Logger) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		log.Warn("the run's directory can't be read", "error", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), spoolPrefix) && strings.HasSuffix(e.Name(), spoolSuffix) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the sweep of old runs takes what stays
		}
	}
}

// storer is the end behind the redactor; the record's lock is held.
type storer struct{ r *recordFile }

func (s storer) Write(p []byte) (int, error) {
	n := len(p)
	if int64(n) > s.r.left {
		p = p[:s.r.left]
		if !s.r.marked {
			s.r.marked = true
			p = append(append([]byte(nil), p...), "\n[the rest is left out]\n"...)
		}
		s.r.left = 0
	} else {
		s.r.left -= int64(n)
	}
	s.r.sum.Write(p)
	if s.r.file != nil {
		if _, err := s.r.file.Write(p); err != nil && s.r.problem == nil {
			s.r.problem = err
		}
	}
	return n, nil
}

func (r *recordFile) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.left == 0 && r.marked // nothing more is stored, so nothing is searched for secrets
	if !r.closed && !full {
		_, _ = r.out.Write(p)
	}
	return len(p), nil
}

// close may be called more than once and always returns the hash.
func (r *recordFile) close() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		_ = r.out.Close()
		if r.file != nil {
			_ = r.file.Sync()
			_ = r.file.Close()
		}
	}
	return hex.EncodeToString(r.sum.Sum(nil))
}
