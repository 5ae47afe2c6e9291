package pulls

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Draft is the pull request to open.
type Draft struct {
	Branch string          // the leased branch, already pushed
	Base   string          // the target branch
	Commit gitops.ObjectID // the branch's tip
	Title  string          // see Title
	Body   string          // see Body
}

// PullRequest is one as the host shows it. URL and Number are signed exactly
// as they came.
type PullRequest struct {
	Number int64
	URL    string
	Open   bool // open or merged
	Branch string
	Commit string
	Base   string
	Repo   string // full name of the repository that holds the branch
}

// shown is GitHub's form of a pull request.
type shown struct {
	Number   int64   `json:"number"`
	HTMLURL  string  `json:"html_url"`
	State    string  `json:"state"`
	MergedAt *string `json:"merged_at"`
	Head     struct {
		Ref  string `json:"ref"`
		SHA  string `json:"sha"`
		Repo *struct {
			FullName string `json:"full_name"`
		} `json:"repo"`
	} `json:"head"`
	Base struct {
		Ref string `json:"ref"`
	} `json:"base"`
}

func (s shown) pullRequest() PullRequest {
	p := PullRequest{
		Number: s.Number, URL: s.HTMLURL, Open: s.State == "open" || s.MergedAt != nil,
		Branch: s.Head.Ref, Commit: s.Head.SHA, Base: s.Base.Ref,
	}
	if s.Head.Repo != nil {
		p.Repo = s.Head.Repo.FullName
	}
	return p
}

// pauses are the waits while a host has not caught up with a push: a minute in
// all.
var pauses = []time.Duration{
	time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second, 15 * time.Second,
}

// Open finds the pull request of d or makes it. It looks before it posts, so a
// call after a lost answer opens no second one. A host that does not see the
// branch yet is asked again for a minute.
func (c *Client) Open(ctx context.Context, d Draft) (PullRequest, error) {
	return c.open(ctx, d, false)
}

// OpenFirst is Open for who has seen, in this process and before the branch was
// pushed, that there is none: it posts at once. One that was opened since is found
// when the host refuses a second.
func (c *Client) OpenFirst(ctx context.Context, d Draft) (PullRequest, error) {
	return c.open(ctx, d, true)
}

func (c *Client) open(ctx context.Context, d Draft, looked bool) (PullRequest, error) {
	for try := 0; ; try++ {
		if !looked || try > 0 {
			found, ok, err := c.find(ctx, d)
			if err != nil || ok {
				return found, err
			}
		}
		made, err := c.create(ctx, d)
		if err == nil {
			return made, c.fits(made, d)
		}
		again, err := c.afterRefusal(ctx, d, err)
		if again.Number != 0 || err == nil || !headUnseen(err) || try == len(pauses) {
			return again, err
		}
		if err := c.cfg.Sleep(ctx, pauses[try]); err != nil {
			return PullRequest{}, err
		}
	}
}

// afterRefusal looks again when the host says that it cannot: one may have
// appeared in between. Other errors pass.
func (c *Client) afterRefusal(ctx context.Context, d Draft, refusal error) (PullRequest, error) {
	var reason *unprocessable
	if !errors.As(refusal, &reason) {
		return PullRequest{}, refusal
	}
	found, ok, err := c.find(ctx, d)
	if err != nil || ok {
		return found, err
	}
	return PullRequest{}, refusal
}

// headUnseen reports whether a host may only not have seen the branch yet: it
// complains about the branch, or gives no reason that a program can read. A
// reason of another kind ("custom" for no commits) is for good.
func headUnseen(err error) bool {
	var reason *unprocessable
	if !errors.As(err, &reason) {
		return false
	}
	for _, e := range reason.Errors {
		if e.Code != "" && (e.Field != "head" || e.Code != "invalid") {
			return false
		}
	}
	return true
}

// None reports that no open pull request of the branch is to be seen.
func (c *Client) None(ctx context.Context, d Draft) (bool, error) {
	_, there, err := c.find(ctx, d)
	return err == nil && !there, err
}

