package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
)

// secret has a letter for every kind of escape.
const secret = "k3y/+? \"<é\n\U0001F642>%&\\-end_of.it"

func newSet(t testing.TB, secrets ...string) *redact.Set {
	t.Helper()
	s := redact.New()
	for _, secret := range secrets {
		if err := s.Add(secret); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func pythonJSON() string {
	return `k3y/+? \"<\u00e9\n\ud83d\ude42>%&\\-end_of.it`
}

func TestEveryFormIsReplaced(t *testing.T) {
	s := newSet(t, secret)
	html, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	query := url.QueryEscape(secret)
	shown := map[string]string{
		"raw":           secret,
		"hex":           hex.EncodeToString([]byte(secret)),
		"upper hex":     strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query":         query,
		"lower query":   strings.NewReplacer("%2F", "%2f", "%2B", "%2b", "%3F", "%3f", "%3C", "%3c", "%C3%A9", "%c3%a9", "%0A", "%0a", "%F0%9F", "%f0%9f", "%3E", "%3e", "%5C", "%5c").Replace(query),
		"path":          url.PathEscape(secret),
		"json":          strings.Trim(string(html), `"`),
		"python's json": pythonJSON(),
		"go's quotes":   strings.Trim(strconv.Quote(secret), `"`),
	}
	for name, form := range shown {
		t.Run(name, func(t *testing.T) {
			got := s.String("before " + form + " after")
			if diff := cmp.Diff("before "+redact.Marker+" after", got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if !s.Contains([]byte(form)) {
				t.Error("Contains says no")
			}
		})
	}
}

// TestBase64AtEveryOffset encodes the secret inside other text: what depends on
// the secret alone must go, whatever stands around it.
func TestBase64AtEveryOffset(t *testing.T) {
	s := newSet(t, secret)
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
		for before := range 7 {
			for after := range 4 {
				text := strings.Repeat("x", before) + secret + strings.Repeat("y", after)
				got := s.String("basic " + enc.EncodeToString([]byte(text)))
				left, found := strings.CutPrefix(got, "basic ")
				if !found || !strings.Contains(left, redact.Marker) || len(left) > len(redact.Marker)+before*4/3+after*4/3+8 {
					t.Errorf("%d before, %d after: %q", before, after, got)
				}
			}
		}
	}
}

func TestShortValuesStay(t *testing.T) {
	var s redact.Set
	if err := s.Add("elevenbytes"); !errors.Is(err, redact.ErrShort) {
		t.Errorf("error = %v", err)
	}
	if got := s.String("elevenbytes"); got != "elevenbytes" {
		t.Errorf("got %q", got)
	}
}

func TestOverlappingSecretsLeaveNothing(t *testing.T) {
	const first, second = "aaaaaaaaSHARED", "SHAREDbbbbbbbb"
	s := newSet(t, first, second, "SHARED-longer-than-both-of-them")
	tests := map[string]string{
		"<aaaaaaaaSHAREDbbbbbbbb>":                 "<" + redact.Marker + ">",
		"<" + first + ">":                          "<" + redact.Marker + ">",
		first + first:                              redact.Marker + redact.Marker,
		"aaaaaaaaSHARED-longer-than-both-of-them.": redact.Marker + ".",
		"SHARED": "SHARED",
	}
	for text, want := range tests {
		if got := s.String(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestAddAndRemoveCount(t *testing.T) {
	s := newSet(t, secret, secret)
	s.Remove(secret)
	if !s.Contains([]byte(secret)) {
		t.Error("gone after one of two")
	}
	s.Remove(secret)
	s.Remove(secret)
	if s.Contains([]byte(secret)) || s.String(secret) != secret {
		t.Error("still there")
	}
}

func TestRedactionsAreCounted(t *testing.T) {
	s := newSet(t, secret)
	_ = s.String(secret + " " + secret)
	s.Contains([]byte(secret))
	if got := s.Redactions(); got != 2 {
		t.Errorf("counted %d, want 2", got)
	}
}

// TestStreamEqualsWhole cuts texts with secrets anywhere: the stream must give
// what the whole text gives.
func TestStreamEqualsWhole(t *testing.T) {
	s := newSet(t, secret, "aaaaaaaaaaaab", "aaaaaaaaaaaaaac", "abcdabcdabcdabcd")
	pieces := []string{
		secret, secret[:20], "aaaaaaaaaaaab", "aaaaaaaaaaaaaac", "aaaa", "abcd", "abcdabcdabcdabcd",
		hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte("12" + secret)), "\n", "x",
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "")
		whole := s.String(text)
		if s.Contains([]byte(whole)) && !strings.Contains(whole, redact.Marker+redact.Marker) {
			t.Fatalf("%q still holds a secret", whole)
		}
		var out bytes.Buffer
		w := s.Writer(&out)
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 30)).Draw(t, "chunk")
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != whole {
			t.Fatalf("stream gives %q, whole gives %q", out.String(), whole)
		}
	})
}

// TestWriterHoldsBackLittle checks that ordinary lines come out at once.
func TestWriterHoldsBackLittle(t *testing.T) {
	var out bytes.Buffer
	w := newSet(t, secret).Writer(&out)
	if _, err := io.WriteString(w, "a whole line\n"); err != nil {
		t.Fatal(err)
	}
	if out.String() != "a whole line\n" {
		t.Errorf("got %q before Close", out.String())
	}
}

func TestWriterKeepsTheErrorBelow(t *testing.T) {
	bad := newSet(t).Writer(failing{})
	for range 2 {
		if _, err := bad.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error = %v", err)
		}
	}
	if err := bad.Close(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error = %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestConcurrentUse adds and removes while others read.
func TestConcurrentUse(t *testing.T) {
	s := newSet(t, secret)
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			for n := range 50 {
				own := fmt.Sprintf("another-secret-%d-%d", i, n)
				if err := s.Add(own); err != nil {
					t.Error(err)
				}
				if got := s.String(own + secret); strings.Contains(got, own) || strings.Contains(got, secret) {
					t.Errorf("got %q", got)
				}
				s.Remove(own)
			}
		})
	}
	users.Wait()
}

type point struct{ A, B string }

func TestHandlerCleansRecords(t *testing.T) {
	s := newSet(t, secret)
	handlers := map[string]func(io.Writer) slog.Handler{
		"text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"json": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	}
	for name, next := range handlers {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(s.Handler(next(&out)))
			log = log.With("with", secret).WithGroup("group")
			log.Info("said "+secret, "string", secret, "error", errors.New("failed: "+secret),
				"struct", point{A: secret}, "bytes", []byte(secret), "inside", [][]byte{[]byte(secret)}, "number", 7,
				slog.Group("inner", "deep", secret), secret, "named")
			if s.Contains(out.Bytes()) {
				t.Errorf("a secret is left in %s", out.String())
			}
			if got := strings.Count(out.String(), redact.Marker); got != 9 {
				t.Errorf("%d markers in %s", got, out.String())
			}
		})
	}
}

func BenchmarkBytesWithoutSecret(b *testing.B) {
	s := newSet(b, secret, "ghs_0123456789abcdef0123456789abcdef", "sk-0123456789abcdef")
	text := bytes.Repeat([]byte("ok  	example.org/pkg	0.123s\n"), 40_000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Bytes(text)
	}
}
