package sandboxtest

import (
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// escapeLeftBehind are cases about what outlives a sandbox.
var escapeLeftBehind = map[string]func(*testing.T, Host){
	"A06WritableMountsAreTheirOwn": mountsAreTheirOwn,
	"A16PlantedFilesStayBehind":    plantedStay,
}

// plants is where a job puts what the next shell, git, package manager or
// scheduler would run.
const plants = `for f in ~/.bashrc ~/.profile ~/.npmrc ~/.gitconfig ~/.config/git/config ~/.ssh/config ~/.local/bin/python3 \
  /tmp/python3 /var/tmp/sh /dev/shm/sh /workspace/.git/hooks/post-checkout; do mkdir -p "$(dirname $f)" && echo planted > $f; done
for f in /etc/profile.d/x.sh /var/spool/cron/crontabs/veyra /etc/cron.d/x /usr/local/bin/python3 /run/x /etc/ld.so.preload; do
  (mkdir -p "$(dirname $f)" && echo planted > $f) 2>/dev/null; done; true`

// plantedStay: what is not part of a frozen layer is gone with its sandbox, for
// the same job and for the next.
func plantedStay(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	first := h.Create(t, job, l)
	first.Must(plants)
	first.Must("mkdir kept && echo kept > kept/file")
	kept := first.FreezePaths("/workspace/kept")
	const look = "grep -rls planted /etc /home /tmp /var /dev/shm /run /usr/local /workspace 2>/dev/null | sort; ls -A ~ /tmp"
	for name, b := range map[string]*Box{
		"the same job": h.Create(t, job, l, kept...), "the next job": h.Create(t, h.Job(t, l), l),
	} {
		if out := b.Must(look); strings.Contains(out, "planted") || strings.Contains(out, ".bashrc") || strings.Contains(out, "python3") {
			t.Errorf("%s finds what was planted:\n%s", name, out)
		}
		if exit, out := b.Cmd(sandbox.Command{Argv: []string{"sh", "-lc", "command -v python3"}}); exit.Code != 0 || !strings.HasPrefix(out, "/usr/") {
			t.Errorf("%s runs another python3: %s", name, out)
		}
	}
}

// mountsAreTheirOwn: nothing that a sandbox writes to is writable, or even seen,
// in another one that lives beside it.
func mountsAreTheirOwn(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	writer, others := h.Create(t, job, l), map[string]*Box{"the same job": h.Create(t, job, l), "another job": h.Create(t, h.Job(t, l), l)}
	const places = "/workspace /home/veyra /tmp /var/tmp /dev/shm"
	for name, other := range others {
		writer.Must("for d in " + places + "; do echo here > $d/mark && chmod 666 $d/mark; done")
		if exit, out := other.Sh("for d in " + places + "; do cat $d/mark && exit 9; echo there > $d/own; done 2> /dev/null; exit 0"); exit.Code != 0 {
			t.Errorf("a sandbox of %s sees what the first wrote: %s", name, out)
		}
		if out := writer.Must("for d in " + places + "; do cat $d/mark; ls $d/own; done 2> /dev/null; true"); strings.Contains(out, "own") || strings.Count(out, "here") != 5 {
			t.Errorf("the first sandbox sees what one of %s wrote: %s", name, out)
		}
	}
}
