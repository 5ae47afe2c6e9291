package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// intent is what publishing needs, journaled before anything outside changes.
// From here on a restart needs neither a sandbox nor the model, which would
// never make the same commit twice.
type intent struct {
	Branch  string               `json:"branch"`
	Commit  gitops.ObjectID      `json:"commit"`
	Tree    gitops.ObjectID      `json:"tree"`
	Pack    string               `json:"pack"` // file name in the run's directory
	Changed []gitops.ChangedPath `json:"changed"`
	Title   string               `json:"title"`
	Body    string               `json:"body"`
	// Draft is the evidence as far as it is known.
	Draft protocol.Evidence `json:"draft"`
}

// intend writes the intent down. A crash before this runs the job anew; a crash
// after it goes on with publish.
func (j *job) intend(ctx context.Context, t tested) (intent, error) {
	defer j.step("intent")()
	title, body, err := j.pullRequestTexts(t)
	if err != nil {
		return intent{}, err
	}
	made := intent{
		Branch: j.run.Job.Delivery.Branch, Commit: t.reply.Commit, Tree: t.reply.Tree,
		Pack: filepath.Base(t.pack), Changed: t.reply.Changed, Title: title, Body: body,
	}
	j.facts.commit = t.reply.Commit
	made.Draft = j.facts.evidence(j)
	value, err := json.Marshal(made)
	if err != nil {
		return made, fmt.Errorf("encoding the intent: %w", err)
	}
	if err := j.run.Checkpoints.Save(ctx, checkpointIntent, value); err != nil {
		return made, fmt.Errorf("recording the intent: %w", err)
	}
	return made, nil
}

func (j *job) pullRequestTexts(t tested) (title, body string, err error) {
	report := pulls.Report{
		Prefix: j.run.Job.Delivery.PullRequestBodyPrefix, Commit: t.reply.Commit, Tree: t.reply.Tree,
		Policy: t.rules.Policy.Name, PolicySHA256: j.facts.policySHA256(), Image: string(t.image),
		Summary: j.cfg.Secrets.String(j.facts.summary),
	}
	for _, command := range t.plan.Commands {
		report.Validation = append(report.Validation, pulls.Validation{Command: command})
	}
	if body, err = pulls.Body(report); err != nil {
		return "", "", fail(protocol.CodeTaskInvalid, "writing the pull request", err)
	}
	return pulls.Title(j.run.Job.Delivery.PullRequestTitle), body, nil
}

// loadIntent finds the intent of an earlier execution of this run.
func (j *job) loadIntent() (intent, bool, error) {
	value, found := j.run.Checkpoints.Load(checkpointIntent)
	if !found {
		return intent{}, false, nil
	}
	var made intent
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber() // evidence holds integers only, and must again
	if err := decoder.Decode(&made); err != nil {
		return made, true, fmt.Errorf("reading the journaled intent: %w", err)
	}
	j.draft = made.Draft
	return made, true, nil
}

// publish pushes exactly the new objects to the leased branch, opens the pull
// request and reads back what the host shows. Every part may be done twice and
// then changes nothing.
func (j *job) publish(ctx context.Context, made intent) error {
	j.draft = made.Draft
	j.enter(protocol.PhasePushing, "Pushing the branch")
	remote, err := j.remote()
	if err != nil {
		return err
	}
	until := j.run.Deadline.Add(-protocol.ResendUntil)
	seen := j.takeOutlook()
	err = patience(ctx, j.log, until, passingPublish, func() error {
		defer func() { seen.branch = nil }() // another try looks for itself
		return j.push(ctx, remote, made, seen)
	})
	if err != nil {
		return err
	}
	j.enter(protocol.PhasePullRequest, "Opening the pull request")
	return patience(ctx, j.log, until, passingPublish, func() error {
		defer func() { seen.pulls = false }()
		return j.openPullRequest(ctx, made, seen)
	})
}

