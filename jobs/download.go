package jobs

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
)

// download is a pack that was asked for before there is a sandbox to take it:
// the host makes it meanwhile. Nobody looks at what comes but the sandbox.
type download struct {
	want wire.Want
	out  *io.PipeReader
	stop context.CancelCauseFunc
	done chan struct{} // closed when err is known
	err  error
}

var _ source = (*download)(nil)

// beginDownload asks for a pack. The caller ends it with drop.
func beginDownload(ctx context.Context, from source, want wire.Want) *download {
	ctx, stop := context.WithCancelCause(ctx)
	out, in := io.Pipe()
	d := &download{want: want, out: out, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = from.Fetch(ctx, want, in)
		in.CloseWithError(d.err)
	}()
	return d
}

// Fetch hands over the pack that was asked for, once.
func (d *download) Fetch(ctx context.Context, want wire.Want, w io.Writer) error {
	if !slices.Equal(want.IDs, d.want.IDs) || want.Depth != d.want.Depth {
		return fmt.Errorf("fetching what was not asked for: %w", wire.ErrInvalid)
	}
	defer context.AfterFunc(ctx, func() { d.stop(context.Cause(ctx)) })()
	if _, err := io.Copy(w, d.out); err != nil {
		d.out.CloseWithError(err) // the fetch says why: it failed, or its receiver did
	}
	<-d.done
	return d.err
}

// drop ends a download that nobody wants any more. It may come after Fetch.
func (d *download) drop() {
	d.stop(context.Canceled)
	d.out.Close()
	<-d.done
}
