package wire

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// The seeds are what real servers sent, and the smallest broken forms.

func FuzzPktLines(f *testing.F) {
	for _, s := range []string{
		"0000", "0001", "0002", "0003", "0004", "0009hello", "000ahello\n", "fff0", "fff1", "zzzz", "-001", "+00a",
		"000dERR gone\n", "0005\x01" + "0000", "FFF0",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, used := newPktReader(bytes.NewReader(b), 1<<16), 0
		for {
			kind, payload, err := p.next()
			if err != nil {
				return
			}
			used += pktHead + len(payload)
			if used > len(b) || kind != pktText && payload != nil {
				t.Fatalf("kind %d with %d bytes after %d of %d", kind, len(payload), used, len(b))
			}
		}
	})
}

const (
	advertV2 = "001e# service=git-upload-pack\n0000000eversion 2\n0015agent=git/2.39.5\n0013ls-refs=unborn\n" +
		"0020fetch=shallow wait-for-done\n0012server-option\n0017object-format=sha1\n0000"
	idOne    = "75b63ac7b64c3fca9b1bd217402f26d739aae07b"
	advertV0 = "001e# service=git-upload-pack\n0000" + "0055" + idOne + " HEAD\x00side-band-64k shallow object-format=sha1\n" +
		"003d" + idOne + " refs/heads/main\n" + "0000"
)

func FuzzAdvertisement(f *testing.F) {
	for _, s := range []string{advertV2, advertV0, "000eversion 2\n0000", "0000", "000eversion 1\n", "001e# service=git-upload-pack\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAdvert(bytes.NewReader(b), []string{"refs/heads/main"}, []gitops.ObjectID{idOne})
		if err != nil {
			return
		}
		for name, id := range a.refs {
			if name != "refs/heads/main" || len(id) != 40 {
				t.Fatalf("ref %q at %q", name, id)
			}
		}
	})
}

func FuzzReport(f *testing.F) {
	good := "000eunpack ok\n0019ok refs/heads/main\n0000"
	f.Add([]byte(good), false)
	f.Add([]byte(pktLine("\x01%s", good)+"0000"), true)
	f.Add([]byte(pktLine("ng refs/heads/main no\n")+"0000"), false)
	f.Fuzz(func(t *testing.T, b []byte, sideband bool) {
		r, err := readReport(bytes.NewReader(b), sideband, func(string) {})
		if err != nil {
			return
		}
		for ref := range r.ng {
			if !bytes.Contains(b, []byte("ng")) {
				t.Fatalf("%q refused by an answer without a refusal", ref)
			}
		}
	})
}

func FuzzDownload(f *testing.F) {
	v2 := "0011shallow-info\n0001000dpackfile\n0009\x01PACK0007\x02hi0000"
	f.Add([]byte(v2), 2)
	f.Add([]byte("0008NAK\n0009\x01PACK0000"), 0)
	f.Add([]byte("0011ERR not our ref"), 2)
	f.Add([]byte("0008NAK\n0009\x03dead0000"), 0)
	f.Fuzz(func(t *testing.T, b []byte, version int) {
		var out bytes.Buffer
		d := &download{p: newPktReader(bytes.NewReader(b), 1<<16), out: &out, max: 1 << 10, log: func(string) {}}
		if err := d.run(version); err == nil && d.got != int64(out.Len()) {
			t.Fatalf("%d bytes counted, %d passed on", d.got, out.Len())
		}
		if out.Len() > 1<<10 {
			t.Fatalf("%d bytes passed on", out.Len())
		}
	})
}

// Attack case F03: an advertisement without end.
func TestAdvertisementIsCapped(t *testing.T) {
	ref := pktLine("%s refs/heads/x\n", idOne)
	endless := io.MultiReader(strings.NewReader(ref), repeat(ref))
	if _, err := readAdvert(endless, nil, nil); !errors.Is(err, errCap) {
		t.Errorf("error = %v", err)
	}
}

// Attack case F04: progress without end.
func TestProgressIsCapped(t *testing.T) {
	r := io.MultiReader(strings.NewReader("0008NAK\n"), repeat(pktLine("\x02%s", strings.Repeat("x", 1000))))
	d := &download{p: newPktReader(r, 1<<30), out: io.Discard, max: 1 << 20, log: func(string) {}}
	if err := d.run(0); !errors.Is(err, errAnswer) {
		t.Errorf("error = %v", err)
	}
}

func repeat(s string) io.Reader {
	left := ""
	return readerFunc(func(p []byte) (int, error) {
		if left == "" {
			left = s
		}
		n := copy(p, left)
		left = left[n:]
		return n, nil
	})
}

func TestOtherObjectFormatsAreUnsupported(t *testing.T) {
	long := strings.Repeat("ab", 32)
	for _, s := range []string{
		strings.Replace(advertV2, "0017object-format=sha1\n", "0019object-format=sha256\n", 1),
		pktLine("%s refs/heads/main\x00side-band-64k\n", long) + "0000",
	} {
		a, err := readAdvert(strings.NewReader(s), nil, nil)
		if err == nil {
			err = a.checkFormat()
		}
		if !errors.Is(err, errFormat) {
			t.Errorf("error = %v", err)
		}
	}
}

func TestPushWantsBothLinesOfTheReport(t *testing.T) {
	ref := "refs/heads/x"
	p := &push{talk: &talk{Remote: &Remote{cfg: Config{Log: slog.New(slog.DiscardHandler)}}}, ref: ref}
	cases := map[string]error{
		pktLine("unpack ok\n") + pktLine("ok %s\n", ref):                             nil,
		pktLine("unpack ok\n"):                                                       ErrPushRefused,
		pktLine("unpack ok\n") + pktLine("ok refs/heads/y\n"):                        ErrPushRefused,
		pktLine("unpack ok\n") + pktLine("ng %s no\n", ref):                          ErrPushRefused,
		pktLine("unpack ok\n") + pktLine("ok %s\n", ref) + pktLine("ng %s x\n", ref): ErrPushRefused,
		pktLine("unpack full\n") + pktLine("ok %s\n", ref):                           ErrPushRefused,
		pktLine("ok %s\n", ref):                                                      ErrUnreachable,
		"":                                                                           ErrUnreachable,
	}
	for text, want := range cases {
		r, err := readReport(strings.NewReader(text+"0000"), false, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.judge(r); !errors.Is(err, want) {
			t.Errorf("report %q: error = %v, want %v", text, err, want)
		}
	}
}
