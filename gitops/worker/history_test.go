package worker_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// bare stores a commit without any change, of these parents and this date.
func (c cli) bare(t failer, tree string, date int, parents ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	fmt.Fprintf(&b, "author A <a@b> 1 +0000\ncommitter A <a@b> %d +0100\n\nparent of nothing\n", date)
	return c.object(t, "commit", []byte(b.String()))
}

// everything packs all objects of these types.
func (c cli) everything(t failer, kinds ...string) []byte {
	var ids strings.Builder
	all := c.git(t, nil, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
	for line := range strings.Lines(all) {
		id, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(kinds, of) {
			ids.WriteString(id + "\n")
		}
	}
	return []byte(c.git(t, []byte(ids.String()), "pack-objects", "--quiet", "--stdout"))
}

func history(t *testing.T, one, other string, pack []byte) ([]string, error) {
	out := run(t, func(w *gitops.ReplyWriter) error {
		return worker.History(bytes.NewReader(pack), w, places(t), gitops.ObjectID(one), gitops.ObjectID(other), gitops.DefaultLimits())
	})
	ids, err := gitops.ReadHistoryReply(out, gitops.DefaultLimits())
	var texts []string
	for _, id := range ids {
		texts = append(texts, string(id))
	}
	slices.Sort(texts)
	return texts, err
}

// mergeBases is git's own answer; it ends with 1 when there is none.
func (c cli) mergeBases(t failer, one, other string) []string {
	out := c.git(lenient{}, nil, "merge-base", "--all", one, other)
	return slices.Sorted(slices.Values(strings.Fields(out)))
}

type lenient struct{}

func (lenient) Fatalf(string, ...any) {}

// Histories of merges, criss-crosses, several roots and clocks that run wrong:
// git and we agree on every pair.
func TestMergeBasesAreThoseOfGit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCLI(t)
		ids := c.anyHistory(t, rt)
		pack := c.everything(t, "commit")
		for range 4 {
			one, other := rapid.SampledFrom(ids).Draw(rt, "one"), rapid.SampledFrom(ids).Draw(rt, "other")
			got, err := history(t, one, other, pack)
			if err != nil {
				rt.Fatalf("%v", err)
			}
			if diff := cmp.Diff(c.mergeBases(t, one, other), got); diff != "" {
				rt.Fatalf("merge bases of %s and %s: %s", one, other, diff)
			}
		}
	})
}

// anyHistory stores a drawn history and gives its commits.
func (c cli) anyHistory(t failer, rt *rapid.T) (ids []string) {
	tree := c.object(t, "tree", nil)
	for i := range rapid.IntRange(2, 14).Draw(rt, "commits") {
		date := 1_000_000 + 10*i + rapid.SampledFrom([]int{0, 0, 0, -35, 35, -500}).Draw(rt, "skew")
		var parents []string
		for range min(i, rapid.IntRange(0, 3).Draw(rt, "parents")) {
			if p := rapid.SampledFrom(ids).Draw(rt, "parent"); !slices.Contains(parents, p) {
				parents = append(parents, p)
			}
		}
		ids = append(ids, c.bare(t, tree, date, parents...))
	}
	return ids
}

// Whatever a server without filters leaves out, or a deepening has not reached
// yet, a cut history never gives another answer than the whole one: it gives the
// same or asks for more. So the host's own word for the merge base would add
// nothing.
func TestCutHistoriesGiveNoOtherAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCLI(t)
		ids := c.anyHistory(t, rt)
		one, other := rapid.SampledFrom(ids).Draw(rt, "one"), rapid.SampledFrom(ids).Draw(rt, "other")
		whole := c.mergeBases(t, one, other)
		for range 2 {
			kept := rapid.SliceOfDistinct(rapid.SampledFrom(ids), rapid.ID).Draw(rt, "kept")
			wanted := strings.Join(append(kept, one, other), "\n") + "\n"
			got, err := history(t, one, other, []byte(c.git(t, []byte(wanted), "pack-objects", "--quiet", "--stdout")))
			if gitops.KindOf(err) == gitops.KindIncomplete {
				continue
			}
			if diff := cmp.Diff(whole, got); err != nil || diff != "" {
				rt.Fatalf("merge bases of %s and %s: %v, %s", one, other, err, diff)
			}
		}
	})
}

