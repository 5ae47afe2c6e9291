package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/internal/initwire/initwiretest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
)

// peer speaks frames with an init, rules or no rules.
type peer struct {
	*initwire.Writer
	frames *initwire.Reader
	init   *initwiretest.Init
}

func dial(t *testing.T) *peer {
	t.Helper()
	i := initwiretest.Start(t, initwiretest.Options{})
	p := &peer{initwire.NewWriter(i.Stdin), initwire.NewReader(i.Stdout), i}
	if f := p.next(t); f.Type != initwire.HelloFrame {
		t.Fatalf("first frame is of type %d", f.Type)
	}
	return p
}

func (p *peer) next(t *testing.T) initwire.Frame {
	t.Helper()
	f, err := p.frames.Next()
	if err != nil {
		t.Fatalf("reading frame: %v", err)
	}
	return f
}

func (p *peer) send(t *testing.T, kind initwire.Type, command uint32, payload []byte) {
	t.Helper()
	if err := p.Write(kind, command, payload); err != nil {
		t.Fatal(err)
	}
}

// gone waits for the end of init and returns its last words.
func (p *peer) gone(t *testing.T) string {
	t.Helper()
	for {
		if _, err := p.frames.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	<-p.init.Ended()
	return p.init.LastWords()
}

func script(text string) []byte {
	return initwire.Command{
		Flags: initwire.Merged | initwire.NoStdin, Dir: "/workspace", Argv: []string{"sh", "-c", text},
		Env: []string{"PATH=/usr/bin:/bin"},
	}.Encode()
}

func TestSilenceEndsEverything(t *testing.T) {
	p := dial(t)
	p.send(t, initwire.Start, 1, script("setsid sleep 1000 & echo up; sleep 1000"))
	p.next(t)
	p.send(t, initwire.Ping, 0, initwire.Silence(50*time.Millisecond))
	if words := p.gone(t); !strings.Contains(words, "no frame came in time") {
		t.Errorf("last words %q", words)
	}
}

func TestPingsKeepItAlive(t *testing.T) {
	p := dial(t)
	p.send(t, initwire.Ping, 0, initwire.Silence(3*time.Second))
	p.send(t, initwire.Start, 1, script("sleep 4; echo alive"))
	stop := make(chan struct{})
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = p.Write(initwire.Ping, 0, nil)
			case <-stop:
				return
			}
		}
	}()
	defer close(stop)
	if f := p.next(t); string(f.Payload) != "alive\n" {
		t.Errorf("frame %d %q", f.Type, f.Payload)
	}
}

func TestSilenceCannotBeLengthened(t *testing.T) {
	p := dial(t)
	// In one piece: between two of them it may end, and the second find no reader.
	var both bytes.Buffer
	w := initwire.NewWriter(&both)
	for _, silence := range []time.Duration{50 * time.Millisecond, time.Hour} {
		if err := w.Write(initwire.Ping, 0, initwire.Silence(silence)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.init.Stdin.Write(both.Bytes()); err != nil {
		t.Fatal(err)
	}
	p.gone(t)
}

func TestBrokenRulesEndEverything(t *testing.T) {
	long := script("sleep 1000")
	for name, frames := range map[string]func(t *testing.T, p *peer){
		"unknown type":   func(t *testing.T, p *peer) { p.send(t, 99, 0, nil) },
		"init's own":     func(t *testing.T, p *peer) { p.send(t, initwire.Exited, 1, nil) },
		"odd ping":       func(t *testing.T, p *peer) { p.send(t, initwire.Ping, 0, []byte("x")) },
		"odd command":    func(t *testing.T, p *peer) { p.send(t, initwire.Start, 1, []byte("x")) },
		"two at a time":  func(t *testing.T, p *peer) { p.send(t, initwire.Start, 1, long); p.send(t, initwire.Start, 2, long) },
		"number again":   func(t *testing.T, p *peer) { p.send(t, initwire.Start, 0, long) },
		"future command": func(t *testing.T, p *peer) { p.send(t, initwire.Cancel, 7, nil) },
		"too much input": func(t *testing.T, p *peer) {
			c := initwire.Command{Dir: "/tmp", Argv: []string{"/bin/sleep", "1000"}}
			p.send(t, initwire.Start, 1, c.Encode())
			// The pipe holds 64 KiB, so that more than both was sent for sure.
			for range 8 {
				if p.Write(initwire.Stdin, 1, make([]byte, initwire.MaxPayload)) != nil {
					return // it is gone already
				}
			}
		},
		"endless command": func(t *testing.T, p *peer) {
			for range 17 {
				if p.Write(initwire.Part, 1, make([]byte, initwire.MaxPayload)) != nil {
					return
				}
			}
		},
		"outside directory": func(t *testing.T, p *peer) {
			p.send(t, initwire.Start, 1, initwire.Command{Dir: "/proc/self/fd/3", Argv: []string{"true"}}.Encode())
		},
		"frame of 4 GiB": func(t *testing.T, p *peer) {
			if _, err := p.init.Stdin.Write([]byte("\xff\xff\xff\xff\x01\x00\x00\x00\x00")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t)
			frames(t, p)
			if words := p.gone(t); !strings.Contains(words, initwire.ErrFrame.Error()) {
				t.Errorf("last words %q", words)
			}
		})
	}
}

func TestFramesForAnEarlierCommandMeanNothing(t *testing.T) {
	p := dial(t)
	p.send(t, initwire.Start, 1, script("exit 1"))
	if f := p.next(t); f.Type != initwire.Exited {
		t.Fatalf("frame %d", f.Type)
	}
	p.send(t, initwire.Cancel, 1, nil)
	p.send(t, initwire.Stdin, 1, []byte("late"))
	p.send(t, initwire.Start, 2, script("exit 2"))
	f := p.next(t)
	exit, err := initwire.DecodeExit(f.Payload)
	if err != nil || f.Command != 2 || exit != (initwire.Exit{Status: 2 << 8}) {
		t.Errorf("frame %d of command %d: %+v, %v", f.Type, f.Command, exit, err)
	}
}

// A supervisor that takes no output for a while gets all of it, although the
// command is over and a left-over still holds its pipe.
func TestSlowReaderLosesNothing(t *testing.T) {
	p := dial(t)
	const size = 150_000 // more than one pipe, less than all that is between
	p.send(t, initwire.Start, 1, script("setsid sh -c 'sleep 0.3; : > /tmp/later; sleep 1000' & head -c 150000 /dev/zero; exit 0"))
	// The file is made long after the drain is over.
	waittest.Until(t, "the left-over goes on", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/later", p.init.PID))
		return err == nil
	})
	got := 0
	for f := p.next(t); f.Type == initwire.Stdout; f = p.next(t) {
		got += len(f.Payload)
	}
	if got != size {
		t.Errorf("%d of %d bytes", got, size)
	}
}
