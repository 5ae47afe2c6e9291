package canonjson_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

// canonicaliser reads a line of JSON and prints its canonical text as the
// control plane computes it, as a JSON string of ASCII.
const canonicaliser = `
import json, sys
for line in sys.stdin:
    text = json.dumps(json.loads(line), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    print(json.dumps(text), flush=True)
`

type python struct {
	in  io.Writer
	out *bufio.Reader
}

func startPython(t *testing.T) *python {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("not applicable: python3 is not installed")
	}
	cmd := exec.Command(path, "-I", "-X", "utf8", "-c", canonicaliser)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("python3: %v", err)
		}
	})
	return &python{in: in, out: bufio.NewReader(out)}
}

func (p *python) canonical(t *rapid.T, value any) string {
	// encoding/json escapes in ways of its own; Python undoes them.
	line, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var text string
	if err := json.Unmarshal(answer, &text); err != nil {
		t.Fatal(err)
	}
	return text
}

// texts draws strings of every code point but U+0000, with those that have
// escapes or sort oddly often among them.
func texts() *rapid.Generator[string] {
	odd := []rune("\"\\/\b\f\n\r\t\x01\x1f\x7f<>&\u0080\u2028\u2029\uFEFF\uFF5E\uFFFD\uFFFF\U0001F642\U0010FFFF aZ09")
	return rapid.Custom(func(t *rapid.T) string {
		r := rapid.OneOf(rapid.SampledFrom(odd), rapid.Rune().Filter(func(r rune) bool { return r != 0 }))
		return rapid.StringOfN(r, 0, 12, -1).Draw(t, "text")
	})
}

func values(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.Int64(), func(n int64) any { return n }),
		rapid.Map(rapid.Uint64(), func(n uint64) any { return json.Number("-1" + strconv.FormatUint(n, 10) + "0000000000") }),
		rapid.Map(texts(), func(s string) any { return s }),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	inner := values(depth - 1)
	return rapid.OneOf(append(leaves,
		rapid.Map(rapid.SliceOfN(inner, 0, 4), func(list []any) any { return list }),
		rapid.Map(rapid.MapOfN(texts(), inner, 0, 5), func(m map[string]any) any { return m }),
	)...)
}

// TestAgreesWithPython covers attack case G18.
func TestAgreesWithPython(t *testing.T) {
	python := startPython(t)
	rapid.Check(t, func(t *rapid.T) {
		value := values(3).Draw(t, "value")
		ours, err := canonjson.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if theirs := python.canonical(t, value); theirs != string(ours) {
			t.Fatalf("python writes %q, we write %q", theirs, ours)
		}
	})
}
