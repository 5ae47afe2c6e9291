package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
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

// ping asks whether the engine is there, and for its API version.
func (e *engine) ping(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	answer, err := e.client().Ping(ctx)
	if err != nil {
		return "", failed(fmt.Sprintf("the Docker Engine at %s does not answer; start it, or name another (sandbox.docker_socket)", e.socket), err)
	}
	if err := e.meet(answer); err != nil {
		return "", err
	}
	return answer.APIVersion, nil
}

// create makes a container. A warning means that something that was asked for
// would not be applied, so it is an error.
func (e *engine) create(ctx context.Context, p plan) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	config, host := p.container()
	made, err := e.client().ContainerCreate(ctx, config, host, nil, nil, p.name)
	if err != nil {
		return "", failed("creating container", err)
	}
	if !containerID.MatchString(made.ID) {
		return "", fmt.Errorf("creating container: the engine calls it %.80q, which is no id", made.ID)
	}
	if len(made.Warnings) > 0 {
		return made.ID, fmt.Errorf("creating container: the engine won't apply all that was asked for; its owner has to see to that: %.300q", made.Warnings)
	}
	return made.ID, nil
}

// containerID is what every engine calls a container. Its control groups are found
// by it, so nothing shorter may pass for one.
var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

func isConflict(err error) bool { return cerrdefs.IsConflict(err) }

func isMissing(err error) bool { return cerrdefs.IsNotFound(err) }

// isRefused says that an engine has answered, and done nothing. Whatever else
// failed may have happened.
func isRefused(err error) bool {
	return isConflict(err) || isMissing(err) || cerrdefs.IsInvalidArgument(err) || cerrdefs.IsPermissionDenied(err) ||
		cerrdefs.IsUnauthorized(err) || cerrdefs.IsNotImplemented(err)
}

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
	got, err := e.client().ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, failed("attaching to container", errors.Join(err, ctx.Err()))
	}
	if !g.let() {
		got.Close()
		return nil, failed("attaching to container", context.DeadlineExceeded)
	}
	return &stream{got.Reader, got.Conn, got.CloseWrite}, nil
}

func (e *engine) start(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := e.client().ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return failed("starting container", err)
	}
	return nil
}

// seen is what the engine says about a container.
type seen struct {
	held
	runtime            string
	pid                int
	running, oomKilled bool
}

// inspect asks about a container by id or name. Who asks by id gets that one.
func (e *engine) inspect(ctx context.Context, ref string) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := e.client().ContainerInspect(ctx, ref)
	if err != nil {
		return seen{}, failed("asking about container", err)
	}
	if c.ContainerJSONBase == nil || c.State == nil || c.HostConfig == nil || c.Config == nil {
		return seen{}, errors.New("asking about container: the answer says nothing of it")
	}
	if !containerID.MatchString(c.ID) || containerID.MatchString(ref) && c.ID != ref {
		return seen{}, fmt.Errorf("asking about container %.80q: the answer is about %.80q", ref, c.ID)
	}
	return seen{
		held: heldOf(c.ID, c.Config.Labels), runtime: c.HostConfig.Runtime,
		pid: c.State.Pid, running: c.State.Running, oomKilled: c.State.OOMKilled,
	}, nil
}

// remove ends and removes a container. One that is gone is no error. A call whose
// answer is lost is made again, since the next answer tells what became of it; one
// that is still removing is waited for.
func (e *engine) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	err := e.removeOnce(ctx, id)
	if err != nil && !isRefused(err) && ctx.Err() == nil {
		err = e.removeOnce(ctx, id)
	}
	if isConflict(err) {
		err = e.awaitRemoved(ctx, id)
	}
	if err != nil && !isMissing(err) {
		return failed("removing container", err)
	}
	return nil
}

func (e *engine) removeOnce(ctx context.Context, id string) error {
	return e.client().ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

func (e *engine) awaitRemoved(ctx context.Context, id string) error {
	results, failures := e.client().ContainerWait(ctx, id, container.WaitConditionRemoved)
	select {
	case result := <-results:
		if result.Error != nil {
			return errors.New(result.Error.Message)
		}
		return nil
	case err := <-failures:
		return err
	}
}

// list returns the containers that carry our label, running or not.
func (e *engine) list(ctx context.Context) ([]held, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, err := e.client().ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelInstance))})
	if err != nil {
		return nil, failed("listing containers", err)
	}
	found := make([]held, 0, len(all))
	for _, c := range all {
		if containerID.MatchString(c.ID) {
			found = append(found, heldOf(c.ID, c.Labels))
		}
	}
	return found, nil
}

// imageFound is an image of ours in the engine.
type imageFound struct {
	id    string
	label string   // our digest
	store string   // of which it is a copy
	names []string // "name:tag"
	plain bool     // it brings nothing that would change a container
}

// lookup finds an image by name or id; isMissing when there is none.
func (e *engine) lookup(ctx context.Context, ref string) (imageFound, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	i, err := e.client().ImageInspect(ctx, ref)
	if err != nil {
		return imageFound{}, failed(fmt.Sprintf("looking up image %.100q", ref), err)
	}
	if i.Config == nil {
		return imageFound{id: i.ID}, nil
	}
	c := i.Config
	return imageFound{id: i.ID, label: c.Labels[labelImage], store: c.Labels[labelStore], plain: len(c.Volumes)+len(c.Env)+len(c.Entrypoint)+
		len(c.Cmd)+len(c.ExposedPorts)+len(c.OnBuild) == 0 && c.User == "" && c.Healthcheck == nil}, nil
}

// images lists the copies of a store's images.
func (e *engine) images(ctx context.Context, store string) ([]imageFound, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, err := e.client().ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelStore+"="+store))})
	if err != nil {
		return nil, failed("listing images", err)
	}
	found := make([]imageFound, 0, len(all))
	for _, i := range all {
		found = append(found, imageFound{id: i.ID, label: i.Labels[labelImage], store: i.Labels[labelStore], names: i.RepoTags})
	}
	return found, nil
}

// forgetImage removes an image by id, unless a container uses it: then it is a
// later call's, and no error.
func (e *engine) forgetImage(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	_, err := e.client().ImageRemove(ctx, id, image.RemoveOptions{PruneChildren: true})
	if err != nil && !isMissing(err) && !isConflict(err) {
		return failed("removing image", err)
	}
	return nil
}

// load imports a root file system that tree streams as a tar archive.
func (e *engine) load(ctx context.Context, ref string, labels []string, tree io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, importTime)
	defer cancel()
	answer, err := e.client().ImageImport(ctx, image.ImportSource{Source: tree, SourceName: "-"}, ref, image.ImportOptions{Changes: labels})
	if err != nil {
		return failed("importing image", err)
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
