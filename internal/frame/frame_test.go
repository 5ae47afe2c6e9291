package frame_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
)

func TestFramesComeBackInOrder(t *testing.T) {
	var stream bytes.Buffer
	payloads := []string{"", "a", strings.Repeat("x", 70_000)}
	for i, p := range payloads {
		if err := frame.Write(&stream, byte(i+1), []byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&stream)
	for i, want := range payloads {
		typ, got, err := frame.Read(r, 70_000)
		if err != nil || typ != byte(i+1) {
			t.Fatalf("type %d, error %v", typ, err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("payload (-want +got):\n%s", diff)
		}
	}
	if _, _, err := frame.Read(r, 1); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestWriteUsesOneCall(t *testing.T) {
	calls := 0
	w := writerFunc(func(p []byte) (int, error) { calls++; return len(p), nil })
	if err := frame.Write(w, 1, make([]byte, 100_000)); err != nil || calls != 1 {
		t.Errorf("%d calls, error %v", calls, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestReadRefuses(t *testing.T) {
	tests := map[string]struct {
		stream string
		want   error
	}{
		"cut header":      {"\x00\x00", io.ErrUnexpectedEOF},
		"cut payload":     {"\x00\x00\x00\x05\x01ab", io.ErrUnexpectedEOF},
		"missing payload": {"\x00\x00\x00\x05\x01", io.ErrUnexpectedEOF},
		"one over":        {"\x00\x00\x00\x09\x01123456789", frame.ErrTooLarge},
		"all ones":        {"\xff\xff\xff\xff\x01", frame.ErrTooLarge},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := frame.Read(strings.NewReader(test.stream), 8); !errors.Is(err, test.want) {
				t.Errorf("error = %v, want %v", err, test.want)
			}
		})
	}
}

// TestAnnouncedLengthCostsNothing announces 4 GiB and sends ten bytes.
func TestAnnouncedLengthCostsNothing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := frame.Read(strings.NewReader("\xff\xff\xff\xff\x010123456789"), math.MaxInt)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error = %v", err)
	}
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 1<<20 {
		t.Errorf("%d bytes were allocated", spent)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03\x07ab"))
	f.Add([]byte("\x00\x00\x00\x00\x01"))
	f.Add([]byte("\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		typ, payload, err := frame.Read(bytes.NewReader(stream), 1<<16)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := frame.Write(&again, typ, payload); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(stream, again.Bytes()) {
			t.Fatalf("%q was read as %q", stream, again.Bytes())
		}
	})
}
