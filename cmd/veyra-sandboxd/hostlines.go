package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostcheck"
)

// hostLines are facts that no sandbox is needed for.
func hostLines(s *Settings) []hostcheck.Line {
	host := hostcheck.Host{Root: os.DirFS("/"), Landlock: confine.LandlockABI(), Privileged: os.Geteuid() == 0}
	return append(host.Lines(), imageLine(s), stateLine(s))
}

func imageLine(s *Settings) hostcheck.Line {
	line := hostcheck.Line{Name: "image python", Means: "no job can run", Fix: "veyra-sandboxd image build python"}
	store, err := images.Open(filepath.Join(s.CacheDir, "images"))
	if err != nil {
		line.Seen = err.Error()
		return line
	}
	image, err := store.Lookup("python")
	if err != nil {
		line.Seen = "not built yet"
		if !errors.Is(err, images.ErrMissing) {
			line.Seen = err.Error()
		}
		return line
	}
	return hostcheck.Line{Name: line.Name, Good: true, Seen: string(image.Digest)}
}

func stateLine(s *Settings) hostcheck.Line {
	line := hostcheck.Line{Name: "state directory", Seen: s.StateDir + " is not there yet", Good: true}
	info, err := os.Lstat(s.StateDir)
	if err != nil {
		return line
	}
	line.Seen = fmt.Sprintf("%s, mode %04o", s.StateDir, info.Mode().Perm())
	if line.Good = info.IsDir() && info.Mode().Perm()&0o077 == 0; !line.Good {
		line.Means, line.Fix = "others may read keys and tokens", "chmod 0700 "+s.StateDir
	}
	return line
}
