package worker

import (
	"bytes"
	"crypto/sha256"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Hash computes the tree id of p.Workspace from its files alone: no pack, no
// index, no base. What a work tree cannot show (gitlinks, modes that git no
// longer writes) comes with the request. Directories without files do not
// count, a ".git" at the top is skipped unread, and anything but files, links
// and directories is KindChange.
func Hash(in io.Reader, out *gitops.ReplyWriter, p Places, lim gitops.Limits) error {
	req, err := gitops.ReadHashRequest(in)
	if err != nil {
		return err
	}
	root, err := openRoot(p.Workspace)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, hashOp, "%w", err)
	}
	defer root.close()
	h := &measure{out: out, lim: lim, files: req.Files, odd: byPath(req.Odd), gitlinks: byPath(req.Gitlinks)}
	entries, err := h.directory(root, "", 0)
	if err != nil {
		return err
	}
	out.Done(gitops.ObjectID(noID), objectID("tree", encodeTree(entries)), h.sent)
	return nil
}

const hashOp = "hashing work tree"

// noID stands where an answer has no commit.
const noID = "0000000000000000000000000000000000000000"

func byPath(entries []gitops.Entry) map[string]gitops.Entry {
	out := make(map[string]gitops.Entry, len(entries))
	for _, e := range entries {
		out[e.Path] = e
	}
	return out
}

type measure struct {
	out      *gitops.ReplyWriter
	lim      gitops.Limits
	files    bool
	odd      map[string]gitops.Entry
	gitlinks map[string]gitops.Entry
	count    int
	sent     int
}

func (h *measure) fault(err error) error {
	return gitops.Errorf(gitops.KindInternal, hashOp, "%w", err)
}

func (h *measure) directory(dir directory, path string, depth int) ([]treeEntry, error) {
	names, err := dir.names()
	if err != nil {
		return nil, h.fault(err)
	}
	// The base's bound and what a change may add to it.
	if h.count += len(names); h.count > h.lim.Entries+h.lim.Changes || depth > h.lim.Depth {
		return nil, gitops.Errorf(gitops.KindTooLarge, hashOp, "%d entries, %d levels", h.count, depth)
	}
	slices.Sort(names)
	var out []treeEntry
	for _, name := range names {
		if path == "" && name == ".git" {
			continue
		}
		e, ok, err := h.entry(dir, name, join(path, name), depth)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, e)
		}
	}
	return out, nil
}

// entry measures one name; ok is false for a directory that git does not see.
func (h *measure) entry(dir directory, name, path string, depth int) (e treeEntry, ok bool, err error) {
	if err := gitops.CheckName(name); err != nil {
		return e, false, &gitops.Error{Kind: gitops.KindChange, Op: hashOp, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return e, false, h.fault(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return h.subdirectory(dir, name, path, depth)
	case unix.S_IFREG:
		e, err = h.file(dir, name, path)
		return e, true, err
	case unix.S_IFLNK:
		e, err = h.link(dir, name, path)
		return e, true, err
	}
	return e, false, gitops.Errorf(gitops.KindChange, hashOp, "path %q is no file, link or directory", path)
}

func (h *measure) subdirectory(dir directory, name, path string, depth int) (treeEntry, bool, error) {
	if g, ok := h.gitlinks[path]; ok {
		h.send(g)
		return treeEntry{name, gitops.ModeGitlink, g.ID}, true, nil
	}
	sub, err := dir.open(name)
	if err != nil {
		return treeEntry{}, false, h.fault(err)
	}
	defer sub.close()
	entries, err := h.directory(sub, path, depth+1)
	if err != nil || len(entries) == 0 {
		return treeEntry{}, false, err
	}
	return treeEntry{name, gitops.ModeDir, objectID("tree", encodeTree(entries))}, true, nil
}

func (h *measure) send(e gitops.Entry) {
	if h.files {
		h.sent++
		h.out.Entry(e)
	}
}

func (h *measure) file(dir directory, name, path string) (treeEntry, error) {
	f, st, ok, err := dir.regular(name)
	if err != nil || !ok {
		return treeEntry{}, gitops.Errorf(gitops.KindInternal, hashOp, "%q is no regular file any more: %w", path, err)
	}
	defer f.Close()
	blob, sum := newObjectHash("blob", st.Size), sha256.New()
	if _, err := io.CopyN(io.MultiWriter(blob, sum), f, st.Size); err != nil {
		return treeEntry{}, h.fault(err)
	}
	mode := gitops.ModeFile
	if st.Mode&0o100 != 0 {
		mode = gitops.ModeExec
	}
	if odd, ok := h.odd[path]; ok && odd.Mode.IsExec() == mode.IsExec() {
		mode = odd.Mode
	}
	e := gitops.Entry{Path: path, Mode: mode, Size: st.Size, SHA256: gitops.Digest(sum.Sum(nil)), ID: sumID(blob)}
	h.send(e)
	return treeEntry{name, mode, e.ID}, nil
}

func (h *measure) link(dir directory, name, path string) (treeEntry, error) {
	target, err := dir.readLink(name)
	if err != nil {
		return treeEntry{}, h.fault(err)
	}
	b := []byte(target)
	blob := newObjectHash("blob", int64(len(b)))
	_, _ = io.Copy(blob, bytes.NewReader(b))
	e := gitops.Entry{Path: path, Mode: gitops.ModeLink, Size: int64(len(b)), SHA256: sha256.Sum256(b), ID: sumID(blob)}
	h.send(e)
	return treeEntry{name, gitops.ModeLink, e.ID}, nil
}
