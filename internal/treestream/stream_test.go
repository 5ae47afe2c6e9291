package treestream_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
)

// item is an entry with its content.
type item struct {
	treestream.Entry
	Content string
}

func write(opts treestream.Options, items ...item) ([]byte, error) {
	var out bytes.Buffer
	w := treestream.NewWriter(&out, opts)
	for _, it := range items {
		if err := w.Add(it.Entry, strings.NewReader(it.Content)); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func read(r io.Reader, limits treestream.Limits) ([]item, error) {
	in, err := treestream.NewReader(r, limits)
	if err != nil {
		return nil, err
	}
	var items []item
	for {
		e, err := in.Next()
		if err == io.EOF {
			return items, nil
		}
		if err != nil {
			return items, err
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return items, err
		}
		items = append(items, item{e, string(content)})
	}
}

func file(p, content string) item {
	return item{treestream.Entry{Kind: treestream.File, Path: p, Mode: 0o644, Size: int64(len(content))}, content}
}

func of(kind treestream.Kind, p string) item {
	return item{Entry: treestream.Entry{Kind: kind, Path: p}}
}

func TestTreesArriveAsSent(t *testing.T) {
	want := []item{
		file("a", ""), of(treestream.Dir, "a-b"), file("a-b/\xff\n", "x\x00y"), of(treestream.Delete, "b"),
		of(treestream.Opaque, "c"),
		{Entry: treestream.Entry{Kind: treestream.Symlink, Path: "c/l", Target: "../../etc"}},
		of(treestream.Special, "d"),
		{treestream.Entry{Kind: treestream.File, Path: "e", Mode: 0o7777, MTime: -5, Size: 3, Links: 2}, "abc"},
	}
	raw, err := write(treestream.Options{}, want...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(iotest.OneByteReader(bytes.NewReader(raw)), treestream.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestContentMayBeSkipped(t *testing.T) {
	raw, err := write(treestream.Options{Links: true}, file("a", strings.Repeat("x", 200_000)), file("b", "y"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := treestream.NewReader(bytes.NewReader(raw), treestream.Limits{})
	if err != nil || !r.Links() {
		t.Fatal(err, r.Links())
	}
	for _, want := range []string{"a", "b"} {
		if e, err := r.Next(); err != nil || e.Path != want {
			t.Fatalf("%v, %v, want %s", e, err, want)
		}
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := r.Next(); err != io.EOF {
			t.Fatalf("%v after the end", err)
		}
	}
}

func TestEveryCutIsSeen(t *testing.T) {
	raw, err := write(treestream.Options{}, file("a", "abc"), of(treestream.Delete, "b"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range raw {
		if _, err := read(bytes.NewReader(raw[:n]), treestream.Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d of %d: %v", n, len(raw), err)
		}
	}
}

func TestRefusedEntries(t *testing.T) {
	long := strings.Repeat("n", 256)
	for name, items := range map[string][]item{
		"parent":               {file("../a", "")},
		"parent inside":        {file("a/../b", "")},
		"absolute":             {file("/a", "")},
		"dot":                  {file("./a", "")},
		"empty":                {file("", "")},
		"trailing slash":       {file("a/", "")},
		"NUL":                  {file("a\x00b", "")},
		"long name":            {file(long, "")},
		"long path":            {file(strings.Repeat("a/", 2100)+"b", "")},
		"deep":                 {file(strings.Repeat("a/", 512)+"b", "")},
		"twice":                {file("a", ""), file("a", "")},
		"backwards":            {file("b", ""), file("a", "")},
		"below a file":         {file("a", ""), file("a/b", "")},
		"below a deletion":     {of(treestream.Delete, "a"), file("a/b", "")},
		"below a link":         {{Entry: treestream.Entry{Kind: treestream.Symlink, Path: "a", Target: "/etc"}}, file("a/passwd", "")},
		"out of a directory":   {file("a-b", ""), file("a/b", "")},
		"link without target":  {of(treestream.Symlink, "a")},
		"file with target":     {{Entry: treestream.Entry{Kind: treestream.File, Path: "a", Target: "x"}}},
		"directory with bytes": {{Entry: treestream.Entry{Kind: treestream.Dir, Path: "a", Size: 1}}},
		"negative size":        {{Entry: treestream.Entry{Kind: treestream.File, Path: "a", Size: -1}}},
		"mode":                 {{Entry: treestream.Entry{Kind: treestream.File, Path: "a", Mode: 0o100644}}},
		"kind 0":               {of(0, "a")},
		"kind end":             {of(7, "a")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := write(treestream.Options{}, items...); !errors.Is(err, treestream.ErrFormat) {
				t.Errorf("%v, want ErrFormat", err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	tree := []item{file("a", "12345"), file("b", "12345")}
	for name, c := range map[string]struct {
		limits treestream.Limits
		want   error
	}{
		"just fits":  {treestream.Limits{Entries: 2, Bytes: 10}, nil},
		"entries":    {treestream.Limits{Entries: 1}, treestream.ErrLimit},
		"bytes":      {treestream.Limits{Bytes: 9}, treestream.ErrLimit},
		"none given": {treestream.Limits{}, nil},
	} {
		if _, err := write(treestream.Options{Limits: c.limits}, tree...); !errors.Is(err, c.want) {
			t.Errorf("writing, %s: %v", name, err)
		}
		raw, err := write(treestream.Options{}, tree...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(bytes.NewReader(raw), c.limits); !errors.Is(err, c.want) {
			t.Errorf("reading, %s: %v", name, err)
		}
	}
	// A sum that overflows is above every limit.
	huge := item{Entry: treestream.Entry{Kind: treestream.File, Path: "a", Size: math.MaxInt64}}
	w := treestream.NewWriter(io.Discard, treestream.Options{})
	if err := w.Add(huge.Entry, strings.NewReader("")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short content: %v", err)
	}
	if err := w.Close(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a broken stream was ended: %v", err)
	}
}

func TestOrderIsThatOfAWalk(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "a-b", "a.b", "aa", "b", "\xff", "A"})
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SliceOfN(rapid.Map(rapid.SliceOfN(name, 1, 4), func(n []string) string { return path.Join(n...) }), 2, 10).Draw(t, "paths")
		slices.SortFunc(paths, func(a, b string) int {
			return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		})
		for i := 1; i < len(paths); i++ {
			if got := treestream.Less(paths[i-1], paths[i]); got != (paths[i-1] != paths[i]) {
				t.Fatalf("Less(%q, %q) = %v", paths[i-1], paths[i], got)
			}
			if treestream.Less(paths[i], paths[i-1]) {
				t.Fatalf("Less(%q, %q)", paths[i], paths[i-1])
			}
		}
	})
}

// What is read as a tree must be written as the same bytes, and no entry may
// leave the root whatever the bytes are.
func FuzzReader(f *testing.F) {
	for _, items := range [][]item{
		nil,
		{file("a", "abc"), of(treestream.Delete, "b")},
		{of(treestream.Opaque, "d"), {Entry: treestream.Entry{Kind: treestream.Symlink, Path: "d/l", Target: "/"}}},
	} {
		raw, err := write(treestream.Options{}, items...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := bytes.NewReader(raw)
		items, err := read(in, treestream.Limits{Entries: 1000, Bytes: 1 << 20})
		for _, it := range items {
			if !treestream.ValidPath(it.Path) || path.Join("/root", it.Path) != "/root/"+it.Path {
				t.Fatalf("path %q", it.Path)
			}
		}
		if err != nil {
			return
		}
		again, err := write(treestream.Options{Links: raw[11] == 1}, items...)
		if err != nil || !bytes.HasPrefix(raw, again) {
			t.Fatalf("written differently: %v", err)
		}
	})
}
