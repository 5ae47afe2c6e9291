// Package hostpkg finds the package that a file of the host was installed by.
// dpkg's records are plain text and are read; those of RPM are not, so that rpm
// itself is asked where it is installed.
package hostpkg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Owner is a package as its system knows it.
type Owner struct {
	System  string // "deb" or "rpm"
	Name    string
	Version string // epoch:upstream-revision
}

// ErrNone is wrapped when no package is known to have installed the file.
var ErrNone = errors.New("no package is known to own it")

// Bounds of what is read of dpkg's records: a line, and the status of all
// packages of a large installation several times over.
const (
	maxLine   = 64 << 10
	maxStatus = 64 << 20
)

// Of returns the owner of the file at path, which is absolute and no link, on
// the host whose root is root. rpm is asked only where root is "/".
func Of(ctx context.Context, root, path string) (Owner, error) {
	owner, err := ofDeb(root, path)
	if errors.Is(err, ErrNone) && root == "/" {
		return ofRPM(ctx, path)
	}
	return owner, err
}

// ofDeb looks into the lists of files of all packages. The list of the package
// that is named like the file comes first: mostly it is the one.
func ofDeb(root, path string) (Owner, error) {
	dir := filepath.Join(root, "var/lib/dpkg/info")
	lists, err := filepath.Glob(filepath.Join(escapeGlob(dir), "*.list"))
	if err != nil {
		return Owner{}, fmt.Errorf("listing dpkg's records: %w", err)
	}
	first := filepath.Join(dir, filepath.Base(path)+".list")
	for _, list := range append([]string{first}, lists...) {
		found, err := listed(list, spellings(path))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Owner{}, err
		}
		if found {
			name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(list), ".list"), ":")
			return installed(root, name)
		}
	}
	return Owner{}, fmt.Errorf("%s: %w", path, ErrNone)
}

// spellings of a file where /bin, /sbin and /lib are links into /usr: packages
// may have either.
func spellings(path string) []string {
	if rest, found := strings.CutPrefix(path, "/usr/"); found {
		return []string{path, "/" + rest}
	}
	return []string{path, "/usr" + path}
}

// listed says whether a list holds one of the paths.
func listed(list string, paths []string) (bool, error) {
	file, err := os.Open(list)
	if err != nil {
		return false, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		for _, path := range paths {
			if lines.Text() == path {
				return true, nil
			}
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("reading %s: %w", list, err)
	}
	return false, nil
}

// installed reads the version of a package from dpkg's status, in which an
// empty line ends a package.
func installed(root, name string) (Owner, error) {
	file, err := os.Open(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		return Owner{}, fmt.Errorf("reading dpkg's status: %w", err)
	}
	defer file.Close()
	lines := bufio.NewReader(io.LimitReader(file, maxStatus))
	fields := map[string]string{}
	for {
		line, err := lines.ReadString('\n')
		key, value, isField := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if isField && !strings.HasPrefix(line, " ") {
			fields[key] = value
		}
		if err != nil || line == "\n" {
			if fields["Package"] == name && strings.HasSuffix(fields["Status"], " installed") {
				return Owner{System: "deb", Name: name, Version: fields["Version"]}, nil
			}
			clear(fields)
		}
		if err != nil {
			return Owner{}, fmt.Errorf("package %s has no status: %w", name, ErrNone)
		}
	}
}

// rpmAnswer is what ofRPM asks for: a name, then epoch:version-release.
var rpmAnswer = regexp.MustCompile(`^([A-Za-z0-9._+-]{1,200}) ([0-9]{1,9}:[A-Za-z0-9._+~^-]{1,200})\n`)

// rpmPath is rpm's on every distribution that uses it.
const rpmPath = "/usr/bin/rpm"

func ofRPM(ctx context.Context, path string) (Owner, error) {
	if _, err := os.Stat(rpmPath); err != nil {
		return Owner{}, fmt.Errorf("%s: %w", path, ErrNone)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, rpmPath, "-qf", "--qf", `%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n`, path)
	cmd.Env = []string{}
	out, err := cmd.Output()
	found := rpmAnswer.FindSubmatch(out)
	if err != nil || found == nil {
		return Owner{}, fmt.Errorf("%s: %w", path, ErrNone)
	}
	return Owner{System: "rpm", Name: string(found[1]), Version: string(found[2])}, nil
}

func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
