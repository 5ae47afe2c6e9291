package sandboxtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// ImageStore is the host's image store.
func ImageStore() string {
	cache := os.Getenv("VEYRA_CACHE_DIR")
	if cache == "" {
		cache = "/var/cache/veyra-sandboxd"
	}
	return filepath.Join(cache, "images")
}

// PythonImage returns "" when the host's store hasn't got the image.
func PythonImage(t testing.TB) images.Digest {
	t.Helper()
	if _, err := os.Stat(ImageStore()); err != nil {
		return ""
	}
	store, err := images.Open(ImageStore())
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Lookup("python")
	if err != nil {
		return ""
	}
	return image.Digest
}

// ImageRoot returns the directory of an image's files in the host's store.
func ImageRoot(t testing.TB, image images.Digest) string {
	t.Helper()
	store, err := images.Open(ImageStore())
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.Root(image)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// WriteProgram writes what is to be executed, by a process of its own: what this
// one has open for writing, each of its forks has open for a moment, too, and a
// file that anybody has open for writing can't be executed.
func WriteProgram(t testing.TB, path, text string, perm os.FileMode) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `cat > "$1" && chmod "$2" "$1"`, "sh", path, strconv.FormatInt(int64(perm.Perm()), 8))
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("writing %s: %v %s", path, err, out)
	}
}

// built is veyra-init, made once a test program.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// Init builds veyra-init and returns its path. The program's TestMain calls
// RemoveInit at its end.
func Init(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "veyra-init-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(built.dir, "veyra-init"), "github.com/veyra-labs/veyra-sandboxd/cmd/veyra-init")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = errors.Join(err, errors.New(string(out)))
		}
	})
	if built.err != nil {
		t.Fatalf("building veyra-init: %v", built.err)
	}
	return filepath.Join(built.dir, "veyra-init")
}

// RemoveInit removes what Init made, if it did.
func RemoveInit() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}
