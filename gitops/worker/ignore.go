package worker

import (
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// maxIgnoreFile bounds one .gitignore, in bytes.
const maxIgnoreFile = 1 << 20

// Ignore answers which of the asked paths the .gitignore files of p.Workspace
// ignore. The work tree must be the base tree: a change cannot hide files by
// changing the rules (attack case E16). Only regular files count as
// .gitignore; rules of a user or a repository's configuration do not exist.
func Ignore(in io.Reader, out *gitops.ReplyWriter, p Places) error {
	paths, err := gitops.ReadIgnoreRequest(in)
	if err != nil {
		return err
	}
	root, err := openRoot(p.Workspace)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, ignoreOp, "%w", err)
	}
	defer root.close()
	r := &rules{root: root, byDir: map[string][]pattern{}}
	for _, path := range paths {
		ignored, err := r.ignored(path)
		if err != nil {
			return err
		}
		if ignored {
			out.Path(path)
		}
	}
	out.End()
	return nil
}

const ignoreOp = "matching ignore rules"

// rules reads .gitignore files when a path below them is asked for.
type rules struct {
	root  directory
	byDir map[string][]pattern
}

// ignored decides from the top: below an ignored directory no rule can take a
// path back.
func (r *rules) ignored(path string) (bool, error) {
	for i := 0; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		hit, err := r.match(path[:i], true)
		if hit || err != nil {
			return hit, err
		}
	}
	return r.match(path, false)
}

// match asks the rules of every directory above path, the deepest first; the
// last matching line of a file decides.
func (r *rules) match(path string, isDir bool) (bool, error) {
	for dir := parent(path); ; dir = parent(dir) {
		list, err := r.of(dir)
		if err != nil {
			return false, err
		}
		rel := path
		if dir != "" {
			rel = path[len(dir)+1:]
		}
		for i := len(list) - 1; i >= 0; i-- {
			if list[i].match(rel, isDir) {
				return !list[i].negated, nil
			}
		}
		if dir == "" {
			return false, nil
		}
	}
}

func parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)]
}

func (r *rules) of(dir string) ([]pattern, error) {
	if list, known := r.byDir[dir]; known {
		return list, nil
	}
	b, err := r.read(join(dir, ".gitignore"))
	if err != nil {
		return nil, err
	}
	list := parseIgnore(string(b))
	r.byDir[dir] = list
	return list, nil
}

// read gives a regular file's bytes, nothing when there is none.
func (r *rules) read(path string) ([]byte, error) {
	dir, name, err := r.root.at(path)
	if err != nil {
		return nil, r.missing(err)
	}
	defer dir.close()
	f, st, ok, err := dir.regular(name)
	if err != nil || !ok {
		return nil, r.missing(err)
	}
	defer f.Close()
	if st.Size > maxIgnoreFile {
		return nil, gitops.Errorf(gitops.KindUnsupported, ignoreOp, "%q has %d bytes", path, st.Size)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return nil, gitops.Errorf(gitops.KindInternal, ignoreOp, "%w", err)
	}
	return b, nil
}

// missing lets go what means that there is no such file: not there, below a
// file, a link.
func (r *rules) missing(err error) error {
	for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENXIO} {
		if err == nil || errors.Is(err, gone) {
			return nil
		}
	}
	return gitops.Errorf(gitops.KindInternal, ignoreOp, "%w", err)
}
