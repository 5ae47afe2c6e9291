package linux

import (
	"io"
	"os"
	"sync"
)

// Tail keeps the beginning of what PID 1 says to its standard error, which no
// job can reach: a crash of init explains itself there.
type Tail struct {
	mu    sync.Mutex // guards bytes
	bytes []byte
}

// Drain reads f to its end and keeps the first 2 KiB.
func Drain(f *os.File) *Tail {
	t := &Tail{}
	go func() {
		defer f.Close()
		_, _ = io.Copy(t, f) // ends when the last process of the sandbox is dead
	}()
	return t
}

// Write keeps what fits and drops the rest.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = append(t.bytes, b[:min(len(b), 2048-len(t.bytes))]...)
	return len(b), nil
}

// Text is what was kept so far.
func (t *Tail) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.bytes)
}
