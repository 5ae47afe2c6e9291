package wire

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"
)

var errStalled = errors.New("transfer stalled")

// slowWindows is how many windows may pass with too few bytes in one
// conversation. An idle time-out alone would not end a byte every ten seconds.
const slowWindows = 3

// watch ends a conversation whose bytes do not move. It counts only while a
// body is read or sent: before the answer's header the transport has a
// time-out, and while the receiver takes its time the server is not to blame.
type watch struct {
	moved  atomic.Int64
	active atomic.Bool
}

// watched gives a context that a stall cancels. stop ends the watch and waits
// for its goroutine.
func (r *Remote) watched(ctx context.Context) (_ context.Context, w *watch, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w = &watch{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx, r.cfg.Window, r.cfg.WindowBytes, cancel)
	}()
	return ctx, w, func() {
		cancel(nil)
		<-done
	}
}

func (w *watch) run(ctx context.Context, window time.Duration, least int64, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(window)
	defer tick.Stop()
	for slow := 0; slow <= slowWindows; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if moved := w.moved.Swap(0); w.active.Load() && moved < least {
				slow++
			}
		}
	}
	cancel(errStalled)
}

// incoming counts what is read of an answer's body.
func (w *watch) incoming(r io.Reader) io.Reader {
	w.active.Store(true)
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		w.moved.Add(int64(n))
		return n, err
	})
}

// outgoing counts what is sent of a request's body; at its end the server may
// think as long as the transport waits for a header.
func (w *watch) outgoing(r io.Reader) io.Reader {
	w.active.Store(true)
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		w.moved.Add(int64(n))
		if err != nil {
			w.active.Store(false)
		}
		return n, err
	})
}

// receiver does not count the time that w2 takes.
func (w *watch) receiver(w2 io.Writer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		w.active.Store(false)
		defer w.active.Store(true)
		return w2.Write(p)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
