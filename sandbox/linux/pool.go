package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Pool holds mounted disks ready, because attaching, mounting and preparing one is
// the slowest part of a start that can be done beforehand. It fills in the
// background some time after each take, with disks of the size that was taken last.
type Pool struct {
	images, mounts string // directories of disk files and of mount points
	want           int
	inMemory       bool // each disk is a tmpfs, and none is held ready
	log            *slog.Logger

	filling sync.WaitGroup
	stop    chan struct{} // closed by Close
	empty   chan struct{} // told by Take, holds one value
	told    sync.Once     // guards the warning of tellCached

	mu       sync.Mutex // guards what follows
	taken    time.Time  // when one was last taken, or about to be
	template *os.File
	size     Size // of the template and of ready
	ready    []*Disk
	next     int
	busy     bool // a goroutine fills
	closed   bool
}

// Pooled is how many mounted disks are held ready: a small job starts that many
// sandboxes within a second.
const Pooled = 6

// RestAfter is when a job's starts have come to rest, so that something may be made
// ready for later ones: two processors have better to do before. An empty pool is
// filled at once all the same: the next start would wait.
const RestAfter = 250 * time.Millisecond

// NewPool returns an empty pool that will hold want disks, whose files lie in images
// without a name and which are mounted below mounts.
func NewPool(images, mounts string, want int, log *slog.Logger) *Pool {
	return &Pool{images: images, mounts: mounts, want: want, log: log, stop: make(chan struct{}), empty: make(chan struct{}, 1)}
}

// Take returns a disk of that size, with the overlay's directories on it.
func (p *Pool) Take(ctx context.Context, want Size) (*Disk, error) {
	p.mu.Lock()
	p.taken = time.Now()
	if p.size == want && len(p.ready) > 0 {
		d := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		p.tellEmpty()
		p.mu.Unlock()
		return d, nil
	}
	p.mu.Unlock()
	return p.make(ctx, want)
}

// tellEmpty wakes who waits for rest when the last disk was taken. mu is held.
func (p *Pool) tellEmpty() {
	if len(p.ready) > 0 {
		return
	}
	select {
	case p.empty <- struct{}{}:
	default:
	}
}

// make formats the size's template if it is not the last one and mounts a copy.
func (p *Pool) make(ctx context.Context, want Size) (*Disk, error) {
	if p.inMemory {
		d, err := p.mountMemory(ctx, want)
		if err != nil {
			return nil, err
		}
		return d.prepared()
	}
	template, path, err := p.prepare(ctx, want)
	if err != nil {
		return nil, err
	}
	defer template.Close()
	d, err := mountDisk(p.images, template, path)
	if err != nil {
		return nil, err
	}
	p.tellCached(d.cached)
	return d.prepared()
}

// tellCached says once what jobs have to expect where cause isn't nil.
func (p *Pool) tellCached(cause error) {
	if cause == nil {
		return
	}
	p.told.Do(func() {
		p.log.Warn("on cgroup v2, jobs that write more than their memory limit may end as oom: "+
			"the cache directory should lie on a file system that allows direct I/O", "error", cause)
	})
}

// prepare returns a descriptor of the template that the caller closes, so that
// a change of size meanwhile does no harm.
func (p *Pool) prepare(ctx context.Context, want Size) (*os.File, string, error) {
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
func (p *Pool) replace(template *os.File, want Size) {
	if p.template != nil {
		_ = p.template.Close()
	}
	old := p.ready
	p.template, p.size, p.ready = template, want, nil
	if len(old) > 0 {
		p.filling.Go(func() { p.drop(old) })
	}
}

func (p *Pool) drop(disks []*Disk) {
	for _, d := range disks {
		if err := d.Release(); err != nil {
			p.log.Error("releasing a pooled disk", "err", err)
		}
	}
}

// Warm begins to fill with disks of a size that is about to be taken, unless
// there is one already.
func (p *Pool) Warm(want Size) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.want == 0 || (p.template != nil && p.size == want) {
		return
	}
	p.taken = time.Now() // a start is on its way, and needs one only
	p.filling.Go(func() { p.warm(want) })
}

func (p *Pool) warm(want Size) {
	template, _, err := p.prepare(context.Background(), want)
	if err != nil {
		p.failed("warming the pool of disks", err)
		return
	}
	_ = template.Close() // only held for whoever makes a disk
	p.Fill()
}

// failed tells why no disk was made ready, but for the end of the pool: that is
// nobody's to look into, and the log may be an owner's terminal.
func (p *Pool) failed(doing string, err error) {
	if !errors.Is(err, os.ErrClosed) {
		p.log.Warn(doing, "err", err)
	}
}

// Fill makes disks in the background until there are enough of the last size.
func (p *Pool) Fill() {
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

// rest waits until it is time to fill, or the pool is closed.
func (p *Pool) rest() {
	for {
		left := p.untilRest(time.Now())
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-p.empty:
		case <-p.stop:
			return
		}
	}
}

// untilRest is how long there is none: starts are on their way, and the next one
// finds a disk.
func (p *Pool) untilRest(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return 0
	}
	return RestAfter - now.Sub(p.taken)
}

func (p *Pool) fillOne() bool {
	p.rest()
	p.mu.Lock()
	want := p.size
	if p.closed || len(p.ready) >= p.want {
		p.busy = false
		p.mu.Unlock()
		return false
	}
	p.mu.Unlock()
	return p.add(want)
}

// add makes one more disk.
func (p *Pool) add(want Size) bool {
	d, err := p.make(context.Background(), want)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed("filling the pool of disks", err)
		p.busy = false
		return false
	}
	if p.closed || p.size != want {
		p.filling.Go(func() { p.drop([]*Disk{d}) })
		return true
	}
	p.ready = append(p.ready, d)
	return true
}

// Close releases all disks and waits for what is on its way.
func (p *Pool) Close() error {
	p.mu.Lock()
	if !p.closed && p.stop != nil {
		close(p.stop)
	}
	p.closed = true
	disks := p.ready
	p.ready = nil
	template := p.template
	p.template = nil
	p.mu.Unlock()
	p.filling.Wait()
	var failed error
	for _, d := range disks {
		failed = errors.Join(failed, d.Release())
	}
	if template != nil {
		failed = errors.Join(failed, template.Close())
	}
	return failed
}
