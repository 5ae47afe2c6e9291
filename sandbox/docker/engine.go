package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// How long each call may take. Whoever runs into one assumes that it happened.
const (
	pingTime   = 2 * time.Second
	askTime    = 5 * time.Second
	createTime = 15 * time.Second
	attachTime = 5 * time.Second
	startTime  = 30 * time.Second
	removeTime = 15 * time.Second
	importTime = 10 * time.Minute
)

// minimumAPI is the first version that has all that is asked for: 20.10's.
const minimumAPI = "1.41"

// engine is a Docker Engine behind its socket. It may be restarted, replaced or
// gone at any time; every call has its own deadline. Methods may run at once.
type engine struct {
	socket string
	client *client.Client
}

// newEngine makes the client. Nothing of our environment decides where it goes or
// what it speaks.
func newEngine(socket string) (*engine, error) {
	e := &engine{socket: socket}
	var err error
	e.client, err = client.NewClientWithOpts(client.WithHost("unix://"+socket),
		client.WithDialContext(e.dial), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("making the engine's client: %w", err)
	}
	return e, nil
}

func (e *engine) close() { _ = e.client.Close() }

// guard ties a connection to a context while the client doesn't: attaching
// ignores its context once it waits for an answer.
type guard struct{ release func() bool }

type guardKey struct{}

// dial opens the socket, and closes the connection of a guarded call when that
// call's context ends.
func (e *engine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
	if err != nil {
		return nil, err
	}
	if g, found := ctx.Value(guardKey{}).(*guard); found {
		g.release = context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	return conn, nil
}

// ping asks whether the engine is there, and for its API version.
func (e *engine) ping(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	answer, err := e.client.Ping(ctx)
	if err != nil {
		return "", fmt.Errorf("the Docker Engine at %s does not answer: %w", e.socket, err)
	}
	return answer.APIVersion, nil
}

// create makes a container. A warning means that something that was asked for
// would not be applied, so it is an error.
func (e *engine) create(ctx context.Context, p plan) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	config, host := p.container()
	made, err := e.client.ContainerCreate(ctx, config, host, nil, nil, p.name)
	if err != nil {
		return "", fmt.Errorf("creating container: %w", err)
	}
	if len(made.Warnings) > 0 {
		return made.ID, fmt.Errorf("creating container: the engine warns: %.300q", made.Warnings)
	}
	return made.ID, nil
}

func isConflict(err error) bool { return cerrdefs.IsConflict(err) }

func isMissing(err error) bool { return cerrdefs.IsNotFound(err) }

// stream is the connection to the standard streams of a PID 1.
type stream struct {
	io.Reader
	conn       net.Conn
	closeWrite func() error
}

// attach opens the streams of a container that has not started. The deadline is
// kept by our dialer.
func (e *engine) attach(ctx context.Context, id string) (*stream, error) {
	g := &guard{}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, guardKey{}, g), attachTime)
	defer cancel()
	got, err := e.client.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, fmt.Errorf("attaching to container: %w", errors.Join(err, ctx.Err()))
	}
	if g.release != nil && !g.release() {
		got.Close()
		return nil, fmt.Errorf("attaching to container: %w", context.DeadlineExceeded)
	}
	return &stream{got.Reader, got.Conn, got.CloseWrite}, nil
}

func (e *engine) start(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := e.client.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return fmt.Errorf("starting container: %w", err)
	}
	return nil
}

// seen is what the engine says about a container.
type seen struct {
	id, instance, runtime string
	pid                   int
	running, oomKilled    bool
}

func (e *engine) inspect(ctx context.Context, id string) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := e.client.ContainerInspect(ctx, id)
	if err != nil {
		return seen{}, fmt.Errorf("asking about container: %w", err)
	}
	if c.ContainerJSONBase == nil || c.State == nil || c.HostConfig == nil || c.Config == nil {
		return seen{}, errors.New("asking about container: the answer says nothing of it")
	}
	return seen{
		id: c.ID, instance: c.Config.Labels[labelInstance], runtime: c.HostConfig.Runtime,
		pid: c.State.Pid, running: c.State.Running, oomKilled: c.State.OOMKilled,
	}, nil
}

// remove ends and removes a container. One that is gone is no error; one that an
// earlier call, whose answer was lost, is still removing is waited for.
func (e *engine) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	err := e.client.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if isConflict(err) {
		err = e.awaitRemoved(ctx, id)
	}
	if err != nil && !isMissing(err) {
		return fmt.Errorf("removing container: %w", err)
	}
	return nil
}

func (e *engine) awaitRemoved(ctx context.Context, id string) error {
	results, failures := e.client.ContainerWait(ctx, id, container.WaitConditionRemoved)
	select {
	case <-results:
		return nil
	case err := <-failures:
		return err
	}
}

// held is a container of some instance of ours.
type held struct{ id, instance string }

// list returns the containers that carry our label, running or not.
func (e *engine) list(ctx context.Context) ([]held, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, err := e.client.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelInstance))})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	found := make([]held, 0, len(all))
	for _, c := range all {
		found = append(found, held{c.ID, c.Labels[labelInstance]})
	}
	return found, nil
}

// imageFound is an image of ours in the engine.
type imageFound struct {
	id    string
	label string // our digest
	plain bool   // it brings nothing that would change a container
}

// lookup finds an image by name or id; isMissing when there is none.
func (e *engine) lookup(ctx context.Context, ref string) (imageFound, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	i, err := e.client.ImageInspect(ctx, ref)
	if err != nil {
		return imageFound{}, fmt.Errorf("looking up image %.100q: %w", ref, err)
	}
	if i.Config == nil {
		return imageFound{id: i.ID}, nil
	}
	c := i.Config
	return imageFound{id: i.ID, label: c.Labels[labelImage], plain: len(c.Volumes)+len(c.Env)+len(c.Entrypoint)+
		len(c.Cmd)+len(c.ExposedPorts)+len(c.OnBuild) == 0 && c.User == "" && c.Healthcheck == nil}, nil
}

// images lists what was imported for us, of any instance.
func (e *engine) images(ctx context.Context) ([]imageFound, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, err := e.client.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelImage))})
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	found := make([]imageFound, 0, len(all))
	for _, i := range all {
		found = append(found, imageFound{id: i.ID, label: i.Labels[labelImage]})
	}
	return found, nil
}

// forgetImage removes an image by name, unless a container uses it.
func (e *engine) forgetImage(ctx context.Context, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if _, err := e.client.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true}); err != nil && !isMissing(err) {
		return fmt.Errorf("removing image: %w", err)
	}
	return nil
}

// load imports a root file system that tree streams as a tar archive.
func (e *engine) load(ctx context.Context, ref, digest string, tree io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, importTime)
	defer cancel()
	answer, err := e.client.ImageImport(ctx, image.ImportSource{Source: tree, SourceName: "-"}, ref,
		image.ImportOptions{Changes: []string{"LABEL " + labelImage + "=" + digest}})
	if err != nil {
		return fmt.Errorf("importing image: %w", err)
	}
	defer answer.Close()
	return readProgress(answer)
}

// readProgress reads the engine's lines to their end; a failure is one of them.
func readProgress(r io.Reader) error {
	lines := json.NewDecoder(io.LimitReader(r, 1<<20))
	for {
		var line struct {
			Error string `json:"error"`
		}
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("importing image: %w", err)
		}
		if line.Error != "" {
			return fmt.Errorf("importing image: the engine says %.300q", line.Error)
		}
	}
}
