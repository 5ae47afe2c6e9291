package wire_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// forked puts two commits on main and one on a branch that left before them.
func (f *fixture) forked(t *testing.T) (base, target, head gitops.ObjectID) {
	t.Helper()
	base = f.tip
	if _, err := f.host.Git("acme", "shop", "update-ref", "refs/heads/side", string(base)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"1", "2"} {
		id, err := f.host.Commit("acme", "shop", "main", map[string]githosttest.File{"README.md": githosttest.Text(text)})
		if err != nil {
			t.Fatal(err)
		}
		target = gitops.ObjectID(id)
	}
	id, err := f.host.Commit("acme", "shop", "side", map[string]githosttest.File{"README.md": githosttest.Text("# shop\n"), "new": githosttest.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	return base, target, gitops.ObjectID(id)
}

func reply(t *testing.T, mode func(w *gitops.ReplyWriter) error) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := gitops.NewReplyWriter(&out)
	if err := mode(w); err != nil {
		w.Fail(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// Commits alone tell the merge base, trees alone the paths that differ, in both
// versions of the protocol.
func TestHistoryAndTreesWithoutBlobs(t *testing.T) {
	for name, old := range map[string]bool{"version 2": false, "version 0": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			base, target, head := f.forked(t)
			f.host.OldProtocol = old
			r := f.remote(t, nil)
			if bases := f.bases(t, r, wire.Want{IDs: []gitops.ObjectID{head, target}, Filter: wire.FilterTrees}); !slices.Equal(bases, []gitops.ObjectID{base}) {
				t.Errorf("merge bases %v, want %s", bases, base)
			}
			var pack bytes.Buffer
			if err := r.Fetch(t.Context(), wire.Want{IDs: []gitops.ObjectID{head, base}, Depth: 1, Filter: wire.FilterBlobs}, &pack); err != nil {
				t.Fatal(err)
			}
			asked := []gitops.ObjectID{base}
			out := reply(t, func(w *gitops.ReplyWriter) error {
				return worker.DiffTrees(&pack, w, worker.Places{Objects: t.TempDir()}, head, asked, gitops.DefaultLimits())
			})
			diffs, err := gitops.ReadDiffReply(out, head, asked, gitops.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, c := range diffs.Diffs[0].Changed {
				names = append(names, c.Path)
			}
			if want := []string{"bin/run", "new", "odd\tname\xff", "src/a.py", "src/link"}; !slices.Equal(names, want) {
				t.Errorf("paths %q, want %q", names, want)
			}
		})
	}
}

func (f *fixture) bases(t *testing.T, r *wire.Remote, want wire.Want) []gitops.ObjectID {
	t.Helper()
	var pack bytes.Buffer
	if err := r.Fetch(t.Context(), want, &pack); err != nil {
		t.Fatal(err)
	}
	out := reply(t, func(w *gitops.ReplyWriter) error {
		return worker.History(&pack, w, worker.Places{Objects: t.TempDir()}, want.IDs[0], want.IDs[1], gitops.DefaultLimits())
	})
	bases, err := gitops.ReadHistoryReply(out, gitops.DefaultLimits())
	if err != nil && gitops.KindOf(err) != gitops.KindIncomplete {
		t.Fatal(err)
	}
	return bases
}

// A server without filters says so before anything is asked of it; then a
// deeper and deeper history finds the base, too.
func TestServerWithoutFilters(t *testing.T) {
	for name, old := range map[string]bool{"version 2": false, "version 0": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			base, target, head := f.forked(t)
			f.host.OldProtocol = old
			if _, err := f.host.Git("acme", "shop", "config", "uploadpack.allowFilter", "false"); err != nil {
				t.Fatal(err)
			}
			r := f.remote(t, nil)
			ids := []gitops.ObjectID{head, target}
			var pack bytes.Buffer
			err := r.Fetch(t.Context(), wire.Want{IDs: ids, Filter: wire.FilterTrees}, &pack)
			wantKind(t, err, wire.ErrNoFilter)
			if pack.Len() > 0 {
				t.Errorf("%d bytes came", pack.Len())
			}
			if got := f.bases(t, r, wire.Want{IDs: ids, Depth: 1}); len(got) > 0 {
				t.Errorf("tips alone gave the base %v", got)
			}
			if got := f.bases(t, r, wire.Want{IDs: ids, Depth: 50}); !slices.Equal(got, []gitops.ObjectID{base}) {
				t.Errorf("bases %v, want %s", got, base)
			}
		})
	}
}
