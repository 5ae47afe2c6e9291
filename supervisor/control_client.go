package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// ErrNoDaemon says that nobody answers at a control socket.
var ErrNoDaemon = errors.New("no daemon is running")

// maxControlBody bounds what a command reads from its own daemon.
const maxControlBody = 64 << 20

// Control asks a running daemon over its control socket. Its methods may be
// called at once; errors wrap ErrNoDaemon when nobody answers.
type Control struct{ client *http.Client }

// NewControl makes a client for the socket at path; it dials with each call.
func NewControl(path string) *Control {
	return &Control{&http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
			}
			return conn, nil
		},
	}}}
}

// Status asks what the daemon does.
func (c *Control) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.get(ctx, http.MethodGet, "/status", &s)
	return s, err
}

// Link asks for the connection link; ErrPaired while paired, ErrUnreachable
// where the control plane could not come by it.
func (c *Control) Link(ctx context.Context, rotate bool) (string, error) {
	var l linkReply
	err := c.get(ctx, http.MethodPost, "/link?rotate="+strconv.FormatBool(rotate), &l)
	return l.Link, err
}

// Jobs lists the runs that the journal knows, newest first.
func (c *Control) Jobs(ctx context.Context) ([]JobView, error) {
	var jobs []JobView
	err := c.get(ctx, http.MethodGet, "/jobs", &jobs)
	return jobs, err
}

// Job lists the runs of one assignment.
func (c *Control) Job(ctx context.Context, id string) ([]JobView, error) {
	var jobs []JobView
	err := c.get(ctx, http.MethodGet, "/jobs/"+url.PathEscape(id), &jobs)
	return jobs, err
}

// CopyLog writes the log of the newest run of an assignment to w.
func (c *Control) CopyLog(ctx context.Context, id string, w io.Writer) error {
	res, err := c.do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(id)+"/log")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(w, res.Body)
	return err
}

// DeleteJob removes the files of an assignment's runs.
func (c *Control) DeleteJob(ctx context.Context, id string) error {
	return c.get(ctx, http.MethodDelete, "/jobs/"+url.PathEscape(id), &struct{}{})
}

// controlError is a refusal by the daemon.
type controlError struct {
	status int
	detail string
}

// Error is the daemon's sentence.
func (e *controlError) Error() string { return e.detail }

// Unwrap gives a command the error that it gets without a daemon.
func (e *controlError) Unwrap() error {
	switch e.status {
	case http.StatusNotFound:
		return ErrNoJob
	case http.StatusLocked:
		return ErrBusyJob
	case http.StatusGone:
		return ErrDeleted
	case http.StatusFailedDependency:
		return ErrNoLog
	case http.StatusConflict:
		return ErrPaired
	case http.StatusPreconditionFailed:
		return ErrUnreachable
	}
	return nil
}

func (c *Control) get(ctx context.Context, method, path string, v any) error {
	res, err := c.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxControlBody)).Decode(v); err != nil {
		return fmt.Errorf("reading the daemon's answer: %w", err)
	}
	return nil
}

func (c *Control) do(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var body protocol.ErrorBody
	_ = json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&body)
	return nil, &controlError{res.StatusCode, body.Text()}
}
