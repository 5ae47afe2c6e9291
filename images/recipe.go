package images

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// recipe is one image as data.
type recipe struct {
	name      string
	toolchain string
	// packages are Debian's names; their versions become Image.Tools.
	packages []string
	// finish are shell lines that run in the finished root, by chroot.
	finish []string
}

var recipes = []recipe{
	{
		name:      "python",
		toolchain: "python",
		packages:  []string{"python3", "python3-venv", "python3-pip", "python3-pytest", "python-is-python3", "git", "ca-certificates"},
		finish:    []string{compilePython},
	},
}

// compilePython replaces the byte code that the packages' scripts left. That
// names its source's mtime, which the archive changes, so every start of Python
// would compile its library anew: the root is read-only. The compiler must leave
// none of that kind itself, for what it imports: without -f it would keep that.
// Hash seed and a single job keep two builds equal; unchecked, since nothing can
// change the sources.
const compilePython = `find /usr -xdev -name __pycache__ -prune -exec rm -rf {} + &&
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 python3 -m compileall -q -f -j 1 --invalidation-mode unchecked-hash \
  -x 'bad_coding|badsyntax|lib2to3/tests' /usr/lib/python3 /usr/lib/python3.*`

// sandboxUser is the one account that jobs run as. whoami, git and ssh fail
// for a uid without a line; the directories are where a sandbox mounts its own.
const sandboxUser = `printf 'veyra:x:1000:1000::/home/veyra:/bin/sh\n' >>/etc/passwd &&
printf 'veyra:x:1000:\n' >>/etc/group &&
install -d -m 0755 -o 1000 -g 1000 /home/veyra /workspace`

// plainFiles takes out what a read-only root has no use for: bits that change
// the user (no_new_privs disarms them anyway) and this host's package mirror.
const plainFiles = `find / -xdev -type f -perm /6000 -exec chmod ug-s {} + &&
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/trusted.gpg.d/*.asc`

// leftOut never gets unpacked: a third of the image, read by nobody there.
var leftOut = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*",
	"/usr/share/locale/*", "/usr/share/i18n/*", "/usr/share/lintian/*",
}

// suite moves with Debian's releases; the code name behind it is recorded.
const suite = "stable"

// digest names what an image is made by, so that one made by an older recipe is
// told from one made by this. Each part ends with a byte that none holds.
func (r recipe) digest() string {
	parts := slices.Concat([]string{r.name, r.toolchain, suite, sandboxUser, plainFiles}, r.packages, r.finish, leftOut)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// Recipes returns the names that Build takes, sorted.
func Recipes() []string {
	var names []string
	for _, known := range recipes {
		names = append(names, known.name)
	}
	slices.Sort(names)
	return names
}

func findRecipe(name string) (recipe, error) {
	for _, known := range recipes {
		if known.name == name {
			return known, nil
		}
	}
	return recipe{}, fmt.Errorf("building image %.80q: %w", name, ErrUnknownRecipe)
}
