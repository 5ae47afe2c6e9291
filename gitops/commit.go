package gitops

import (
	"crypto/sha1" //nolint:gosec // git's object ids
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// AuthorName and AuthorEmail are author and committer of every commit.
const (
	AuthorName  = "Veyra Agent"
	AuthorEmail = "agent@veyra.local"
)

// CommitRequest is everything that decides a commit's id, besides the bytes of
// the changed files, which the worker reads from the workspace.
type CommitRequest struct {
	Parent  ObjectID
	Date    time.Time // counted in whole UTC seconds; the journal's accepted time
	Message string    // see Message
	Changes []Change  // sorted or not; each path once
}

// PathStatus is what a commit did to a path, without rename detection.
type PathStatus uint8

// The statuses. Their numbers travel in frames.
const (
	PathAdded    PathStatus = 1
	PathModified PathStatus = 2
	PathDeleted  PathStatus = 3
)

// ChangedPath is one path that differs between a commit and its parent: bytes,
// mode or type.
type ChangedPath struct {
	Path   string
	Status PathStatus
}

// CommitReply is the worker's answer. Nothing in it is to be believed before
// CheckReply, and the tree id not before it was measured by the mode hash in a
// sandbox that never saw the pack.
type CommitReply struct {
	Commit   ObjectID
	Tree     ObjectID
	Changed  []ChangedPath // sorted by path
	PackSize int64         // bytes written to the pack writer
}

// CommitID computes the id of the commit that req makes of a tree, by the
// rules of git's commit objects.
func CommitID(req CommitRequest, tree ObjectID) ObjectID {
	return commitID(CommitBody(req, tree))
}

func commitID(body []byte) ObjectID {
	h := sha1.New()
	fmt.Fprintf(h, "commit %d\x00", len(body))
	h.Write(body)
	return ObjectID(hex.EncodeToString(h.Sum(nil)))
}

// CommitBody is the text of the commit object: one parent, no trailer, the
// date in UTC, so that every retry makes the same bytes.
func CommitBody(req CommitRequest, tree ObjectID) []byte {
	who := AuthorName + " <" + AuthorEmail + "> " + strconv.FormatInt(req.Date.Unix(), 10) + " +0000"
	return fmt.Appendf(nil, "tree %s\nparent %s\nauthor %s\ncommitter %s\n\n%s",
		tree, req.Parent, who, who, req.Message)
}

const maxTitle = 120

// Message is the commit message of a job: its number and the title folded to
// one line of at most 120 characters (protocol section 3), one newline at the
// end.
func Message(jobID int64, title string) string {
	return fmt.Sprintf("Veyra job %d: %s\n", jobID, OneLine(title, maxTitle))
}

// OneLine folds white space, control and format characters of s to single
// spaces, trims it and cuts it to at most limit characters.
func OneLine(s string, limit int) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	runes := []rune(strings.Join(strings.Fields(clean), " "))
	return strings.TrimSpace(string(runes[:min(len(runes), limit)]))
}

// CheckReply compares an answer with its request: the commit id must follow
// from the request and the tree id, and the changed paths must be exactly the
// change set's. Which of added and modified a written path is stands in base.
func CheckReply(base Manifest, req CommitRequest, reply CommitReply) error {
	const op = "checking commit"
	if want := CommitID(req, reply.Tree); reply.Commit != want {
		return Errorf(KindBroken, op, "id %s does not follow from tree %s: want %s", reply.Commit, reply.Tree, want)
	}
	if len(reply.Changed) != len(req.Changes) {
		return Errorf(KindBroken, op, "%d paths changed, asked for %d", len(reply.Changed), len(req.Changes))
	}
	want := make(map[string]PathStatus, len(req.Changes))
	for _, c := range req.Changes {
		want[c.Path] = expected(base, c)
	}
	for _, p := range reply.Changed {
		if want[p.Path] != p.Status {
			return Errorf(KindBroken, op, "path %q was not changed as asked", p.Path)
		}
		delete(want, p.Path) // a path named twice fails the second time
	}
	return nil
}

func expected(base Manifest, c Change) PathStatus {
	if c.Kind == ChangeDelete {
		return PathDeleted
	}
	if _, ok := base.Lookup(c.Path); ok {
		return PathModified
	}
	return PathAdded
}
