// Package initwire is what the supervisor and veyra-init say to each other over
// the three pipes of a sandbox: frames, and the few payloads that have a form.
// It knows neither processes nor sandboxes, and it must stay small, since PID 1
// of every sandbox is made of it. Start reading at Type.
package initwire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Sizes in bytes. A whole frame fits into the default capacity of a pipe.
const (
	// HeaderBytes come before each payload: u32 length of the payload, u8 type,
	// u32 command, big endian.
	HeaderBytes = 9
	// MaxPayload is the largest payload; a frame is at most 64 KiB.
	MaxPayload = 64<<10 - HeaderBytes
	// StdinWindow is how much standard input may be on its way without a
	// Credit. It bounds what PID 1 holds for a child that does not read.
	StdinWindow = 256 << 10
	// MaxCommand bounds an encoded Command over all its Part frames.
	MaxCommand = 1 << 20
)

// Type says what a frame means.
type Type uint8

// Frames to init. Command is 0 where it has no meaning.
const (
	// Ping keeps the dead-man switch open. A payload of four bytes shortens the
	// silence after which init ends everything to that many milliseconds.
	Ping Type = 1
	// Part carries the beginning of an encoded Command.
	Part Type = 2
	// Start carries the rest of an encoded Command and runs it. At most one
	// command runs at a time; its number is above all earlier ones.
	Start Type = 3
	// Stdin carries input for the command, inside the window.
	Stdin Type = 4
	// StdinEnd says that no more input comes.
	StdinEnd Type = 5
	// Cancel kills every process of the sandbox but init. The Exit still comes.
	Cancel Type = 6
)

// Frames from init.
const (
	// HelloFrame is the first frame: an encoded Hello.
	HelloFrame Type = 16
	// Stdout and Stderr carry output; a merged command has only Stdout.
	Stdout Type = 17
	Stderr Type = 18
	// Credit allows so many more bytes of Stdin (u32).
	Credit Type = 19
	// StdinClosed says that nobody reads input any more.
	StdinClosed Type = 20
	// Exited is the last frame of a command: an encoded Exit.
	Exited Type = 21
)

// EndPatience bounds how long init waits for processes to die of SIGKILL. After a
// Cancel it has sent the Exit by then, or has ended and the sandbox with it.
const EndPatience = 10 * time.Second

// ErrFrame is in the chain of every error about a frame or payload that breaks
// the rules of this package. Whoever sees one stops talking.
var ErrFrame = errors.New("malformed frame")

// Frame is one frame. Payload belongs to the reader until its next call.
type Frame struct {
	Type    Type
	Command uint32
	Payload []byte
}

// Reader reads frames. It is used by one goroutine.
type Reader struct {
	r    *bufio.Reader // many small frames come with one read
	head [HeaderBytes]byte
	buf  []byte
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, HeaderBytes+MaxPayload), buf: make([]byte, MaxPayload)}
}

// Next returns the next frame. The error is io.EOF between two frames and
// io.ErrUnexpectedEOF inside one.
func (r *Reader) Next() (Frame, error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(r.head[0:4])
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("reading frame of %d bytes: %w", n, ErrFrame)
	}
	payload := r.buf[:n]
	if _, err := io.ReadFull(r.r, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return Frame{Type(r.head[4]), binary.BigEndian.Uint32(r.head[5:9]), payload}, nil
}

// Writer writes frames, each with one call of Write, so that frames of several
// goroutines never mix. All methods may be called at once.
type Writer struct {
	mu  sync.Mutex // guards w and buf
	w   io.Writer
	buf []byte
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, buf: make([]byte, HeaderBytes+MaxPayload)}
}

// Write sends one frame. It blocks while the pipe is full, which is how a slow
// reader slows down the job.
func (w *Writer) Write(t Type, command uint32, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("writing frame of %d bytes: %w", len(payload), ErrFrame)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	binary.BigEndian.PutUint32(w.buf[0:4], uint32(len(payload)))
	w.buf[4] = byte(t)
	binary.BigEndian.PutUint32(w.buf[5:9], command)
	n := copy(w.buf[HeaderBytes:], payload)
	_, err := w.w.Write(w.buf[:HeaderBytes+n])
	return err
}
