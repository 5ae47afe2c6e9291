package linux

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// NewMemoryPool returns a pool for an ordinary user, who has no loop devices: each
// disk is a tmpfs below mounts, made when it is taken.
func NewMemoryPool(mounts string, log *slog.Logger) *Pool {
	return &Pool{mounts: mounts, inMemory: true, log: log}
}

// mountMemory mounts a tmpfs of that size. The kernel rounds up to whole pages, so
// we round down.
func (p *Pool) mountMemory(ctx context.Context, want Size) (*Disk, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.next++
	path := filepath.Join(p.mounts, strconv.Itoa(p.next))
	p.mu.Unlock()
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("making mount point: %w", err)
	}
	page := int64(os.Getpagesize())
	options := fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", want.Bytes/page*page, want.Inodes)
	if err := unix.Mount("veyra", path, "tmpfs", diskFlags, options); err != nil {
		_ = os.Remove(path)
		return nil, fmt.Errorf("mounting a disk in memory: %w", err)
	}
	return &Disk{Path: path}, nil
}
