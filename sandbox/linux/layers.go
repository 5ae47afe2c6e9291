package linux

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Layers are the frozen layers of one job, by ids that mean nothing outside of
// it. The zero value is ready. All methods may be called at once.
type Layers struct {
	mu     sync.Mutex // guards what follows
	paths  map[sandbox.LayerID]string
	frozen []*Disk
}

// Keep takes over the disk of a frozen sandbox and names its layers.
func (l *Layers) Keep(d *Disk, paths []string) []sandbox.LayerID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paths == nil {
		l.paths = map[sandbox.LayerID]string{}
	}
	l.frozen = append(l.frozen, d)
	ids := make([]sandbox.LayerID, len(paths))
	for i, path := range paths {
		ids[i] = sandbox.LayerID("layer-" + rand.Text())
		l.paths[ids[i]] = path
	}
	return ids
}

// Paths returns the directories of layers; an id of another job is refused.
func (l *Layers) Paths(ids []sandbox.LayerID) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths := make([]string, 0, len(ids)+2)
	for _, id := range ids {
		path, found := l.paths[id]
		if !found {
			return nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: fmt.Sprintf("looking up layer %.80q of the job", id)}
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Release gives up every disk, when no sandbox of the job is left. A further call
// tries again what failed.
func (l *Layers) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paths = nil
	var failed error
	l.frozen = slices.DeleteFunc(l.frozen, func(d *Disk) bool {
		err := d.Release()
		failed = errors.Join(failed, err)
		return err == nil
	})
	return failed
}
