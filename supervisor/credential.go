package supervisor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// renewBefore is when a token is too old to begin anything with.
	renewBefore = 5 * time.Minute
	// askAtMost is how often a run may be given a token.
	askAtMost = time.Minute
	// askPatience bounds how long one question is repeated.
	askPatience = 10 * time.Minute
	// goneTries refusals and a task that beats no longer carry for goneAfter mean
	// that the lease was taken away.
	goneTries = 4
	goneAfter = 2 * time.Minute
	// askReserve of the lease is left for reporting that there was no token.
	askReserve = 2 * time.Minute
	// maxRepoToken bounds a token, in bytes.
	maxRepoToken = 4096
)

// credentialer asks for repository access; controlplane.Client is the real one.
type credentialer interface {
	JobCredential(ctx context.Context, r protocol.CredentialRequest) controlplane.Answer[protocol.Credential]
	VerificationCredential(ctx context.Context, r protocol.VerifierCredentialRequest) controlplane.Answer[protocol.Credential]
}

// credentials is jobs.Credentials for one run. The token lives in memory only
// and goes with the run.
type credentials struct {
	repository string // full name
	lease      *lease
	client     func() credentialer // nil while there is no binding
	clock      *clock
	// request asks as the role does, and judge says what is wrong with the
	// access that was given, or "".
	request func(ctx context.Context, from credentialer) controlplane.Answer[protocol.Credential]
	judge   func(given protocol.Credential) string

	mu      sync.Mutex
	token   protocol.RepoToken
	expires time.Time // ours
	asked   time.Time // of the last token that was given
	pushing time.Time // of the last one that was given for a push
}

var _ jobs.Credentials = (*credentials)(nil)

// jobCredentials are those of a worker: they must reach as far as a push.
func (s *Supervisor) jobCredentials(r protocol.Repository, l *lease) *credentials {
	c := s.credentials(r, l)
	c.judge = unfitForJob
	c.request = func(ctx context.Context, from credentialer) controlplane.Answer[protocol.Credential] {
		return from.JobCredential(ctx, protocol.CredentialRequest{
			AssignmentID: protocol.AssignmentID(l.key.ID), LeaseToken: l.newest(),
		})
	}
	return c
}

// readCredentials are those of a verifier: what can write is refused before
// anything is fetched with it (protocol section 7, step 1).
func (s *Supervisor) readCredentials(r protocol.Repository, l *lease) *credentials {
	c := s.credentials(r, l)
	c.judge = unfitForVerification
	c.request = func(ctx context.Context, from credentialer) controlplane.Answer[protocol.Credential] {
		return from.VerificationCredential(ctx, protocol.VerifierCredentialRequest{
			VerificationID: protocol.AssignmentID(l.key.ID), LeaseToken: l.newest(),
		})
	}
	return c
}

func (s *Supervisor) credentials(r protocol.Repository, l *lease) *credentials {
	return &credentials{
		repository: r.FullName, lease: l, clock: s.clock,
		client: func() credentialer {
			if c := s.client.Load(); c != nil {
				return c
			}
			return nil
		},
	}
}

// Credential returns a token for the run's repository (see jobs.Credentials).
// While it is refused or not answered it asks again with growing pauses, as
// long as the lease and its patience last. A 401 that lasts as it does for beats
// means that the owner disconnected this runtime: nothing is pushed then, and
// one that passes costs no job.
func (c *credentials) Credential(ctx context.Context, fresh bool) (protocol.RepoToken, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.token != "" && now.Before(c.expires) && c.enough(now, fresh) {
		return c.token, nil
	}
	token, err := c.ask(ctx, now.Add(min(askPatience, c.lease.left()-askReserve)))
	if err == nil && fresh {
		c.pushing = time.Now()
	}
	return token, err
}

// enough tells whether the token at hand will do without asking. The ask before
// a push is what finds out that the lease was taken (protocol section 4, attack
// case G08), so an answer given to begin with never stands in for it, not even a
// second later; its own repeats, and renewals, are a minute apart.
func (c *credentials) enough(now time.Time, fresh bool) bool {
	if fresh {
		return now.Sub(c.pushing) < askAtMost
	}
	return c.expires.Sub(now) >= renewBefore || now.Sub(c.asked) < askAtMost
}

