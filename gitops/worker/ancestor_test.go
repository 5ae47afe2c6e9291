package worker

import (
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// FuzzAncestor: whatever a commit object holds, its parents are ids and its
// date is one that the queue can order.
func FuzzAncestor(f *testing.F) {
	const id = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	f.Add([]byte("tree " + id + "\nparent " + id + "\nauthor A <a> 1 +0000\ncommitter A <a> 2 +0000\n\nparent x\n"))
	f.Add([]byte("committer A <a> 99999999999999999999 +0000\n"))
	f.Add([]byte("committer > -5\nparent \n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAncestor(id, b)
		if err != nil {
			if gitops.KindOf(err) != gitops.KindUnsupported {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if a.date < 0 {
			t.Fatalf("date %d", a.date)
		}
		for _, p := range a.parents {
			if _, err := gitops.ParseObjectID(string(p)); err != nil {
				t.Fatalf("parent %q", p)
			}
		}
	})
}
