package linux

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestTracesOfOthersAreJudged: a trace only leads to cgroups, and to a directory
// of root's that bears the instance's name and lies behind no link.
func TestTracesOfOthersAreJudged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	for name, change := range map[string]func(t *testing.T, dir string, tr *trace){
		"another name": func(_ *testing.T, dir string, tr *trace) { tr.Disks = filepath.Join(dir, "elsewhere") },
		"a link": func(t *testing.T, dir string, _ *trace) {
			swap(t, filepath.Join(dir, "dead"), filepath.Join(dir, "elsewhere"))
		},
		"a link above": func(t *testing.T, dir string, tr *trace) {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			tr.Disks = filepath.Join(link, "dead")
		},
		"another owner": func(t *testing.T, dir string, _ *trace) {
			if err := os.Chown(filepath.Join(dir, "dead"), 12345, 12345); err != nil {
				t.Fatal(err)
			}
		},
		"writable by others": func(t *testing.T, dir string, _ *trace) {
			if err := os.Chmod(filepath.Join(dir, "dead"), 0o777); err != nil {
				t.Fatal(err)
			}
		},
		"no cgroup": func(_ *testing.T, dir string, tr *trace) { tr.Groups, tr.Disks = []string{dir}, "" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, sub := range []string{"dead", "elsewhere", "veyra-dead/s1"} {
				if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, sub, "disk-1.img"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tr := trace{Disks: filepath.Join(dir, "dead")}
			change(t, dir, &tr)
			swept := sandbox.Swept{}
			if err := tr.sweep(context.Background(), "dead", swept); err != nil || len(swept) != 0 {
				t.Errorf("it took %v, %v", swept, err)
			}
			for _, sub := range []string{"dead", "elsewhere", "veyra-dead/s1"} {
				if _, err := os.Stat(filepath.Join(dir, sub, "disk-1.img")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestWhoEndedWellIsNotSwept: an instance that took its traces away left nothing,
// though its lock may be found free before its directory is gone.
func TestWhoEndedWellIsNotSwept(t *testing.T) {
	run := hostlocktest.Root(t)
	ended := Traces{Instance: "ended", Run: run, Disks: t.TempDir(), Cgroups: &Cgroups{}}
	other := Traces{Instance: "other", Run: run, Disks: t.TempDir(), Cgroups: &Cgroups{}, Log: slog.New(slog.DiscardHandler)}
	for locks, drop := range map[int]func() error{0: ended.Drop, 1: func() error { return nil }} {
		file := filepath.Join(run.Name(), lockOf("ended"))
		if err := errors.Join(run.MkdirAll("ended", 0o755), os.WriteFile(file, nil, 0o600), ended.Leave(), drop()); err != nil {
			t.Fatal(err)
		}
		swept := sandbox.Swept{}
		other.SweepOthers(t.Context(), swept)
		if _, err := run.Stat("ended"); swept["lock"] != locks || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d locks: swept %v, %v", locks, swept, err)
		}
	}
}

func swap(t *testing.T, name, target string) {
	t.Helper()
	if err := os.Rename(name, name+"-real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
