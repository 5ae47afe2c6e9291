package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// The names of a run's checkpoints.
const (
	checkpointBase   = "base"
	checkpointIntent = "publish"
)

// maxManifestBytes bounds a project manifest that detection reads.
const maxManifestBytes = 1 << 20

// fetchRepository makes the base layer: the supervisor speaks smart HTTP and
// passes the pack, unparsed, into a sandbox that has no image and no network.
func (j *job) fetchRepository(ctx context.Context, r room) (repository, error) {
	j.enter(protocol.PhasePreparingRepository, "Fetching the repository")
	remote, err := j.remote()
	if err != nil {
		return repository{}, err
	}
	var got repository
	err = j.fetching(ctx, r, func(webCtx context.Context) (err error) {
		got, err = j.fetchOnce(ctx, webCtx, r, remote)
		return err
	})
	return got, err
}

// fetching tries a step that needs the repository host, with patience, within
// the set-up's time.
func (j *job) fetching(ctx context.Context, r room, step func(webCtx context.Context) error) error {
	until := time.Now().Add(min(r.budgets.SetUp, r.left()-leastTime/2))
	return patience(ctx, j.log, until, passingFetch, func() error {
		webCtx, cancel := context.WithDeadlineCause(ctx, until, errSlowHost)
		defer cancel()
		return step(webCtx)
	})
}

// errSlowHost ends a download that would take more than the set-up's time: that
// is the host's trouble and no limit of a sandbox.
var errSlowHost = fmt.Errorf("the set-up's time is over: %w", wire.ErrUnreachable)

func (j *job) remote() (*wire.Remote, error) {
	repo := j.run.Job.Repository
	origin, err := repo.CloneOrigin(j.cfg.GitOrigins)
	if err != nil {
		return nil, fail(protocol.CodeTaskInvalid, "choosing the repository's host", err)
	}
	remote, err := wire.New(wire.Config{
		Origin: origin.String(), Owner: repo.Owner, Name: repo.Name,
		Token:     j.run.Credentials.Credential,
		Transport: j.web, UserAgent: "veyra-sandboxd/" + j.cfg.Version, Log: j.log,
	})
	if err != nil {
		return nil, fail(protocol.CodeTaskInvalid, "naming the repository", err)
	}
	return remote, nil
}

// passingFetch: what another try in the same lease may cure.
func passingFetch(err error) bool {
	return errors.Is(err, wire.ErrUnreachable) || errors.Is(err, ErrCredentialUnavailable) ||
		gitops.KindOf(err) == gitops.KindCut
}

// fetchOnce asks the host under webCtx, whose end is not the sandbox's.
func (j *job) fetchOnce(ctx, webCtx context.Context, r room, remote *wire.Remote) (repository, error) {
	var place sandbox.Sandbox
	var base gitops.ObjectID
	var pack *download
	both, bothCtx := errgroup.WithContext(webCtx)
	both.Go(func() (err error) {
		defer j.step("git_sandbox_start")()
		place, err = j.create(ctx, r, j.spec(r, sandbox.ProfileGit, ""))
		return err
	})
	both.Go(func() (err error) {
		defer j.step("credential_and_refs")()
		if base, err = j.baseCommit(bothCtx, remote); err == nil {
			pack = beginDownload(webCtx, remote, treeOf(base))
		}
		return err
	})
	err := both.Wait()
	defer func() { j.end(place) }()
	if pack != nil {
		defer pack.drop()
	}
	if err != nil {
		return repository{}, err
	}
	return j.index(ctx, webCtx, repository{room: r, remote: remote}, place, pack, base)
}

// baseCommit is the target branch's tip when the run first saw it: after a
// crash the same commit is fetched, though the branch may have moved.
func (j *job) baseCommit(ctx context.Context, remote *wire.Remote) (gitops.ObjectID, error) {
	if saved, found := j.run.Checkpoints.Load(checkpointBase); found {
		return gitops.ParseObjectID(string(saved))
	}
	id, err := remote.Branch(ctx, j.run.Job.Repository.TargetBranch)
	if err != nil {
		return "", fmt.Errorf("reading the target branch: %w", err)
	}
	if err := j.run.Checkpoints.Save(ctx, checkpointBase, []byte(id)); err != nil {
		return "", fmt.Errorf("recording the base commit: %w", err)
	}
	return id, nil
}

// index streams the pack into the sandbox, reads the manifest it answers with,
// looks at the project's manifests and freezes tree and objects.
func (j *job) index(ctx, webCtx context.Context, r repository, place sandbox.Sandbox, from source, base gitops.ObjectID) (repository, error) {
	fetched := j.step("fetch_and_index")
	manifest, err := j.indexPack(ctx, webCtx, r.room, from, place, base)
	fetched()
	if err != nil {
		return r, err
	}
	r.manifest = manifest
	j.facts.base = base
	written := tree{ctx: ctx, place: place, manifest: manifest}
	if r.plan, err = detectPlan(r.funded, written); err != nil {
		return r, err
	}
	if r.setUp, err = setUpOf(r.plan, written); err != nil {
		return r, err
	}
	j.facts.plan = r.plan
	defer j.step("base_freeze")()
	layers, err := place.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}, {Paths: []string{sandbox.Objects}}})
	if err != nil {
		return r, fmt.Errorf("freezing the base layer: %w", err)
	}
	r.base, r.objects = layers[0], layers[1]
	j.files.say("base commit %s, %d paths", base, len(manifest.Entries))
	return r, nil
}

// tree shows detection the repository: names by the manifest, small files by
// init's helper inside the sandbox that holds them.
type tree struct {
	ctx      context.Context
	place    sandbox.Sandbox
	manifest gitops.Manifest
}

var _ policies.Tree = tree{}

// Paths returns the paths of all regular files.
func (t tree) Paths() []string {
	paths := make([]string, 0, len(t.manifest.Entries))
	for _, e := range t.manifest.Entries {
		if e.Mode.IsFile() {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// Read returns a file's content. One byte more than the bound is read, so that
// the reader sees that there is more.
func (t tree) Read(path string) ([]byte, bool) {
	entry, found := t.manifest.Lookup(path)
	if !found || !entry.Mode.IsFile() || entry.Size > maxManifestBytes {
		return nil, false
	}
	return readInside(t.ctx, t.place, path, maxManifestBytes)
}

// readInside reads a file of the workspace through init's helper.
func readInside(ctx context.Context, place sandbox.Sandbox, path string, limit int) ([]byte, bool) {
	content := newKeep(limit)
	exit, err := place.Run(ctx, sandbox.Command{
		Argv:   []string{sandbox.InitPath, "read", sandbox.Workspace + "/" + path, strconv.Itoa(limit)},
		Stdout: content, Stderr: io.Discard, Timeout: time.Minute,
	})
	return content.Bytes(), err == nil && exit.Code == 0
}

// detectPlan finds out how the repository is tested, unless that is funded.
func detectPlan(funded policies.Plan, t policies.Tree) (policies.Plan, error) {
	if len(funded.Commands) > 0 {
		return funded, nil
	}
	found, err := policies.Detect(t)
	if err != nil {
		return funded, fmt.Errorf("detecting the toolchain: %w", err)
	}
	return found, nil
}

// setUpOf finds out what the repository needs before its tests can run.
func setUpOf(plan policies.Plan, t policies.Tree) (policies.SetUp, error) {
	setUp, err := policies.SetUpOf(plan.Toolchain, t)
	if err != nil {
		return setUp, fmt.Errorf("reading what the project needs: %w", err)
	}
	return setUp, nil
}
