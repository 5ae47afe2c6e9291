package githosttest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// File is one file of a commit; Link makes it a symbolic link.
type File struct {
	Content string
	Exec    bool
	Link    string
}

// Text is a plain file.
func Text(s string) File { return File{Content: s} }

// CreateRepo makes a repository whose branch main has one commit with these
// files, and gives the commit's id. An existing repository is an error.
func (h *Host) CreateRepo(owner, name string, files map[string]File) (string, error) {
	bare := h.Bare(owner, name)
	if _, err := os.Stat(bare); err == nil {
		return "", fmt.Errorf("creating %s/%s: it exists", owner, name)
	}
	if err := os.MkdirAll(filepath.Dir(bare), 0o755); err != nil {
		return "", err
	}
	if out, err := run("", words("init --quiet --bare --initial-branch=main", bare)); err != nil {
		return "", h.repoError("creating", owner, name, err, out)
	}
	for _, setting := range []string{"http.receivepack", "uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"} {
		if out, err := run(bare, words("config", setting, "true")); err != nil {
			return "", h.repoError("configuring", owner, name, err, out)
		}
	}
	return h.Commit(owner, name, "main", files)
}

// Commit puts a commit with exactly these files on top of a branch, which is
// made when it does not exist, and gives its id.
func (h *Host) Commit(owner, name, branch string, files map[string]File) (string, error) {
	bare := h.Bare(owner, name)
	tree, err := os.MkdirTemp(h.dir, "tree-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	for path, f := range files {
		if err := writeFile(filepath.Join(tree, path), f); err != nil {
			return "", err
		}
	}
	return h.commitTree(bare, tree, "refs/heads/"+branch)
}

func (h *Host) commitTree(bare, tree, ref string) (string, error) {
	index := "GIT_INDEX_FILE=" + filepath.Join(bare, "index-"+filepath.Base(tree))
	args := []string{"-C", tree, "--work-tree=" + tree, "-c", "core.autocrlf=false", "add", "--all", "--force", "."}
	if out, err := run(bare, args, index); err != nil {
		return "", fmt.Errorf("adding files: %w: %s", err, out)
	}
	id, err := run(bare, words("write-tree"), index)
	if err != nil {
		return "", fmt.Errorf("writing tree: %w: %s", err, id)
	}
	commit := []string{"commit-tree", "-m", "commit", strings.TrimSpace(string(id))}
	if parent, err := run(bare, words("rev-parse --verify --quiet", ref)); err == nil {
		commit = append(commit, "-p", strings.TrimSpace(string(parent)))
	}
	out, err := run(bare, commit)
	if err != nil {
		return "", fmt.Errorf("making commit: %w: %s", err, out)
	}
	head := strings.TrimSpace(string(out))
	if out, err := run(bare, words("update-ref", ref, head)); err != nil {
		return "", fmt.Errorf("moving %s: %w: %s", ref, err, out)
	}
	return head, nil
}

func writeFile(path string, f File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	perm := os.FileMode(0o644)
	if f.Exec {
		perm = 0o755
	}
	return os.WriteFile(path, []byte(f.Content), perm)
}

// Git runs a git command on a repository and gives its output without the last
// newline.
func (h *Host) Git(owner, name string, args ...string) (string, error) {
	out, err := run(h.Bare(owner, name), args)
	if err != nil {
		return "", h.repoError("running git on", owner, name, err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// words splits its first argument at spaces and appends the others.
func words(first string, more ...string) []string { return append(strings.Fields(first), more...) }

func run(bare string, args []string, env ...string) ([]byte, error) {
	if bare != "" {
		args = append([]string{"--git-dir=" + bare}, args...)
	}
	cmd := exec.Command("git", args...)
	cmd.Env = append(Environ(), env...)
	cmd.Dir = "/"
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return errs.Bytes(), err
	}
	return out.Bytes(), nil
}
