// Package frame writes and reads length-prefixed frames: a 32-bit big-endian
// length of the payload, an 8-bit type, the payload. Both ends of a pipe into a
// sandbox speak them, so a reader trusts no length. The package knows no types;
// who speaks them names them. Start reading at Read.
package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const headerSize = 5

// ErrTooLarge is matched by every *TooLongError.
var ErrTooLarge = errors.New("frame too large")

// TooLongError is a frame whose announced payload is longer than the reader
// allows. Nothing of the payload has been read, so the stream is of no more use.
type TooLongError struct{ Size, Max int64 }

// Error gives both sizes in bytes.
func (e *TooLongError) Error() string {
	return fmt.Sprintf("frame of %d bytes: at most %d are allowed", e.Size, e.Max)
}

// Unwrap returns ErrTooLarge.
func (e *TooLongError) Unwrap() error { return ErrTooLarge }

// Write writes one frame in a single call of w.Write, so that frames of
// several goroutines under one lock never mix.
func Write(w io.Writer, typ byte, payload []byte) error {
	if uint64(len(payload)) > math.MaxUint32 {
		return &TooLongError{Size: int64(len(payload)), Max: math.MaxUint32}
	}
	b := make([]byte, headerSize, headerSize+len(payload))
	binary.BigEndian.PutUint32(b, uint32(len(payload)))
	b[4] = typ
	_, err := w.Write(append(b, payload...))
	return err
}

// Read reads one frame whose payload has at most max bytes. It gives io.EOF
// between frames and io.ErrUnexpectedEOF inside one.
func Read(r io.Reader, max int) (typ byte, payload []byte, err error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > int64(max) {
		return 0, nil, &TooLongError{Size: n, Max: int64(max)}
	}
	if payload, err = readPayload(r, n); err != nil {
		return 0, nil, err
	}
	return head[4], payload, nil
}

// eagerSize is what a mere announcement may make a reader allocate.
const eagerSize = 64 << 10

// readPayload allocates small payloads at once and lets large ones grow with
// what arrives: a peer that announces much and sends nothing costs nothing.
func readPayload(r io.Reader, n int64) ([]byte, error) {
	if n <= eagerSize {
		payload := make([]byte, n)
		_, err := io.ReadFull(r, payload)
		return payload, inside(err)
	}
	var buf bytes.Buffer
	_, err := io.CopyN(&buf, r, n)
	return buf.Bytes(), inside(err)
}

// inside says of an end that it came inside a frame.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