// find looks for an open pull request of the branch. One with another base is
// not ours to take.
func (c *Client) find(ctx context.Context, d Draft) (PullRequest, bool, error) {
	q := url.Values{"state": {"open"}, "head": {c.cfg.Owner + ":" + d.Branch}, "per_page": {"100"}}
	var list []shown
	err := c.do(ctx, call{op: "finding pull request", method: http.MethodGet, path: "/pulls", query: q}, http.StatusOK, &list)
	if err != nil {
		return PullRequest{}, false, err
	}
	for _, s := range list { // a host may not know the filter
		if p := s.pullRequest(); p.Branch == d.Branch && c.ours(p) {
			return p, true, c.fits(p, d)
		}
	}
	return PullRequest{}, false, nil
}

func (c *Client) create(ctx context.Context, d Draft) (PullRequest, error) {
	body := map[string]string{"title": d.Title, "head": d.Branch, "base": d.Base, "body": d.Body}
	var s shown
	err := c.do(ctx, call{op: "opening pull request", method: http.MethodPost, path: "/pulls", body: body}, http.StatusCreated, &s)
	return s.pullRequest(), err
}

func (c *Client) ours(p PullRequest) bool {
	return strings.EqualFold(p.Repo, c.cfg.Owner+"/"+c.cfg.Name)
}

// fits compares what does not change with time; the commit may lag.
func (c *Client) fits(p PullRequest, d Draft) error {
	if p.Number <= 0 || p.Branch != d.Branch || p.Base != d.Base || !c.ours(p) || len(p.URL) > 2000 {
		return fail(ErrMismatch, "checking pull request", "number %d is from %q to %q", p.Number, p.Branch, p.Base)
	}
	return nil
}

// Get reads one pull request.
func (c *Client) Get(ctx context.Context, number int64) (PullRequest, error) {
	var s shown
	k := call{op: "reading pull request", method: http.MethodGet, path: fmt.Sprintf("/pulls/%d", number)}
	err := c.do(ctx, k, http.StatusOK, &s)
	return s.pullRequest(), err
}

// Settle waits, for a minute at most, until the host shows the pull request
// with d's commit and exactly the changed files, and gives both. Then what it
// shows is final: ErrMismatch.
func (c *Client) Settle(ctx context.Context, number int64, d Draft, changed []gitops.ChangedPath) (PullRequest, []File, error) {
	for try := 0; ; try++ {
		p, files, err := c.settled(ctx, number, d, changed)
		if err == nil || try == len(pauses) || !mayStillCome(err) {
			return p, files, err
		}
		if err := c.cfg.Sleep(ctx, max(pauses[try], gitops.RetryAfter(err))); err != nil {
			return PullRequest{}, nil, err
		}
	}
}

// mayStillCome: a host shows things late, and one that opened a pull request a
// moment ago may not find it yet. A credential that is refused for good is still
// refused after the minute.
func mayStillCome(err error) bool {
	var e *Error
	return errors.Is(err, ErrMismatch) || errors.Is(err, ErrUnreachable) ||
		errors.As(err, &e) && e.Status == http.StatusNotFound
}

func (c *Client) settled(ctx context.Context, number int64, d Draft, changed []gitops.ChangedPath) (PullRequest, []File, error) {
	var files []File
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() { files, unread = c.Files(ctx, number) })
	p, err := c.Get(ctx, number)
	reading.Wait()
	if err == nil {
		err = c.fits(p, d)
	}
	if err == nil && (p.Commit != string(d.Commit) || !p.Open || p.Number != number) {
		err = fail(ErrMismatch, "checking pull request", "it shows commit %.40q, open or merged: %t", p.Commit, p.Open)
	}
	if err != nil {
		return PullRequest{}, nil, err
	}
	if unread != nil {
		return p, files, unread
	}
	return p, files, EqualFiles(changed, files)
}
