package jobs

import (
	"context"
	"log/slog"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// spec is a sandbox over the given layers, topmost first.
func (j *job) spec(r room, profile sandbox.Profile, image sandboxImage, layers ...sandbox.LayerID) sandbox.Spec {
	return sandbox.Spec{
		Image: image, Layers: layers, Network: sandbox.NetworkNone, Profile: profile, Limits: r.rules.Policy.Limits,
	}
}

// create starts a sandbox, with patience.
func (j *job) create(ctx context.Context, r room, spec sandbox.Spec) (place sandbox.Sandbox, err error) {
	err = patience(ctx, j.log, r.ends.Add(-leastTime), passingStart, func() (err error) {
		place, err = j.room.Create(ctx, spec)
		return err
	})
	return place, err
}

// started is a sandbox on its way: asked for while the step before it works.
type started struct {
	job   *job
	room  room
	spec  sandbox.Spec
	done  chan struct{} // closed when place and err are known
	place sandbox.Sandbox
	err   error
}

// ahead starts a sandbox that a later step needs, once the one before it is up
// (nil: at once): two starts at a time only hold each other up. Until then
// nothing but our own init runs in it, so that it takes next to nothing of what
// the job has booked. What nobody asks for ends with the job, or earlier with
// drop.
func (j *job) ahead(ctx context.Context, r room, spec sandbox.Spec, before *started) *started {
	s, room := &started{job: j, room: r, spec: spec, done: make(chan struct{})}, j.room
	j.background.Go(func() {
		defer close(s.done)
		if before != nil {
			<-before.done
		}
		s.place, s.err = room.Create(ctx, spec)
	})
	return s
}

// get gives the sandbox, or starts one with patience when that failed.
func (s *started) get(ctx context.Context) (sandbox.Sandbox, error) {
	if <-s.done; s.err == nil {
		return s.place, nil
	}
	return s.job.create(ctx, s.room, s.spec)
}

// drop ends a sandbox that is not needed after all.
func (s *started) drop() {
	s.job.background.Go(func() {
		if <-s.done; s.err == nil {
			endPlace(s.place, s.job.log)
		}
	})
}

// end closes a sandbox while the job goes on; the job's own end waits for it.
func (j *job) end(place sandbox.Sandbox) {
	if place != nil {
		j.background.Go(func() { endPlace(place, j.log) })
	}
}

// endPlace closes a sandbox in its own time: a run that was cancelled must not
// leave it.
func endPlace(place sandbox.Sandbox, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := place.Close(ctx); err != nil {
		log.Warn("closing a sandbox", "error", err)
	}
}
