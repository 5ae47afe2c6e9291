// Package frame writes and reads length-prefixed frames: a 32-bit big-endian
// length of the payload, an 8-bit type, the payload. It knows no types; who
// speaks them names them. Start reading at Read.
package frame

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

const headerSize = 5

// TooLongError is a frame whose announced payload is longer than the reader
// allows. Nothing of the payload has been read.
type TooLongError struct{ Size, Max int64 }

// Error gives both sizes in bytes.
func (e *TooLongError) Error() string {
	return fmt.Sprintf("frame of %d bytes: at most %d are allowed", e.Size, e.Max)
}

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
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(max) {
		return 0, nil, &TooLongError{Size: int64(n), Max: int64(max)}
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return head[4], payload, nil
}