// passingPublish: what another try before the lease's end may cure.
func passingPublish(err error) bool {
	return errors.Is(err, wire.ErrUnreachable) || errors.Is(err, pulls.ErrUnreachable) || errors.Is(err, ErrCredentialUnavailable)
}

// push asks for the credential first: while it is refused, nothing is pushed.
func (j *job) push(ctx context.Context, remote *wire.Remote, made intent, seen outlook) error {
	asked := j.step("push_credential")
	_, err := j.run.Credentials.Credential(ctx, true)
	asked()
	if err != nil {
		return fmt.Errorf("renewing the credential: %w", err)
	}
	if !time.Now().Before(j.run.Deadline) {
		return fmt.Errorf("pushing after the lease's end: %w", ErrLeaseLost)
	}
	pack, err := os.Open(filepath.Join(j.run.Dir, filepath.Base(made.Pack)))
	if err != nil {
		return fmt.Errorf("opening the pack: %w", err)
	}
	defer pack.Close()
	stat, err := pack.Stat()
	if err != nil {
		return fmt.Errorf("opening the pack: %w", err)
	}
	defer j.step("push")()
	if err := seen.send(ctx, remote, made.Branch, made.Commit, pack, stat.Size()); err != nil {
		return fmt.Errorf("pushing the commit: %w", err)
	}
	j.files.say("pushed %s", made.Commit)
	return nil
}

func (j *job) openPullRequest(ctx context.Context, made intent, seen outlook) error {
	client, err := j.pullClient()
	if err != nil {
		return err
	}
	draft := pulls.Draft{
		Branch: made.Branch, Base: j.run.Job.Repository.TargetBranch, Commit: made.Commit, Title: made.Title, Body: made.Body,
	}
	done := j.step("pull_request_open")
	opened, err := seen.open(ctx, client, draft)
	done()
	if err != nil {
		return fmt.Errorf("opening the pull request: %w", err)
	}
	defer j.step("pull_request_read")()
	shown, files, err := client.Settle(ctx, opened.Number, draft, made.Changed)
	if err != nil {
		return fmt.Errorf("reading the pull request back: %w", err)
	}
	if err := j.judgeListed(files); err != nil {
		return err
	}
	j.draft[protocol.KeyPullRequestNumber] = shown.Number
	j.draft[protocol.KeyPullRequestURL] = shown.URL
	j.draft[protocol.KeyChangedFiles] = pulls.Names(files)
	j.files.say("pull request %d with %d files", shown.Number, len(files))
	return nil
}

// judgeListed asks the rules once more, about the names that are signed. Rules
// are narrowed anew: after a restart nothing else of the job is in memory.
func (j *job) judgeListed(files []pulls.File) error {
	rules, err := j.rules()
	if err != nil {
		return err
	}
	if twin := foldedTwin(pulls.Names(files)); twin != "" {
		return fail(protocol.CodeChangeUnsupported, "judging the pull request's files", fmt.Errorf("%q differs from another name only in case", twin))
	}
	if found := rules.Judge(listedChanges(files)); len(found) > 0 {
		return fail(violationCode(found), "judging the pull request's files", fmt.Errorf("%q: %s", found[0].Path, found[0].Rule))
	}
	return nil
}

// foldedTwin finds a name that another one equals but for case: a rename that
// the host shows as two files. The control plane takes such names for one, so
// its list could never equal the host's.
func foldedTwin(names []string) string {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		folded := policies.Casefold(name)
		if seen[folded] {
			return name
		}
		seen[folded] = true
	}
	return ""
}

func (j *job) pullClient() (*pulls.Client, error) {
	repo := j.run.Job.Repository
	client, err := pulls.New(pulls.Config{
		API: j.cfg.API, Owner: repo.Owner, Name: repo.Name,
		Token:     j.run.Credentials.Credential,
		Transport: j.web, UserAgent: "veyra-sandboxd/" + j.cfg.Version,
	})
	if err != nil {
		return nil, fail(protocol.CodeTaskInvalid, "naming the repository", err)
	}
	return client, nil
}
