package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// pool holds mounted disks ready, because attaching and mounting one is the
// slowest part of a start that can be done beforehand. It fills in the
// background after each take, with disks of the size that was taken last.
type pool struct {
	images, mounts string // directories of disk files and of mount points
	want           int
	log            *slog.Logger

	filling sync.WaitGroup

	mu       sync.Mutex // guards what follows
	template *os.File
	size     size // of the template and of ready
	ready    []*disk
	next     int
	busy     bool // a goroutine fills
	closed   bool
}

func newPool(images, mounts string, want int, log *slog.Logger) *pool {
	return &pool{images: images, mounts: mounts, want: want, log: log}
}

// take returns a disk of that size.
func (p *pool) take(ctx context.Context, want size) (*disk, error) {
	p.mu.Lock()
	if p.size == want && len(p.ready) > 0 {
		d := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		p.mu.Unlock()
		return d, nil
	}
	p.mu.Unlock()
	return p.make(ctx, want)
}

// make formats the size's template if it is not the last one and mounts a copy.
func (p *pool) make(ctx context.Context, want size) (*disk, error) {
	template, path, err := p.prepare(ctx, want)
	if err != nil {
		return nil, err
	}
	defer template.Close()
	return mountDisk(p.images, template, path)
}

// prepare returns a descriptor of the template that the caller closes, so that
// a change of size meanwhile does no harm.
func (p *pool) prepare(ctx context.Context, want size) (*os.File, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, "", os.ErrClosed
	}
	if p.template == nil || p.size != want {
		template, err := formatTemplate(ctx, p.images, want)
		if err != nil {
			return nil, "", err
		}
		p.replace(template, want)
	}
	fd, err := unix.FcntlInt(p.template.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, "", fmt.Errorf("duplicating template: %w", err)
	}
	p.next++
	return os.NewFile(uintptr(fd), "template"), filepath.Join(p.mounts, fmt.Sprintf("%d", p.next)), nil
}

// replace changes the size; disks of another size are of no use any more.
func (p *pool) replace(template *os.File, want size) {
	if p.template != nil {
		_ = p.template.Close()
	}
	old := p.ready
	p.template, p.size, p.ready = template, want, nil
	if len(old) > 0 {
		p.filling.Go(func() { p.drop(old) })
	}
}

func (p *pool) drop(disks []*disk) {
	for _, d := range disks {
		if err := d.release(); err != nil {
			p.log.Error("releasing a pooled disk", "err", err)
		}
	}
}

// warm begins to fill with disks of a size that is about to be taken, unless
// there is one already.
func (p *pool) warm(want size) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.want == 0 || (p.template != nil && p.size == want) {
		return
	}
	p.filling.Go(func() {
		template, _, err := p.prepare(context.Background(), want)
		if err != nil {
			p.log.Warn("warming the pool of disks", "err", err)
			return
		}
		_ = template.Close() // only held for whoever makes a disk
		p.fill()
	})
}

// fill makes disks in the background until there are enough of the last size.
func (p *pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.closed || len(p.ready) >= p.want || p.template == nil {
		return
	}
	p.busy = true
	p.filling.Go(func() {
		for p.fillOne() {
		}
	})
}

func (p *pool) fillOne() bool {
	p.mu.Lock()
	want := p.size
	if p.closed || len(p.ready) >= p.want {
		p.busy = false
		p.mu.Unlock()
		return false
	}
	p.mu.Unlock()
	d, err := p.make(context.Background(), want)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.log.Warn("filling the pool of disks", "err", err)
		p.busy = false
		return false
	}
	if p.closed || p.size != want {
		p.filling.Go(func() { p.drop([]*disk{d}) })
		return true
	}
	p.ready = append(p.ready, d)
	return true
}

// close releases all disks and waits for what is on its way.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	disks := p.ready
	p.ready = nil
	template := p.template
	p.template = nil
	p.mu.Unlock()
	p.filling.Wait()
	var failed error
	for _, d := range disks {
		failed = errors.Join(failed, d.release())
	}
	if template != nil {
		failed = errors.Join(failed, template.Close())
	}
	return failed
}
