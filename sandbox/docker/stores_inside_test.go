package docker

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
)

// TestTwoStoresOnOneEngine: what one store hasn't got is dropped if it is that
// store's copy, and has no name of somebody else's; the other store's stays.
func TestTwoStoresOnOneEngine(t *testing.T) {
	e := enginetest.Start(t, enginetest.Debian, enginetest.Options{})
	store, err := images.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	mine, err := store.ID()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "empty.tar")
	if err := os.WriteFile(archive, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	for id, extra := range map[string]string{mine: "mine", "0123456789abcdef": "theirs"} {
		for _, name := range []string{"plain", "named"} {
			e.Client(t, "import", "--change", "LABEL surf.veyra.image="+digest, "--change", "LABEL surf.veyra.store="+id,
				archive, "veyra-image:"+extra+"-"+name)
		}
		e.Client(t, "tag", "veyra-image:"+extra+"-named", "owners:"+extra)
		e.Client(t, "import", "--change", "LABEL surf.veyra.image="+digest, "--change", "LABEL surf.veyra.store="+id, archive, "only:"+extra)
	}
	engine, err := newEngine(e.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.close()
	d := &Driver{engine: engine, config: Config{Images: store, Log: slog.New(slog.DiscardHandler)}}
	d.dropImages(t.Context(), mine)
	left := e.Ask("/images/json")
	for name, want := range map[string]bool{
		"mine-plain": false, "mine-named": true, "owners:mine": true, "only:mine": true, "theirs-plain": true, "theirs-named": true, "owners:theirs": true,
	} {
		if strings.Contains(left, name) != want {
			t.Errorf("%s is left: %t, want %t", name, !want, want)
		}
	}
}
