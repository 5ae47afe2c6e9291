// Package wait holds the one wait that a context can end. Start reading at For.
package wait

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, whose error it returns.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
