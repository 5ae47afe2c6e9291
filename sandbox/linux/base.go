package linux

import (
	"errors"
	"os"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Binaries are the programs of ours that sandboxes start with: open files, so
// that what runs inside is what was looked at, whatever happens to the names.
type Binaries struct {
	Init *os.File // veyra-init, static
	Git  *os.File // veyra-git, static; nil where no git work is done
}

// BuildBase builds the top lower layer of a job's sandboxes: our own binaries, the
// name files of /etc and every mount point. It lies on the runner's tmpfs and
// belongs to the range's root, so a job can neither write init nor name a host
// path by it. bare is for sandboxes without an image.
func BuildBase(target string, first uint32, bare bool, programs Binaries) error {
	tree := Tree{Root: target, First: int(first)}
	tree.Dir("", 0o755, 0)
	for _, name := range []string{".veyra", "dev", "etc", "home", "proc", "run", "sys", "var"} {
		tree.Dir(name, 0o755, 0)
	}
	MakePlaces(&tree)
	tree.File("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
	tree.File("etc/hostname", "sandbox\n")
	tree.File("etc/resolv.conf", "")
	tree.Program(".veyra/init", programs.Init)
	if bare {
		tree.File("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nveyra:x:1000:1000:veyra:"+sandbox.Home+":/sbin/nologin\n")
		tree.File("etc/group", "root:x:0:\nveyra:x:1000:\n")
		if programs.Git != nil {
			tree.Program(".veyra/git", programs.Git)
		}
	}
	return tree.Err
}

// Bases are the lower layers of ours that a job's sandboxes share, each built when
// it is first asked for. All methods may run at once.
type Bases struct {
	First    uint32        // the host's id of root inside
	Programs Binaries      // copied into each
	Path     func() string // a path on the stage that was never given before

	mu   sync.Mutex // held while one is built, guards made
	made map[bool]string
}

// Get returns the directory for sandboxes with an image or, bare, without one.
func (b *Bases) Get(bare bool) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path, found := b.made[bare]; found {
		return path, nil
	}
	path := b.Path()
	if err := BuildBase(path, b.First, bare, b.Programs); err != nil {
		return "", errors.Join(err, os.RemoveAll(path))
	}
	if b.made == nil {
		b.made = map[bool]string{}
	}
	b.made[bare] = path
	return path, nil
}

// Drop removes them; what Get returned must not be mounted any more.
func (b *Bases) Drop() (failed error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for bare, path := range b.made {
		failed = errors.Join(failed, os.RemoveAll(path))
		delete(b.made, bare)
	}
	return failed
}
