package coding

import (
	"context"
	"errors"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
	"github.com/veyra-labs/veyra-sandboxd/provider"
)

const (
	// longestPause between two requests while the provider is in trouble.
	longestPause = 30 * time.Second
	// lastTry of a round's time is kept for one more request, so that the end
	// of the time is not taken for what was the provider's trouble.
	lastTry = 5 * time.Second
)

// chat asks the model and waits for a provider whose trouble may pass, as long
// as the round has time: a job given up at once comes back within seconds and
// would use up its attempts. What the round has done so far lies in the
// sandbox, so nothing is lost by waiting. Beyond that the last error counts.
func (r *round) chat(ctx context.Context, request provider.Request) (provider.Reply, error) {
	pause := r.loop.cfg.FirstPause
	for {
		reply, err := r.loop.provider.Chat(ctx, request)
		if !passing(err) {
			return reply, r.orTrouble(ctx, err)
		}
		r.trouble = err
		left := time.Until(r.brief.Deadline) - lastTry
		if left <= 0 {
			return reply, err
		}
		r.note("trouble", string(provider.KindOf(err)))
		if wait.For(ctx, min(max(pause, wished(err)), left)) != nil {
			return reply, err
		}
		pause = min(2*pause, longestPause)
	}
}

// orTrouble: a request that the end of the time cut off while the provider was
// in trouble failed for that trouble.
func (r *round) orTrouble(ctx context.Context, err error) error {
	if err != nil && r.trouble != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return r.trouble
	}
	r.trouble = nil
	return err
}

// passing: trouble that time may cure. The provider's client has tried a few
// times by then.
func passing(err error) bool {
	switch provider.KindOf(err) {
	case provider.RateLimited, provider.Unavailable, provider.TimedOut:
		return true
	}
	return false
}

// wished is the pause that the provider asked for.
func wished(err error) time.Duration {
	var e *provider.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}
