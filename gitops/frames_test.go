package gitops

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
)

const someID ObjectID = "75b63ac7b64c3fca9b1bd217402f26d739aae07b"

func genEntry() *rapid.Generator[Entry] {
	return rapid.Custom(func(t *rapid.T) Entry {
		e := Entry{Path: string(rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "path")), ID: someID}
		e.Mode = rapid.SampledFrom([]Mode{ModeFile, ModeExec, ModeLink, ModeGitlink, 0o100664}).Draw(t, "mode")
		e.Size = rapid.Int64Range(0, math.MaxInt64).Draw(t, "size")
		copy(e.SHA256[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "sum"))
		return e
	})
}

func TestPayloadsReadBackWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEntry().Draw(t, "entry")
		if got, err := decodeEntry(encodeEntry(e)); err != nil || got != e {
			t.Fatalf("%+v came back as %+v, %v", e, got, err)
		}
		r := CommitRequest{Parent: someID, Date: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "date"), 0).UTC(), Message: e.Path}
		if got, err := decodeCommit(encodeCommit(r)); err != nil || !cmp.Equal(got, r) {
			t.Fatalf("%+v came back as %+v, %v", r, got, err)
		}
		c := Change{Path: e.Path, Kind: ChangeWrite, Exec: rapid.Bool().Draw(t, "exec")}
		if got, err := decodeChange(encodeChange(c)); err != nil || got != c {
			t.Fatalf("%+v came back as %+v, %v", c, got, err)
		}
	})
}

// frames is an answer of hand-made frames.
func frames(parts ...any) io.Reader {
	var b bytes.Buffer
	for i := 0; i < len(parts); i += 2 {
		_ = frame.Write(&b, parts[i].(byte), parts[i+1].([]byte))
	}
	return &b
}

func entryOf(path string) []byte { return encodeEntry(Entry{Path: path, Mode: ModeFile, ID: someID}) }

// A worker that was taken over may say anything; each lie has its kind.
func TestHostileIndexAnswers(t *testing.T) {
	done := func(n int64) []byte { return encodeSummary(summary{someID, someID, n}) }
	other := encodeSummary(summary{ObjectID(strings.Repeat("0", 40)), someID, 0})
	lim := DefaultLimits()
	lim.Entries, lim.Paths = 3, 100
	cases := map[string]struct {
		in   io.Reader
		kind Kind
	}{
		"silence":               {frames(), KindInternal},
		"no done":               {frames(frameEntry, entryOf("a")), KindInternal},
		"cut":                   {io.LimitReader(frames(frameEntry, entryOf("a")), 9), KindInternal},
		"endless frame":         {strings.NewReader("\xff\xff\xff\xff\x04"), KindBroken},
		"another commit":        {frames(frameDone, other), KindBroken},
		"wrong count":           {frames(frameEntry, entryOf("a"), frameDone, done(2)), KindBroken},
		"a path twice":          {frames(frameEntry, entryOf("a"), frameEntry, entryOf("a"), frameDone, done(2)), KindBroken},
		"file and directory":    {frames(frameEntry, entryOf("a"), frameEntry, entryOf("a/b"), frameDone, done(2)), KindBroken},
		"file, then directory":  {frames(frameEntry, entryOf("a"), frameEntry, entryOf("a.b"), frameEntry, entryOf("a/b"), frameDone, done(3)), KindBroken},
		"climbing path":         {frames(frameEntry, entryOf("../a")), KindBroken},
		"git directory":         {frames(frameEntry, entryOf("a/.git/config")), KindBroken},
		"too many":              {frames(frameEntry, entryOf("a"), frameEntry, entryOf("b"), frameEntry, entryOf("c"), frameEntry, entryOf("d")), KindTooLarge},
		"too long together":     {frames(frameEntry, entryOf(strings.Repeat("a", 60)), frameEntry, entryOf(strings.Repeat("b", 60))), KindTooLarge},
		"frame of another mode": {frames(framePack, []byte("x")), KindBroken},
		"broken payload":        {frames(frameEntry, []byte{1, 2, 3}), KindBroken},
		"bytes at the end":      {frames(frameDone, append(done(0), 0)), KindBroken},
		"frames after the end":  {frames(frameDone, done(0), frameDone, done(0)), KindBroken},
		"named failure":         {frames(frameError, encodeError(KindTooLarge, "x")), KindTooLarge},
		"failure of no kind":    {frames(frameError, encodeError(99, "x")), KindBroken},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadIndexReply(c.in, someID, lim); KindOf(err) != c.kind {
				t.Errorf("error = %v, want kind %v", err, c.kind)
			}
		})
	}
}

