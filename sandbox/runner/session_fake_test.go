package runner_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// fakeInit is the far end of a Session that breaks what a real init keeps.
type fakeInit struct {
	*initwire.Writer
	in     *io.PipeReader
	out    *io.PipeWriter
	frames *initwire.Reader
}

func fake() (f *fakeInit, stdin io.WriteCloser, stdout io.ReadCloser) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	return &fakeInit{initwire.NewWriter(outW), inR, outW, initwire.NewReader(inR)}, inW, outR
}

// hang ends the pipes as the end of PID 1 does.
func (f *fakeInit) hang() { _, _ = f.in.Close(), f.out.Close() }

// next skips pings.
func (f *fakeInit) next() (initwire.Frame, error) {
	for {
		frame, err := f.frames.Next()
		if err != nil || frame.Type != initwire.Ping {
			return frame, err
		}
	}
}

const goodStatus = "Uid:\t0 0 0 0\nGid:\t0 0 0 0\nGroups:\t\nNoNewPrivs:\t1\nSeccomp:\t2\n" +
	"CapInh:\t0\nCapPrm:\t1e0\nCapEff:\t1e0\nCapBnd:\t1e0\nCapAmb:\t0\n"

func goodHello() []byte {
	return initwire.Hello{
		Status: goodStatus, Forker: goodStatus, UIDMap: "0 1879048192 65536\n", GIDMap: "0 1879048192 65536\n",
		MountInfo: "36 35 98:0 /a\\040b /mnt rw,noatime master:1 - ext3 /dev/root ro,errors=continue\n",
	}.Encode()
}

func noCounters(context.Context) (sandbox.Counters, error) { return sandbox.Counters{}, nil }

// withFake connects a Session with a fake that has said hello.
func withFake(t *testing.T, behave func(f *fakeInit), use func(t *testing.T, s *runner.Session)) {
	synctest.Test(t, func(t *testing.T) {
		f, stdin, stdout := fake()
		go func() {
			if f.Write(initwire.HelloFrame, 0, goodHello()) == nil {
				behave(f)
			}
		}()
		s, _, err := runner.NewSession(t.Context(), stdin, stdout, policies.Limits{}, noCounters)
		if err != nil {
			t.Fatal(err)
		}
		use(t, s)
		f.hang()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestReadyIsParsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stdin, stdout := fake()
		go func() { _ = f.Write(initwire.HelloFrame, 0, goodHello()) }()
		s, ready, err := runner.NewSession(t.Context(), stdin, stdout, policies.Limits{}, noCounters)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		m := ready.Mounts[0]
		if m.Root != "/a b" || m.Path != "/mnt" || m.Type != "ext3" || m.Source != "/dev/root" || m.Writable() || !m.Has("noatime") {
			t.Errorf("mount %+v", m)
		}
		if ready.UIDMap[0].Outside != 1_879_048_192 || ready.Init.Bounding != 0x1e0 || ready.Init.Seccomp != 2 {
			t.Errorf("%+v", ready)
		}
	})
}

func TestBadHelloIsNoStart(t *testing.T) {
	without := func(line string) []byte {
		h, err := initwire.DecodeHello(goodHello())
		if err != nil {
			t.Fatal(err)
		}
		h.Forker = strings.Replace(h.Forker, line, "X", 1)
		return h.Encode()
	}
	for name, hello := range map[string]func(f *fakeInit){
		"silence":         func(*fakeInit) {},
		"end":             func(f *fakeInit) { _ = f.out.Close() },
		"another frame":   func(f *fakeInit) { _ = f.Write(initwire.Stdout, 0, nil) },
		"rubbish":         func(f *fakeInit) { _ = f.Write(initwire.HelloFrame, 0, []byte("x")) },
		"no bounding set": func(f *fakeInit) { _ = f.Write(initwire.HelloFrame, 0, without("CapBnd")) },
		"no no_new_privs": func(f *fakeInit) { _ = f.Write(initwire.HelloFrame, 0, without("NoNewPrivs")) },
		"no ids":          func(f *fakeInit) { _ = f.Write(initwire.HelloFrame, 0, without("Uid")) },
		"long frame":      func(f *fakeInit) { _, _ = f.out.Write([]byte("\xff\xff\xff\xff\x10\x00\x00\x00\x00")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stdin, stdout := fake()
				go hello(f)
				_, _, err := runner.NewSession(t.Context(), stdin, stdout, policies.Limits{}, noCounters)
				if sandbox.KindOf(err) != sandbox.KindStart {
					t.Errorf("error %v, want a failed start", err)
				}
				if _, err := f.in.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("the dead-man switch is still held: %v", err)
				}
			})
		})
	}
}

func TestPingsComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stdin, stdout := fake()
		go func() { _ = f.Write(initwire.HelloFrame, 0, goodHello()) }()
		s, _, err := runner.NewSession(t.Context(), stdin, stdout, policies.Limits{}, noCounters)
		if err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); time.Since(start) < time.Minute; {
			last := time.Now()
			if frame, err := f.frames.Next(); err != nil || frame.Type != initwire.Ping || time.Since(last) > 10*time.Second {
				t.Fatalf("frame %v after %s: %v", frame, time.Since(last), err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestInitThatIgnoresACancelIsGone(t *testing.T) {
	withFake(t, func(f *fakeInit) {
		for {
			if _, err := f.next(); err != nil {
				return
			}
		}
	}, func(t *testing.T, s *runner.Session) {
		began := time.Now()
		exit, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
		if err != nil || !exit.Gone || exit.Ended != sandbox.LimitTimeout || exit.Code != -1 {
			t.Errorf("exit %+v, error %v", exit, err)
		}
		if took := time.Since(began); took != time.Minute+initwire.EndPatience+5*time.Second { // synctest's clock is exact
			t.Errorf("after %s", took)
		}
	})
}

// TestInitMayUseItsPatience: what it kills may take as long as it waits for that, and
// the sandbox is none the worse.
func TestInitMayUseItsPatience(t *testing.T) {
	withFake(t, func(f *fakeInit) {
		for {
			frame, err := f.next()
			if err != nil {
				return
			}
			if frame.Type == initwire.Cancel {
				time.AfterFunc(initwire.EndPatience, func() {
					_ = f.Write(initwire.Exited, 1, initwire.Exit{Status: 9, Flags: initwire.Cancelled}.Encode())
				})
			}
		}
	}, func(t *testing.T, s *runner.Session) {
		exit, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
		if err != nil || exit.Gone || exit.Ended != sandbox.LimitTimeout {
			t.Errorf("exit %+v, error %v", exit, err)
		}
	})
}

// An init that stops reading in the middle of a command can't hold up the
// caller's context. Not under synctest, which takes a wait for a lock for work.
func TestInitThatStopsReadingCannotHoldRun(t *testing.T) {
	f, stdin, stdout := fake()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = f.Write(initwire.HelloFrame, 0, goodHello())
		_, _ = f.in.Read(make([]byte, 1))
		cancel()
	}()
	s, _, err := runner.NewSession(ctx, stdin, stdout, policies.Limits{}, noCounters)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(ctx, sandbox.Command{Argv: []string{"x"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestOddFramesAreACrash(t *testing.T) {
	for name, odd := range map[string]func(f *fakeInit){
		"other command": func(f *fakeInit) { _ = f.Write(initwire.Stdout, 7, []byte("x")) },
		"other type":    func(f *fakeInit) { _ = f.Write(initwire.Ping, 1, nil) },
		"odd exit":      func(f *fakeInit) { _ = f.Write(initwire.Exited, 1, []byte("x")) },
		"odd credit":    func(f *fakeInit) { _ = f.Write(initwire.Credit, 1, []byte("x")) },
		"cut frame":     func(f *fakeInit) { _, _ = f.out.Write([]byte("\x00\x00\x00\x08\x15\x00\x00\x00\x01")); f.hang() },
		"end":           func(f *fakeInit) { f.hang() },
	} {
		t.Run(name, func(t *testing.T) {
			withFake(t, func(f *fakeInit) {
				if _, err := f.next(); err == nil {
					odd(f)
				}
			}, func(t *testing.T, s *runner.Session) {
				_, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}})
				if sandbox.KindOf(err) != sandbox.KindCrashed {
					t.Errorf("error %v, want a crash", err)
				}
			})
		})
	}
}

// A deadline that passes while the command ends by itself ended nothing.
func TestDeadlineBesideItsOwnEnd(t *testing.T) {
	withFake(t, func(f *fakeInit) {
		for {
			frame, err := f.next()
			if err != nil {
				return
			}
			if frame.Type == initwire.Cancel {
				_ = f.Write(initwire.Exited, 1, initwire.Exit{Status: 3 << 8}.Encode())
			}
		}
	}, func(t *testing.T, s *runner.Session) {
		exit, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
		if err != nil || exit.Code != 3 || exit.Ended != "" || len(exit.Limits) != 0 {
			t.Errorf("exit %+v, error %v", exit, err)
		}
	})
}

func TestFailingWriterEndsTheCommand(t *testing.T) {
	withFake(t, func(f *fakeInit) {
		_, _ = f.next()
		for f.Write(initwire.Stdout, 1, []byte("x")) == nil {
			if frame, err := f.next(); err != nil || frame.Type == initwire.Cancel {
				break
			}
		}
		_ = f.Write(initwire.Exited, 1, initwire.Exit{Status: 9, Flags: initwire.Cancelled}.Encode())
	}, func(t *testing.T, s *runner.Session) {
		_, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdout: failing{}})
		if sandbox.KindOf(err) != sandbox.KindRefused || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v", err)
		}
	})
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Whatever init says, a Session ends and does not panic.
func FuzzSession(f *testing.F) {
	var good bytes.Buffer
	w := initwire.NewWriter(&good)
	_ = w.Write(initwire.HelloFrame, 0, goodHello())
	_ = w.Write(initwire.Stdout, 1, []byte("out"))
	_ = w.Write(initwire.Credit, 1, initwire.Uint32(5))
	_ = w.Write(initwire.Exited, 1, initwire.Exit{Status: 256}.Encode())
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:40])
	f.Fuzz(func(t *testing.T, raw []byte) {
		stdout := io.NopCloser(bytes.NewReader(raw))
		s, _, err := runner.NewSession(t.Context(), discard{}, stdout, policies.Limits{OutputReadBytes: 100}, noCounters)
		if err != nil {
			return
		}
		defer s.Close()
		exit, err := s.Run(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdin: strings.NewReader("input")})
		if err == nil && exit.Code < 0 && !exit.Gone {
			t.Errorf("exit %+v", exit)
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
