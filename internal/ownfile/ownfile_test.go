package ownfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/internal/ownfile"
)

func TestReadTakesOnlyWhatNobodyElseMayChange(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir, file string) error
		want  error
	}{
		"good":            {func(*testing.T, string, string) error { return nil }, nil},
		"through a link":  {func(_ *testing.T, dir, file string) error { return link(dir, file) }, nil},
		"group may write": {func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o660) }, ownfile.ErrForeign},
		"all may write":   {func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o606) }, ownfile.ErrForeign},
		"directory":       {func(_ *testing.T, dir, _ string) error { return os.Chmod(dir, 0o777) }, ownfile.ErrForeign},
		"sticky":          {func(_ *testing.T, dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, nil},
		"another's":       {chown, ownfile.ErrForeign},
		"another's link":  {anothersLink, ownfile.ErrForeign},
		"link far away":   {func(_ *testing.T, dir, file string) error { return farLink(dir, file, 0o755) }, nil},
		"exchanged link":  {func(_ *testing.T, dir, file string) error { return farLink(dir, file, 0o777) }, ownfile.ErrForeign},
		"links in a ring": {func(_ *testing.T, _, file string) error { return errors.Join(os.Remove(file), os.Symlink(file, file)) }, unix.ELOOP},
		"too long":        {func(_ *testing.T, _, file string) error { return os.WriteFile(file, make([]byte, 101), 0o600) }, durable.ErrTooLarge},
		"a FIFO":          {fifo, os.ErrInvalid},
		"missing":         {func(_ *testing.T, _, file string) error { return os.Remove(file) }, os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), c.spoil(t, dir, file)); err != nil {
				t.Fatal(err)
			}
			text, err := ownfile.Read(file, 100)
			if !errors.Is(err, c.want) || err == nil && string(text) != "text" {
				t.Errorf("%q, %v, want %v", text, err, c.want)
			}
		})
	}
}

// link puts the file elsewhere and a link in its place.
func link(dir, file string) error {
	return errors.Join(os.Rename(file, filepath.Join(dir, "real")), os.Symlink("real", file))
}

// farLink leads over a link in a directory of the mode, back to the good file.
func farLink(dir, file string, mode os.FileMode) error {
	real, far := filepath.Join(dir, "real"), filepath.Join(dir, "far")
	return errors.Join(os.Rename(file, real), os.Mkdir(far, 0o755), os.Symlink("../real", filepath.Join(far, "link")),
		os.Symlink(filepath.Join(far, "link"), file), os.Chmod(far, mode))
}

func anothersLink(t *testing.T, dir, file string) error {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: only root may give a file away")
	}
	return errors.Join(link(dir, file), os.Lchown(file, 12_345, -1))
}

func fifo(_ *testing.T, _, file string) error {
	return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
}

func chown(t *testing.T, _, file string) error {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: only root may give a file away")
	}
	return os.Chown(file, 12_345, -1)
}