func (c *credentials) ask(ctx context.Context, until time.Time) (protocol.RepoToken, error) {
	var unknown time.Time // since when this runtime is told that it is not known
	for try := 0; ; try++ {
		if c.lease.ctx.Err() != nil || c.lease.left() <= 0 {
			return "", fmt.Errorf("asking for the repository credential: %w", jobs.ErrLeaseLost)
		}
		answer, err := c.once(ctx)
		if err != nil {
			return "", fmt.Errorf("asking for the repository credential: %w", err)
		}
		if answer.Class == protocol.ClassTaken {
			return c.keep(answer.Reply)
		}
		if answer.Class != protocol.ClassRevoked {
			unknown = time.Time{}
		} else if unknown.IsZero() {
			unknown = time.Now()
		}
		if try >= goneTries && c.gone(answer) || !unknown.IsZero() && time.Since(unknown) >= protocol.RevokedAfter {
			return "", fmt.Errorf("asking for the repository credential: %s: %w", answer.Say(), jobs.ErrLeaseLost)
		}
		rest := max(backoff(try), answer.RetryAfter)
		if time.Now().Add(rest).After(until) {
			return "", fmt.Errorf("asking for the repository credential: %s: %w", answer.Say(), jobs.ErrCredentialUnavailable)
		}
		if err := wait.For(ctx, rest); err != nil {
			return "", fmt.Errorf("asking for the repository credential: %w", err)
		}
	}
}

// gone tells whether the control plane has taken the lease away: it refuses the
// credential, and its beats no longer carry the task. A refusal alone may be
// passing trouble, and a task may be missing for a beat, or for as long as this
// host is not ready.
func (c *credentials) gone(a controlplane.Answer[protocol.Credential]) bool {
	return a.Class == protocol.ClassRefused && c.lease.vanished() >= goneAfter
}

func (c *credentials) once(ctx context.Context) (controlplane.Answer[protocol.Credential], error) {
	client := c.client()
	if client == nil {
		return controlplane.Answer[protocol.Credential]{}, jobs.ErrLeaseLost
	}
	return c.request(ctx, client), ctx.Err()
}

// keep checks a credential against the task before its first use (attack case
// D13).
func (c *credentials) keep(given protocol.Credential) (protocol.RepoToken, error) {
	token := string(given.Token)
	c.lease.hideToEnd(token)
	if why := c.judge(given); why != "" {
		return "", refusedCredential(why)
	}
	expires, err := time.Parse(time.RFC3339, given.ExpiresAt)
	if err != nil {
		return "", refusedCredential("its end can't be read")
	}
	local := c.clock.local(expires)
	switch {
	case !strings.EqualFold(given.Repository, c.repository):
		return "", refusedCredential("it is for another repository")
	case len(token) < protocol.MinRepoToken || len(token) > maxRepoToken || !headerText(token):
		return "", refusedCredential("the token is malformed")
	case !time.Now().Before(local):
		return "", refusedCredential("it has expired")
	}
	c.token, c.expires, c.asked = given.Token, local, time.Now()
	return c.token, nil
}

func refusedCredential(why string) error {
	return fmt.Errorf("repository credential: %s: %w", why, jobs.ErrCredentialRefused)
}

// unfitForJob wants to push and to open a pull request, and nothing that reaches
// beyond the repository's content. An empty list says nothing.
func unfitForJob(given protocol.Credential) string {
	const unfit = "its permissions do not fit a job"
	permissions := given.Permissions
	if len(permissions) == 0 {
		return ""
	}
	for _, name := range []string{"contents", "pull_requests"} {
		if level, listed := permissions[name]; listed && level != "write" {
			return unfit
		}
	}
	if permissions["contents"] != "write" || permissions["administration"] != "" {
		return unfit
	}
	return ""
}

// unfitForVerification wants a token that says that it can only read.
func unfitForVerification(given protocol.Credential) string {
	switch {
	case given.WriteAccess != nil && *given.WriteAccess:
		return "it has write access"
	case given.WriteAccess == nil && len(given.Permissions) == 0:
		return "it does not say that it can only read"
	}
	for _, level := range given.Permissions {
		if level != "read" && level != "none" {
			return "a permission of it is more than to read"
		}
	}
	return ""
}

// backoff is the pause after the n-th failed try, from 0: from one second,
// doubling, with jitter, at most 30 seconds.
func backoff(n int) time.Duration {
	wait := min(protocol.BackoffMin<<min(n, 10), protocol.BackoffMax)
	return wait - rand.N(wait/4+1)
}
