package signer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ledger writes the signing log through its one append-only descriptor. It
// belongs to the signer's single thread of work.
type ledger struct {
	fd   int
	next uint64 // Seq of the next line
	prev string // its Prev
	size int64  // bytes of whole, synced lines
	cut  int64  // bytes removed since the last line
	// dirty says that bytes after size may be in the file: a write or sync
	// failed. They were never answered and go before anything else is written.
	dirty bool
}

// openLedger checks the log behind fd, which is open for appending only, and
// removes an unfinished last line. It must run before the lock-down.
func openLedger(fd int) (*ledger, *logContent, error) {
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the signing log: %w: %w", ErrState, err)
	}
	defer file.Close()
	read, err := readLog(file)
	if err != nil {
		return nil, nil, fmt.Errorf("signing log: %w", err)
	}
	l := &ledger{fd: fd, next: read.next, prev: read.prev, size: read.size, cut: read.torn, dirty: read.torn > 0}
	return l, read, l.repair()
}

// repair removes what lies after the last whole line. A crash here leaves the
// same bytes, and the next start comes here again.
func (l *ledger) repair() error {
	if !l.dirty {
		return nil
	}
	if err := unix.Ftruncate(l.fd, l.size); err != nil {
		return fmt.Errorf("cutting an unfinished line: %w: %w", ErrLog, err)
	}
	if err := unix.Fsync(l.fd); err != nil {
		return fmt.Errorf("cutting an unfinished line: %w: %w", ErrLog, err)
	}
	l.dirty = false
	return nil
}

// restart empties a log that names an identity which was never made.
func (l *ledger) restart() error {
	*l = ledger{fd: l.fd, prev: genesis, dirty: true}
	return l.repair()
}

func (l *ledger) begin(id *identity) error {
	fields, err := json.Marshal(begin{
		RuntimeID: id.runtimeID,
		PublicKey: base64.RawURLEncoding.EncodeToString(id.public()),
	})
	if err != nil {
		return fmt.Errorf("encoding the identity: %w", err)
	}
	return l.append(line{Kind: kindBegin, Fields: fields})
}

func (l *ledger) record(s Statement, signature Signature) error {
	fields, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding a statement: %w", err)
	}
	return l.append(line{Kind: s.kind(), Fields: fields, Signature: signature})
}

// append writes one line and syncs it. After an error the line counts as not
// written, whatever the disk holds: nobody was answered.
func (l *ledger) append(next line) error {
	if err := l.repair(); err != nil {
		return err
	}
	next.Seq, next.Prev, next.Cut = l.next, l.prev, l.cut
	next.Time = time.Now().UTC().Format(time.RFC3339Nano)
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	l.dirty = true
	n, err := unix.Write(l.fd, append(text, '\n'))
	l.cut += int64(max(n, 0))
	if err == nil && n != len(text)+1 {
		err = io.ErrShortWrite // the disk is full
	}
	if err != nil {
		return fmt.Errorf("writing: %w: %w", ErrLog, err)
	}
	if err := unix.Fsync(l.fd); err != nil {
		return fmt.Errorf("syncing: %w: %w", ErrLog, err)
	}
	l.next, l.prev = l.next+1, lineHash(text)
	l.size += int64(len(text)) + 1
	l.cut, l.dirty = 0, false
	return nil
}
