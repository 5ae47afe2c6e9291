package gitops

import (
	"bytes"
	"testing"
)

// A worker that was taken over may say anything; each lie has its kind.
func TestHostileBasesAnswers(t *testing.T) {
	var base coder
	base.id(someID)
	done := func(n int64) []byte { return encodeSummary(summary{count: n}) }
	path := func(p string) []byte { return encodeChanged(ChangedPath{Path: p, Status: PathAdded}) }
	many := []any{}
	for range MaxBases + 1 {
		many = append(many, frameBase, base.b)
	}
	body := []byte("tree " + string(someID) + "\n\nm\n")
	head := commitID(body)
	good := []any{framePack, body, frameBase, base.b, frameChanged, path("a"), frameDone, done(1)}
	if got, err := ReadDiffReply(frames(good...), head, []ObjectID{someID}, DefaultLimits()); err != nil || got.Tree != someID {
		t.Fatalf("honest answer: %v, %v", got, err)
	}
	for name, parts := range map[string][]any{
		"wrong count":       {frameBase, base.b, frameDone, done(2)},
		"another base":      {frameBase, bytes.Repeat([]byte{1}, 20), frameDone, done(1)},
		"none at all":       {frameDone, done(0)},
		"short base":        {frameBase, []byte("abc")},
		"path without base": {frameChanged, path("a")},
		"out of order":      {frameBase, base.b, frameChanged, path("b"), frameChanged, path("a")},
		"climbing":          {frameBase, base.b, frameChanged, path("../a")},
		"too many":          many,
		"other frame":       {frameCommit, base.b},
		"another commit":    {framePack, []byte("x"), frameBase, base.b, frameDone, done(1)},
		"commit after base": {frameBase, base.b, framePack, body, frameDone, done(1)},
		"more after it":     {frameBase, base.b, frameDone, done(1), frameDone, done(1)},
	} {
		if got, err := ReadDiffReply(frames(append([]any{framePack, body}, parts...)...), head, []ObjectID{someID}, DefaultLimits()); KindOf(err) != KindBroken {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := ReadHistoryReply(frames(frameBase, base.b, frameChanged, path("a")), DefaultLimits()); KindOf(err) != KindBroken {
		t.Errorf("paths in a history: %v", err)
	}
}

func FuzzBasesAnswer(f *testing.F) {
	var base coder
	base.id(someID)
	body := []byte("tree " + string(someID) + "\n\nm\n")
	head := commitID(body)
	var good bytes.Buffer
	_, _ = good.ReadFrom(frames(framePack, body, frameBase, base.b, frameChanged, encodeChanged(ChangedPath{Path: "a", Status: PathAdded}), frameDone, encodeSummary(summary{count: 1})))
	f.Add(good.Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		diffs, err := ReadDiffReply(bytes.NewReader(b), head, []ObjectID{someID}, DefaultLimits())
		if err != nil {
			return
		}
		for _, c := range diffs.Diffs[0].Changed {
			if CheckPath(c.Path) != nil {
				t.Fatalf("path %q got through", c.Path)
			}
		}
	})
}
