package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// epoch is the newest mtime in an image (SOURCE_DATE_EPOCH, 2025-01-01): a
	// constant, so that two builds from the same packages are equal.
	epoch = 1_735_689_600
	// maxFacts bounds what a build writes down about itself, in bytes.
	maxFacts = 1 << 20
)

// facts is what a build leaves in its work directory.
type facts struct {
	layer    string // path of the tar.gz
	codename string
	tools    map[string]string
}

// debootstrap runs mmdebstrap and keeps the archive that it prints. Progress
// goes to report; what it says is kept only for the error.
func debootstrap(ctx context.Context, work string, recipe recipe, report func(string)) (facts, error) {
	mirrors, err := hostMirrors(aptDir)
	if err != nil {
		return facts{}, err
	}
	report("installing " + strings.Join(recipe.packages, " ") + " from Debian " + suite + ", " + mirrors.describe())
	options, err := hostAptOptions(ctx)
	if err != nil {
		return facts{}, err
	}
	if options.ageUnchecked {
		report("this host's apt does not check how old package lists are (Acquire::Check-Valid-Until); nor does this build")
	}
	made := facts{layer: filepath.Join(work, "layer.tar.gz")}
	program, err := findProgram("mmdebstrap")
	if err != nil {
		return facts{}, err
	}
	arguments := mmdebstrapArguments(recipe, mirrors, options)
	if err := runMmdebstrap(ctx, program, work, arguments, made.layer); err != nil {
		return facts{}, err
	}
	return made.read(work, recipe)
}

// mmdebstrapArguments is the whole command line. Variant essential installs no
// apt into the image; mode root is the only one that keeps every owner.
func mmdebstrapArguments(recipe recipe, mirrors mirrors, options aptOptions) []string {
	arguments := []string{
		"--mode=root", "--variant=essential", "--format=tar", "--keyring=" + keyring,
		"--include=" + strings.Join(recipe.packages, ","),
		`--aptopt=Acquire::Languages "none"`,
	}
	for _, option := range options.lines {
		arguments = append(arguments, "--aptopt="+option)
	}
	for _, pattern := range leftOut {
		arguments = append(arguments, "--dpkgopt=path-exclude="+pattern)
	}
	for _, script := range append([]string{sandboxUser, plainFiles}, recipe.finish...) {
		arguments = append(arguments, "--customize-hook="+inside(script))
	}
	arguments = append(arguments, "--customize-hook="+writeFacts)
	return append(append(arguments, suite, "-"), mirrors.lines()...)
}

// inside wraps a script so that it runs in the new root, globs included. The
// scripts are ours; quoting is for their own quotes.
func inside(script string) string {
	return `chroot "$1" /bin/sh -ec '` + strings.ReplaceAll(script, "'", `'\''`) + `'`
}

// writeFacts runs outside of the root, beside it. $VEYRA_WORK is the work
// directory.
const writeFacts = `chroot "$1" dpkg-query -W -f '${Package} ${Version}\n' >"$VEYRA_WORK/packages" && ` +
	`cp "$1/usr/lib/os-release" "$VEYRA_WORK/os-release"`

// runMmdebstrap runs the program and passes its archive through tame into the
// layer's file.
func runMmdebstrap(ctx context.Context, program, work string, arguments []string, layer string) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	command := exec.CommandContext(running, program, arguments...)
	command.Env = buildEnvironment(work)
	command.Dir = work
	var said tail
	command.Stderr = &said
	encloseBuild(command)
	archive, err := command.StdoutPipe()
	if err != nil {
		return fmt.Errorf("running mmdebstrap: %w", err)
	}
	// The kernel sends Pdeathsig when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Start(); err != nil {
		return fmt.Errorf("running mmdebstrap: %w", err)
	}
	packed := tame(archive, layer)
	if packed != nil && !errors.Is(packed, io.ErrUnexpectedEOF) {
		stop() // it would wait for a reader
	}
	return outcome(ctx, packed, command.Wait(), &said)
}

// outcome picks the cause among what went wrong: being called off, then the
// program's own failure (which cuts its archive off), then ours.
func outcome(ctx context.Context, packed, ended error, said *tail) error {
	cutOff := errors.Is(packed, io.ErrUnexpectedEOF)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("running mmdebstrap: %w", context.Cause(ctx))
	case ended != nil && (packed == nil || cutOff):
		return fmt.Errorf("running mmdebstrap: %w; it said: %s", ended, said)
	case cutOff:
		return fmt.Errorf("running mmdebstrap: its archive is cut off; it said: %s", said)
	}
	return packed
}

// encloseBuild gives mmdebstrap a process and a mount namespace: in mode root
// it mounts /proc, /sys and /dev/pts in the new root, in the host's namespace,
// and leaves them there when it is killed. Here whatever it mounted or started
// (apt, dpkg, chroots) ends with it, and it with us.
func encloseBuild(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS, // Go makes every mount in it private
		Pdeathsig:    syscall.SIGKILL,
	}
	command.WaitDelay = 20 * time.Second // for the pipes; the processes are gone
}

// buildEnvironment passes on the proxies and nothing else of ours.
func buildEnvironment(work string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"SOURCE_DATE_EPOCH=" + strconv.Itoa(epoch),
		"TMPDIR=" + work, "VEYRA_WORK=" + work,
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value, found := os.LookupEnv(name); found {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// findProgram looks where Debian puts it, whatever this process's PATH says.
func findProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/usr/local/bin"} {
		path := filepath.Join(dir, name)
		if found, err := os.Stat(path); err == nil && found.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: %w", name, ErrToolMissing)
}

// tame copies the archive without device nodes: a sandbox makes its own /dev,
// and the unpack refuses devices, whoever packed them.
func tame(archive io.Reader, path string) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("packing layer: %w", err)
	}
	defer func() { err = cmp.Or(err, file.Close()) }()
	packer, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("packing layer: %w", err)
	}
	written := tar.NewWriter(packer)
	if err := copyEntries(tar.NewReader(archive), written); err != nil {
		return fmt.Errorf("packing layer: %w", err)
	}
	// What follows the archive's end is padding; the writer waits for us.
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return fmt.Errorf("packing layer: %w", err)
	}
	if err := cmp.Or(written.Close(), packer.Close()); err != nil {
		return fmt.Errorf("packing layer: %w", err)
	}
	return nil
}

func copyEntries(from *tar.Reader, to *tar.Writer) error {
	for count := 0; ; count++ {
		header, err := from.Next()
		if err == io.EOF && count > 0 {
			return nil
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF // mmdebstrap failed; an empty archive is none
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(header.Name, "./dev/") && header.Name != "./dev/" {
			continue
		}
		header.Uname, header.Gname = "", "" // the host's names for the image's ids
		if err := to.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
}

// tail keeps the end of what a program says, which is where the reason stands.
type tail struct{ kept []byte }

const tailBytes = 2000

// Write implements io.Writer and never fails.
func (t *tail) Write(said []byte) (int, error) {
	t.kept = append(t.kept, said...)
	if extra := len(t.kept) - tailBytes; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(said), nil
}

// String quotes it: a mirror's answers are in there.
func (t *tail) String() string { return strconv.Quote(string(bytes.TrimSpace(t.kept))) }
