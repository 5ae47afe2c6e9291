package jobs

import (
	"context"
	"io"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
)

// outlook is what publishing would read first, read while the tests run: nothing
// of it changes anything at the repository host, and nothing of it decides. What
// is missing or out of date is read again.
type outlook struct {
	branch *wire.Preview // nil: not seen
	pulls  bool          // no pull request of the branch was to be seen
	done   chan struct{} // closed when the two above are known
}

// outlookTime bounds what publishing may have to wait for.
const outlookTime = 15 * time.Second

// lookOut begins to read. The job's end waits for it.
func (j *job) lookOut(ctx context.Context) {
	seen := &outlook{done: make(chan struct{})}
	j.outlook = seen
	j.looking.Go(func() {
		defer close(seen.done)
		ctx, cancel := context.WithTimeout(ctx, outlookTime)
		defer cancel()
		defer j.step("look_out")()
		if err := seen.read(ctx, j); err != nil {
			j.log.Debug("looking at the repository host before publishing", "error", err)
		}
	})
}

func (o *outlook) read(ctx context.Context, j *job) error {
	remote, err := j.remote()
	if err != nil {
		return err
	}
	client, err := j.pullClient()
	if err != nil {
		return err
	}
	branch := j.run.Job.Delivery.Branch
	if o.branch, err = remote.Preview(ctx, branch); err != nil {
		return err
	}
	o.pulls, err = client.None(ctx, pulls.Draft{Branch: branch, Base: j.run.Job.Repository.TargetBranch})
	return err
}

// takeOutlook gives what was seen; after a restart nothing was.
func (j *job) takeOutlook() outlook {
	if j.outlook == nil {
		return outlook{}
	}
	<-j.outlook.done
	return *j.outlook
}

// send pushes, from what was seen or after a look.
func (o outlook) send(ctx context.Context, remote *wire.Remote, branch string, id gitops.ObjectID, pack io.ReaderAt, size int64) error {
	if o.branch == nil {
		return remote.Push(ctx, branch, id, pack, size)
	}
	return remote.PushFrom(ctx, o.branch, id, pack, size)
}

// open opens the pull request, after a look for one unless that was done.
func (o outlook) open(ctx context.Context, client *pulls.Client, draft pulls.Draft) (pulls.PullRequest, error) {
	if !o.pulls {
		return client.Open(ctx, draft)
	}
	return client.OpenFirst(ctx, draft)
}
