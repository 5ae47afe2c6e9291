package linux

import (
	"os"

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
