package signer

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// LogName is the file in the state directory that holds every signature: one
// JSON text a line. The first line names the identity; each later one holds a
// statement, its signature and the SHA-256 of the line before it.
const LogName = "signing.log"

// Record is one signature in the log.
type Record struct {
	// Seq counts the lines of the log; the first signature has 1.
	Seq uint64
	// Time is when it was signed, UTC, by the host's clock.
	Time time.Time
	// Statement is a Connect, Qualification, JobResult or Verifier.
	Statement Statement
	Signature Signature
	// Cut is how many bytes of an unfinished line before this one were removed.
	// Such a line was never answered.
	Cut int64
}

// line is a record as it is written. Field order is part of the format.
type line struct {
	Seq       uint64          `json:"seq"`
	Time      string          `json:"time"`
	Kind      string          `json:"statement"`
	Fields    json.RawMessage `json:"fields"`
	Signature Signature       `json:"signature,omitempty"`
	Cut       int64           `json:"cut,omitempty"`
	Prev      string          `json:"prev"`
}

// kindBegin is the first line's word; its fields are a begin.
const kindBegin = "begin"

type begin struct {
	RuntimeID protocol.RuntimeID `json:"runtime_id"`
	PublicKey string             `json:"public_key"` // base64url, no padding
}

// maxLine bounds a line with its end; the longest has about 800 bytes.
const maxLine = 4096

// ReadLog returns the signatures of a log after checking all of it: the chain,
// the fields, every signature against the key of the first line. An unfinished
// last line is left out: the signer may be writing it. Anything else wrong is
// ErrState. It may run beside a live signer.
func ReadLog(path string) ([]Record, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the signing log: %w: %w", ErrState, err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("signing log %q is not a regular file: %w", path, ErrState)
	}
	read, err := readLog(file)
	if err != nil {
		return nil, fmt.Errorf("signing log %q: %w", path, err)
	}
	if read.key == nil {
		return nil, fmt.Errorf("signing log %q is empty: %w", path, ErrState)
	}
	return read.records, nil
}

// logContent is a checked log and where to go on writing.
type logContent struct {
	runtimeID protocol.RuntimeID
	key       ed25519.PublicKey // nil before the first line
	records   []Record
	next      uint64 // the next line's Seq
	prev      string // its Prev
	size      int64  // bytes of whole lines
	torn      int64  // bytes after them
}

// genesis is the Prev of the first line.
var genesis = hex.EncodeToString(make([]byte, sha256.Size))

func readLog(from io.Reader) (*logContent, error) {
	read := &logContent{prev: genesis}
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		text, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			read.torn = int64(len(text))
			return read, nil
		case err != nil:
			return nil, fmt.Errorf("line %d: %w: %w", read.next, ErrState, err)
		}
		if err := read.take(text[:len(text)-1]); err != nil {
			return nil, fmt.Errorf("line %d: %w", read.next, err)
		}
	}
}

// take checks one line against all before it.
func (c *logContent) take(text []byte) error {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("not a record: %w", ErrState)
	}
	if l.Seq != c.next || l.Prev != c.prev {
		return fmt.Errorf("chain is broken: %w", ErrState)
	}
	at, err := time.Parse(time.RFC3339Nano, l.Time)
	if err != nil {
		return fmt.Errorf("time: %w", ErrState)
	}
	again, err := c.takeFields(&l, at)
	if err != nil {
		return err
	}
	l.Fields = again
	// What was read must be what would be written, or the same record could
	// stand there in two forms.
	if whole, err := json.Marshal(l); err != nil || !bytes.Equal(whole, text) {
		return fmt.Errorf("not in the form that is written: %w", ErrState)
	}
	c.advance(text)
	return nil
}

func (c *logContent) advance(text []byte) {
	c.next++
	c.prev = lineHash(text)
	c.size += int64(len(text)) + 1
}

func lineHash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// takeFields returns the fields as they would be written.
func (c *logContent) takeFields(l *line, at time.Time) ([]byte, error) {
	if l.Seq == 0 {
		return c.takeBegin(l)
	}
	statement, err := parseStatement(l.Kind, l.Fields)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	text, err := statement.text()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	if !l.Signature.valid(c.key, text) {
		return nil, fmt.Errorf("signature does not fit the statement: %w", ErrState)
	}
	c.records = append(c.records, Record{
		Seq: l.Seq, Time: at, Statement: statement, Signature: l.Signature, Cut: l.Cut,
	})
	return json.Marshal(statement)
}

func (c *logContent) takeBegin(l *line) ([]byte, error) {
	var first begin
	if l.Kind != kindBegin || l.Signature != "" || json.Unmarshal(l.Fields, &first) != nil {
		return nil, fmt.Errorf("first line names no identity: %w", ErrState)
	}
	key, err := base64.RawURLEncoding.Strict().DecodeString(first.PublicKey)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("first line's public key: %w", ErrState)
	}
	if _, err := protocol.ParseRuntimeID(string(first.RuntimeID)); err != nil {
		return nil, fmt.Errorf("first line: %w: %w", ErrState, err)
	}
	c.runtimeID, c.key = first.RuntimeID, key
	return json.Marshal(first)
}
