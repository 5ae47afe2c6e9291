package gitops_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

const parent gitops.ObjectID = "75b63ac7b64c3fca9b1bd217402f26d739aae07b"

func sum(s string) gitops.Digest { return sha256.Sum256([]byte(s)) }

func base(t *testing.T) gitops.Manifest {
	t.Helper()
	entry := func(path, text string, mode gitops.Mode) gitops.Entry {
		return gitops.Entry{Path: path, Mode: mode, Size: int64(len(text)), SHA256: sum(text), ID: parent}
	}
	m, err := gitops.NewManifest(parent, parent, []gitops.Entry{
		entry("src/a", "a", gitops.ModeFile), entry("src/b", "b", 0o100775), entry("src/deep/c", "c", gitops.ModeFile),
		entry("src.txt", "t", gitops.ModeFile), entry("link", "src/a", gitops.ModeLink), entry("sub", "", gitops.ModeGitlink),
		entry("run", "r", gitops.ModeExec),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func upper(path, text string) gitops.Upper {
	return gitops.Upper{Path: path, Kind: gitops.UpperFile, Size: int64(len(text)), SHA256: sum(text)}
}

func executable(u gitops.Upper) gitops.Upper {
	u.Exec = true
	return u
}

func of(path string, kind gitops.UpperKind) gitops.Upper { return gitops.Upper{Path: path, Kind: kind} }

func write(path string) gitops.Change { return gitops.Change{Path: path, Kind: gitops.ChangeWrite} }
func gone(path string) gitops.Change  { return gitops.Change{Path: path, Kind: gitops.ChangeDelete} }

func TestUpperLayerAgainstItsBase(t *testing.T) {
	cases := map[string]struct {
		uppers      []gitops.Upper
		changes     []gitops.Change
		unsupported []string
	}{
		"copied up only":           {uppers: []gitops.Upper{of("src", gitops.UpperDir), upper("src/a", "a")}},
		"copied up, old mode":      {uppers: []gitops.Upper{executable(upper("src/b", "b"))}},
		"equal size, other bytes":  {uppers: []gitops.Upper{upper("src/a", "z")}, changes: []gitops.Change{write("src/a")}},
		"mode only":                {uppers: []gitops.Upper{executable(upper("src/a", "a"))}, changes: []gitops.Change{{Path: "src/a", Kind: gitops.ChangeWrite, Exec: true}}},
		"executable bit lost":      {uppers: []gitops.Upper{upper("run", "r")}, changes: []gitops.Change{write("run")}},
		"new":                      {uppers: []gitops.Upper{upper("new", "n")}, changes: []gitops.Change{write("new")}},
		"deleted":                  {uppers: []gitops.Upper{of("src/a", gitops.UpperGone)}, changes: []gitops.Change{gone("src/a")}},
		"deleted directory":        {uppers: []gitops.Upper{of("src", gitops.UpperGone)}, changes: []gitops.Change{gone("src/a"), gone("src/b"), gone("src/deep/c")}},
		"deletion of nothing":      {uppers: []gitops.Upper{of("never", gitops.UpperGone)}},
		"opaque, one file kept":    {uppers: []gitops.Upper{upper("src/a", "a"), of("src", gitops.UpperOpaque)}, changes: []gitops.Change{gone("src/b"), gone("src/deep/c")}},
		"directory becomes a file": {uppers: []gitops.Upper{upper("src/deep", "f")}, changes: []gitops.Change{write("src/deep"), gone("src/deep/c")}},
		"file becomes a directory": {uppers: []gitops.Upper{of("run", gitops.UpperOpaque), upper("run/x", "x")}, changes: []gitops.Change{gone("run"), write("run/x")}},
		"same, not opaque":         {uppers: []gitops.Upper{of("run", gitops.UpperDir), upper("run/x", "x")}, changes: []gitops.Change{gone("run"), write("run/x")}},
		"link becomes a file":      {uppers: []gitops.Upper{upper("link", "src/a")}, changes: []gitops.Change{write("link")}},
		"link deleted":             {uppers: []gitops.Upper{of("link", gitops.UpperGone)}, changes: []gitops.Change{gone("link")}},
		"new link":                 {uppers: []gitops.Upper{of("l2", gitops.UpperOther)}, unsupported: []string{"l2"}},
		"file becomes a FIFO":      {uppers: []gitops.Upper{of("run", gitops.UpperOther)}, changes: []gitops.Change{gone("run")}, unsupported: []string{"run"}},
		"submodule's inside":       {uppers: []gitops.Upper{of("sub", gitops.UpperDir), upper("sub/x", "x"), of("sub/l", gitops.UpperOther)}},
		"submodule deleted":        {uppers: []gitops.Upper{of("sub", gitops.UpperGone)}, unsupported: []string{"sub"}},
		"submodule becomes a file": {uppers: []gitops.Upper{upper("sub", "x")}, changes: []gitops.Change{write("sub")}, unsupported: []string{"sub"}},
		"top git directory":        {uppers: []gitops.Upper{of(".git", gitops.UpperDir), upper(".git/config", "x"), of(".git/l", gitops.UpperOther)}},
		"git further down":         {uppers: []gitops.Upper{upper("src/.git/config", "x"), upper("src/.GIT", "x")}, unsupported: []string{"src/.GIT", "src/.git/config"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := gitops.Compare(base(t), c.uppers)
			if diff := cmp.Diff(gitops.ChangeSet{Changes: c.changes, Unsupported: c.unsupported}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestManifestFindsFilesAndDirectories(t *testing.T) {
	m := base(t)
	if e, ok := m.Lookup("src/deep/c"); !ok || e.SHA256 != sum("c") {
		t.Errorf("Lookup = %+v, %t", e, ok)
	}
	if _, ok := m.Lookup("src"); ok {
		t.Error("a directory was found as an entry")
	}
	if !m.HasDir("src") || !m.HasDir("src/deep") || m.HasDir("src.txt") || m.HasDir("sr") {
		t.Error("HasDir is wrong")
	}
	if n := len(m.Below("src")); n != 3 {
		t.Errorf("%d entries below src", n)
	}
	if n := len(m.Below("")); n != 7 {
		t.Errorf("%d entries in all", n)
	}
}

// The tree id is git's well-known empty tree; the commit id was made with
// `git hash-object` from the same fields.
func TestCommitIDIsGits(t *testing.T) {
	req := gitops.CommitRequest{Parent: parent, Date: time.Unix(1_750_000_000, 999).In(time.FixedZone("x", 7200)), Message: "Veyra job 7: t\n"}
	const want gitops.ObjectID = "b997f379ea01407fe21c75f3b24f0c66a6fc67e6"
	if got := gitops.CommitID(req, "4b825dc642cb6eb9a060e54bf8d69288fbee4904"); got != want {
		t.Errorf("CommitID = %s, want %s", got, want)
	}
}

func TestRepliesThatDoNotFitAreRefused(t *testing.T) {
	m := base(t)
	req := gitops.CommitRequest{Parent: parent, Message: "m\n", Changes: []gitops.Change{write("src/a"), write("new"), gone("run")}}
	good := func() gitops.CommitReply {
		return gitops.CommitReply{Commit: gitops.CommitID(req, parent), Tree: parent, Changed: []gitops.ChangedPath{
			{Path: "new", Status: gitops.PathAdded}, {Path: "run", Status: gitops.PathDeleted}, {Path: "src/a", Status: gitops.PathModified},
		}}
	}
	if err := gitops.CheckReply(m, req, good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*gitops.CommitReply){
		"another commit":   func(r *gitops.CommitReply) { r.Commit = parent },
		"another tree":     func(r *gitops.CommitReply) { r.Tree = gitops.ObjectID(strings.Repeat("1", 40)) },
		"a path more":      func(r *gitops.CommitReply) { r.Changed = append(r.Changed, gitops.ChangedPath{Path: "x", Status: 1}) },
		"a path fewer":     func(r *gitops.CommitReply) { r.Changed = r.Changed[1:] },
		"another path":     func(r *gitops.CommitReply) { r.Changed[0].Path = "neu" },
		"a path twice":     func(r *gitops.CommitReply) { r.Changed[1] = r.Changed[0] },
		"another status":   func(r *gitops.CommitReply) { r.Changed[0].Status = gitops.PathDeleted },
		"deleted, written": func(r *gitops.CommitReply) { r.Changed[1].Status = gitops.PathModified },
	} {
		reply := good()
		spoil(&reply)
		if err := gitops.CheckReply(m, req, reply); gitops.KindOf(err) != gitops.KindBroken {
			t.Errorf("%s: error = %v", name, err)
		}
	}
}

func TestMessageIsOneLine(t *testing.T) {
	long := strings.Repeat("ä", 200)
	for in, want := range map[string]string{
		"Fix it":                        "Veyra job 7: Fix it\n",
		" a\r\n\tb \u2028 c\u202ed\x00": "Veyra job 7: a b c d\n",
		long:                            "Veyra job 7: " + long[:240] + "\n",
		"bad \xff byte":                 "Veyra job 7: bad \ufffd byte\n",
	} {
		if got := gitops.Message(7, in); got != want {
			t.Errorf("Message(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHashRequestNamesWhatAWorkTreeHides(t *testing.T) {
	r := gitops.NewHashRequest(base(t), nil, false)
	if len(r.Gitlinks) != 1 || len(r.Odd) != 1 || r.Odd[0].Path != "src/b" {
		t.Errorf("request = %+v", r)
	}
	if r := gitops.NewHashRequest(base(t), []gitops.Change{write("src/b")}, false); len(r.Odd) != 0 {
		t.Errorf("a changed file keeps its old mode: %+v", r)
	}
}

func TestKindOfForeignErrors(t *testing.T) {
	if gitops.KindOf(nil) != 0 || gitops.KindOf(errors.New("x")) != gitops.KindInternal {
		t.Error("kinds of foreign errors are wrong")
	}
}
