package supervisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// desk is what the control socket asks; Supervisor is the real one.
type desk interface {
	Status() Status
	Link(rotate bool) (string, error)
	archive
}

// archive is what commands ask about runs, past and present: four questions,
// since each is a command.
type archive interface {
	Jobs(ctx context.Context) ([]JobView, error)
	// Job lists the runs of one assignment with their evidence.
	Job(ctx context.Context, id string) ([]JobView, error)
	// OpenLog opens the log of the newest run of an assignment.
	OpenLog(ctx context.Context, id string) (io.ReadCloser, error)
	// DeleteJob removes the files of all runs of an assignment.
	DeleteJob(ctx context.Context, id string) error
}

// control serves the control socket: HTTP with JSON over a unix socket, to
// root, to ourselves and to the owner only.
type control struct {
	desk  desk
	owner int
	log   *slog.Logger
	mux   *http.ServeMux
}

// linkReply carries a connection link.
type linkReply struct {
	Link string `json:"link"`
}

func newControl(d desk, owner int, log *slog.Logger) *control {
	c := &control{desk: d, owner: owner, log: log, mux: http.NewServeMux()}
	c.mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, d.Status()) })
	c.mux.HandleFunc("POST /link", c.link)
	c.mux.HandleFunc("GET /jobs", c.jobs)
	c.mux.HandleFunc("GET /jobs/{id}", c.job)
	c.mux.HandleFunc("GET /jobs/{id}/log", c.jobLog)
	c.mux.HandleFunc("DELETE /jobs/{id}", c.deleteJob)
	return c
}

// serve answers on l until ctx ends.
func (c *control) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: c, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerUID(conn))
		},
		ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	return serveUntil(ctx, server, l)
}

type peerKey struct{}

// peerUID asks the kernel who connected; -1 when it doesn't say.
func peerUID(conn net.Conn) int {
	unixConn, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return -1
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid
}

// ServeHTTP checks the peer and answers.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	uid, known := r.Context().Value(peerKey{}).(int)
	if !known || uid < 0 || uid != 0 && uid != os.Geteuid() && uid != c.owner {
		c.log.Warn("a stranger at the control socket was refused", "uid", uid)
		deny(w, http.StatusForbidden, "Only root and the owner of this instance may ask.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	c.mux.ServeHTTP(w, r)
}

func (c *control) link(w http.ResponseWriter, r *http.Request) {
	link, err := c.desk.Link(r.URL.Query().Get("rotate") == "true")
	switch {
	case errors.Is(err, ErrPaired):
		deny(w, http.StatusConflict, "already paired")
	case errors.Is(err, ErrUnreachable):
		deny(w, http.StatusPreconditionFailed, err.Error())
	case err != nil:
		deny(w, http.StatusInternalServerError, err.Error())
	default:
		answer(w, http.StatusOK, linkReply{link})
	}
}

func (c *control) jobs(w http.ResponseWriter, r *http.Request) {
	jobs, err := c.desk.Jobs(r.Context())
	if err != nil {
		deny(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, jobs)
}

// job answers with all runs of one assignment.
func (c *control) job(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	found, err := c.desk.Job(r.Context(), id)
	if err != nil {
		denyJob(w, err)
		return
	}
	answer(w, http.StatusOK, found)
}

func (c *control) jobLog(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	log, err := c.desk.OpenLog(r.Context(), id)
	if err != nil {
		denyJob(w, err)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.Copy(w, log)
}

func (c *control) deleteJob(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	if err := c.desk.DeleteJob(r.Context(), id); err != nil {
		denyJob(w, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

// pathID takes nothing but a UUID, since it becomes a path.
func pathID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id, err := protocol.ParseUUID(r.PathValue("id"))
	if err != nil {
		deny(w, http.StatusNotFound, ErrNoJob.Error())
	}
	return id, err == nil
}

func denyJob(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrNoJob):
		deny(w, http.StatusNotFound, err.Error())
	case errors.Is(err, ErrBusyJob):
		deny(w, http.StatusLocked, err.Error())
	case errors.Is(err, ErrDeleted):
		deny(w, http.StatusGone, err.Error())
	case errors.Is(err, ErrNoLog):
		deny(w, http.StatusFailedDependency, err.Error())
	default:
		deny(w, http.StatusInternalServerError, err.Error())
	}
}

// serveUntil serves until ctx ends; what is being answered then has two
// seconds.
func serveUntil(ctx context.Context, server *http.Server, l net.Listener) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(short) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