func TestHostileCommitAnswers(t *testing.T) {
	ids := encodeSummary(summary{commit: someID, tree: someID})
	end := func(n int64) []byte { return encodeSummary(summary{commit: someID, count: n}) }
	changed := func(p string) []byte { return encodeChanged(ChangedPath{p, PathAdded}) }
	lim := DefaultLimits()
	lim.Pack = 4
	cases := map[string]struct {
		in   io.Reader
		kind Kind
	}{
		"good":               {frames(frameCommit, ids, frameChanged, changed("a"), framePack, []byte("PACK"), frameEnd, end(4)), 0},
		"no ids":             {frames(frameChanged, changed("a")), KindBroken},
		"paths out of order": {frames(frameCommit, ids, frameChanged, changed("b"), frameChanged, changed("a")), KindBroken},
		"a path twice":       {frames(frameCommit, ids, frameChanged, changed("a"), frameChanged, changed("a")), KindBroken},
		"paths after pack":   {frames(frameCommit, ids, framePack, []byte("PACK"), frameChanged, changed("a")), KindBroken},
		"pack too long":      {frames(frameCommit, ids, framePack, []byte("PACK1")), KindTooLarge},
		"pack cut":           {frames(frameCommit, ids, framePack, []byte("PA"), frameEnd, end(4)), KindBroken},
		"no end":             {frames(frameCommit, ids, framePack, []byte("PACK")), KindInternal},
		"ids twice":          {frames(frameCommit, ids, frameCommit, ids), KindBroken},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var pack bytes.Buffer
			_, err := ReadCommitReply(c.in, &pack, lim)
			if KindOf(err) != c.kind {
				t.Errorf("error = %v, want kind %v", err, c.kind)
			}
			if int64(pack.Len()) > lim.Pack {
				t.Errorf("%d bytes of pack passed on", pack.Len())
			}
		})
	}
}

func TestIgnoreAnswerNamesAskedPathsOnly(t *testing.T) {
	asked := []string{"a", "b"}
	got, err := ReadIgnoreReply(frames(framePath, []byte("b"), frameEnd, []byte{}), asked, DefaultLimits())
	if err != nil || !cmp.Equal(got, []string{"b"}) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, in := range []io.Reader{
		frames(framePath, []byte("c"), frameEnd, []byte{}),
		frames(framePath, []byte("a"), framePath, []byte("a"), frameEnd, []byte{}),
	} {
		if _, err := ReadIgnoreReply(in, asked, DefaultLimits()); KindOf(err) != KindBroken {
			t.Errorf("error = %v", err)
		}
	}
}

// The error text of a worker is shown quoted, whatever it holds.
func TestWorkerTextIsEscaped(t *testing.T) {
	in := frames(frameError, encodeError(KindUnsupported, "\x1b[31mred\n"))
	_, err := ReadIndexReply(in, someID, DefaultLimits())
	var e *Error
	if !errors.As(err, &e) || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("error = %q", err)
	}
}

func FuzzAnswers(f *testing.F) {
	var b bytes.Buffer
	w := NewReplyWriter(&b)
	w.Entry(Entry{Path: "a", Mode: ModeFile, ID: someID})
	w.Done(someID, someID, 1)
	_ = w.Flush()
	f.Add(bytes.Clone(b.Bytes()))
	b.Reset()
	w = NewReplyWriter(&b)
	w.Commit(someID, someID)
	w.Changed(ChangedPath{"a", PathAdded})
	_, _ = w.Write([]byte("PACK"))
	w.PackEnd(someID)
	_ = w.Flush()
	f.Add(bytes.Clone(b.Bytes()))
	f.Fuzz(func(t *testing.T, b []byte) {
		lim := DefaultLimits()
		m, err := ReadIndexReply(bytes.NewReader(b), someID, lim)
		for _, e := range m.Entries {
			if err == nil && CheckPath(e.Path) != nil {
				t.Fatalf("path %q got through", e.Path)
			}
		}
		_, _ = ReadHashReply(bytes.NewReader(b), lim)
		_, _ = ReadCommitReply(bytes.NewReader(b), io.Discard, lim)
		_, _ = ReadIgnoreReply(bytes.NewReader(b), []string{"a"}, lim)
		_, _ = ReadCommitRequest(bytes.NewReader(b))
		_, _ = ReadHashRequest(bytes.NewReader(b))
		_, _ = ReadIgnoreRequest(bytes.NewReader(b))
	})
}