// Two long lines of which only the ends were fetched: the answer is not yet
// certain, and a deeper fetch gives it.
func TestCutHistoryIsIncomplete(t *testing.T) {
	c := newCLI(t)
	tree := c.object(t, "tree", nil)
	root := c.bare(t, tree, 1000)
	base := c.bare(t, tree, 1001, root)
	one, other := c.bare(t, tree, 1002, base), c.bare(t, tree, 1003, base)
	tips := []byte(c.git(t, []byte(one+"\n"+other+"\n"), "pack-objects", "--quiet", "--stdout"))
	if got, err := history(t, one, other, tips); gitops.KindOf(err) != gitops.KindIncomplete {
		t.Errorf("tips alone: %v, %v", got, err)
	}
	deeper := []byte(c.git(t, []byte(one+"\n"+other+"\n"+base+"\n"), "pack-objects", "--quiet", "--stdout"))
	if got, err := history(t, one, other, deeper); gitops.KindOf(err) != gitops.KindIncomplete {
		t.Errorf("with the base, but not what lies below it: %v, %v", got, err)
	}
	whole := c.everything(t, "commit")
	if got, err := history(t, one, other, whole); err != nil || !slices.Equal(got, []string{base}) {
		t.Errorf("whole history: %v, %v; want %s", got, err, base)
	}
}

func TestHistoryOfBrokenCommits(t *testing.T) {
	c := newCLI(t)
	tree := c.object(t, "tree", nil)
	good := c.bare(t, tree, 1000)
	bad := c.object(t, "commit", []byte("tree "+tree+"\nparent nonsense\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 5 +0000\n\nm\n"))
	if _, err := history(t, good, bad, c.everything(t, "commit")); gitops.KindOf(err) != gitops.KindUnsupported {
		t.Errorf("error = %v", err)
	}
	odd := c.object(t, "commit", []byte("tree "+tree+"\nparent "+good+"\ncommitter nobody at no time\n\nm\n"))
	if got, err := history(t, good, odd, c.everything(t, "commit")); err != nil || !slices.Equal(got, []string{good}) {
		t.Errorf("commit without a date: %v, %v", got, err)
	}
}

// The list is git's own plain list, from trees alone.
func TestTreeDifferencesAreThoseOfGit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCLI(t)
		base := genTree(rt)
		now, other := mutate(rt, base), mutate(rt, base)
		var ids []string
		for i, tr := range []tree{base, now, other} {
			ids = append(ids, c.commit(t, tr, nil, "", "m", int64(1000+i)))
		}
		pack := c.everything(t, "commit", "tree")
		bases := []gitops.ObjectID{gitops.ObjectID(ids[0]), gitops.ObjectID(ids[2])}
		out := run(t, func(w *gitops.ReplyWriter) error {
			return worker.DiffTrees(bytes.NewReader(pack), w, places(t), gitops.ObjectID(ids[1]), bases, gitops.DefaultLimits())
		})
		got, err := gitops.ReadDiffReply(out, gitops.ObjectID(ids[1]), bases, gitops.DefaultLimits())
		if err != nil {
			rt.Fatalf("%v", err)
		}
		if want := strings.TrimSpace(c.git(t, nil, "rev-parse", ids[1]+"^{tree}")); string(got.Tree) != want {
			rt.Fatalf("tree %s, want %s", got.Tree, want)
		}
		for i, from := range []string{ids[0], ids[2]} {
			if diff := cmp.Diff(c.plain(t, from, ids[1]), got.Diffs[i].Changed); diff != "" {
				rt.Fatalf("from base %d: %s", i, diff)
			}
		}
	})
}

func (c cli) plain(t failer, from, to string) (out []gitops.ChangedPath) {
	kinds := map[string]gitops.PathStatus{"A": gitops.PathAdded, "D": gitops.PathDeleted, "M": gitops.PathModified, "T": gitops.PathModified}
	fields := strings.Split(c.git(t, nil, "diff-tree", "-r", "-z", "--no-renames", "--name-status", from, to), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		out = append(out, gitops.ChangedPath{Path: fields[i+1], Status: kinds[fields[i]]})
	}
	slices.SortFunc(out, func(a, b gitops.ChangedPath) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Small trees that name each other stand for any number of paths.
func TestDifferencesThatMultiplyAreTooLarge(t *testing.T) {
	c := newCLI(t)
	level := func(mode, id string) string {
		var entries [][2]string
		for i := range 100 {
			entries = append(entries, [2]string{fmt.Sprintf("%s %03d", mode, i), id})
		}
		return c.object(t, "tree", rawTree(entries...))
	}
	top := level("100644", c.object(t, "blob", []byte("x")))
	for range 4 {
		top = level("40000", top)
	}
	empty := c.object(t, "commit", []byte("tree "+c.object(t, "tree", nil)+"\ncommitter A <a@b> 1 +0000\n\nm\n"))
	head, pack := c.rawCommit(t, top)
	base := gitops.ObjectID(empty)
	out := run(t, func(w *gitops.ReplyWriter) error {
		return worker.DiffTrees(bytes.NewReader(pack), w, places(t), gitops.ObjectID(head), []gitops.ObjectID{base}, gitops.DefaultLimits())
	})
	if _, err := gitops.ReadDiffReply(out, gitops.ObjectID(head), []gitops.ObjectID{base}, gitops.DefaultLimits()); gitops.KindOf(err) != gitops.KindTooLarge {
		t.Errorf("error = %v", err)
	}
}
