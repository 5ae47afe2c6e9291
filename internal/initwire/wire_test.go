package initwire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

func TestFramesArriveAsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pipe bytes.Buffer
		w := initwire.NewWriter(&pipe)
		var sent []initwire.Frame
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			f := initwire.Frame{
				Type: initwire.Type(rapid.Byte().Draw(t, "type")), Command: rapid.Uint32().Draw(t, "command"),
				Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
			}
			sent = append(sent, f)
			if err := w.Write(f.Type, f.Command, f.Payload); err != nil {
				t.Fatal(err)
			}
		}
		r := initwire.NewReader(iotest.OneByteReader(&pipe))
		for i, want := range sent {
			got, err := r.Next()
			if err != nil || got.Type != want.Type || got.Command != want.Command || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("frame %d: %v %v, want %v", i, got, err, want)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

func TestFrameRules(t *testing.T) {
	full := make([]byte, initwire.MaxPayload)
	var pipe bytes.Buffer
	w := initwire.NewWriter(&pipe)
	if err := w.Write(initwire.Stdout, 1, full); err != nil || pipe.Len() != 64<<10 {
		t.Errorf("largest frame has %d bytes: %v", pipe.Len(), err)
	}
	if err := w.Write(initwire.Stdout, 1, append(full, 0)); !errors.Is(err, initwire.ErrFrame) {
		t.Errorf("a larger one: %v", err)
	}
	for name, c := range map[string]struct {
		raw  string
		want error
	}{
		"too long":    {"\x00\x01\x00\x00\x11\x00\x00\x00\x01", initwire.ErrFrame},
		"4 GiB":       {"\xff\xff\xff\xff\x11\x00\x00\x00\x01", initwire.ErrFrame},
		"cut head":    {"\x00\x00", io.ErrUnexpectedEOF},
		"cut payload": {"\x00\x00\x00\x02\x11\x00\x00\x00\x01a", io.ErrUnexpectedEOF},
		"no payload":  {"\x00\x00\x00\x02\x11\x00\x00\x00\x01", io.ErrUnexpectedEOF},
	} {
		if _, err := initwire.NewReader(strings.NewReader(c.raw)).Next(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestPayloadsArriveAsSent(t *testing.T) {
	texts := rapid.SliceOfN(rapid.String(), 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		want := initwire.Command{
			Flags: rapid.Uint32().Draw(t, "flags"), Dir: rapid.String().Draw(t, "dir"),
			Argv: texts.Draw(t, "argv"), Env: texts.Draw(t, "env"),
		}
		got, err := initwire.DecodeCommand(want.Encode())
		if err != nil || !cmp.Equal(got, want) {
			t.Fatalf("%v, %v, want %v", got, err, want)
		}
	})
	hello := initwire.Hello{Status: "a", Forker: "b", UIDMap: "c", GIDMap: "d", MountInfo: "e", Dumpable: 2, Files: 3, Core: 1 << 40, Procs: 5}
	if got, err := initwire.DecodeHello(hello.Encode()); err != nil || got != hello {
		t.Errorf("%v, %v", got, err)
	}
	exit := initwire.Exit{Status: 9, Flags: initwire.LowDisk}
	if got, err := initwire.DecodeExit(exit.Encode()); err != nil || got != exit {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := initwire.DecodeUint32(initwire.Silence(1500 * time.Millisecond)); err != nil || got != 1500 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCommandRules(t *testing.T) {
	good := initwire.Command{Dir: "/workspace/a", Argv: []string{"x", ""}, Env: []string{"A="}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*initwire.Command){
		"no program":    func(c *initwire.Command) { c.Argv = nil },
		"empty program": func(c *initwire.Command) { c.Argv[0] = "" },
		"NUL":           func(c *initwire.Command) { c.Argv[1] = "a\x00b" },
		"no name":       func(c *initwire.Command) { c.Env[0] = "=x" },
		"no value":      func(c *initwire.Command) { c.Env[0] = "x" },
		"NUL in env":    func(c *initwire.Command) { c.Env[0] = "x=\x00" },
		"flags":         func(c *initwire.Command) { c.Flags = 1 << 20 },
		"dir":           func(c *initwire.Command) { c.Dir = "/" },
	} {
		c := initwire.Command{Dir: good.Dir, Argv: []string{"x", ""}, Env: []string{"A="}}
		change(&c)
		if err := c.Check(); !errors.Is(err, initwire.ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInside(t *testing.T) {
	for p, want := range map[string]bool{
		"/workspace": true, "/workspace/a": true, "/home/veyra/.cache": true, "/tmp": true,
		"/workspace2": false, "/workspace/": false, "/workspace/../etc": false, "/home": false,
		"workspace": false, "": false, "/": false, "/proc/self/fd/3": false, "/tmp/a\x00b": false, "/tmp//a": false,
	} {
		if got := initwire.Inside(p); got != want {
			t.Errorf("Inside(%q) = %v", p, got)
		}
	}
}

// What decodes must encode to the same bytes, and nothing may panic or allocate
// by a number that a frame claims.
func FuzzDecode(f *testing.F) {
	f.Add(initwire.Command{Dir: "/workspace", Argv: []string{"a"}, Env: []string{"A=b"}}.Encode())
	f.Add(initwire.Hello{Status: "x"}.Encode())
	f.Add(initwire.Exit{Status: 1}.Encode())
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := initwire.DecodeCommand(b); err == nil && !bytes.Equal(c.Encode(), b) {
			t.Errorf("command %v has two encodings", c)
		}
		if h, err := initwire.DecodeHello(b); err == nil && !bytes.Equal(h.Encode(), b) {
			t.Errorf("hello %v has two encodings", h)
		}
		if e, err := initwire.DecodeExit(b); err == nil && !bytes.Equal(e.Encode(), b) {
			t.Errorf("exit %v has two encodings", e)
		}
		r := initwire.NewReader(bytes.NewReader(b))
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	})
}
