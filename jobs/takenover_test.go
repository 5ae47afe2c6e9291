package jobs_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// takenOver is a backend whose git sandboxes parsed one pack too many: after a
// mode of the worker, its answer or the sandbox itself is no longer honest.
type takenOver struct {
	sandbox.Backend
	mode string // that lies
	// lie turns the true answer into another; nil: as it is.
	lie func([]byte) []byte
	// plant is a file that is changed behind the answer; "" for none.
	plant string
}

func (b takenOver) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.Job, error) {
	job, err := b.Backend.OpenJob(ctx, spec)
	return takenJob{job, b}, err
}

type takenJob struct {
	sandbox.Job
	b takenOver
}

func (j takenJob) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	place, err := j.Job.Create(ctx, spec)
	if err != nil || spec.Profile != sandbox.ProfileGit {
		return place, err
	}
	return takenSandbox{place, j.b}, nil
}

type takenSandbox struct {
	sandbox.Sandbox
	b takenOver
}

func (s takenSandbox) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	if len(cmd.Argv) < 2 || cmd.Argv[1] != s.b.mode {
		return s.Sandbox.Run(ctx, cmd)
	}
	var truth bytes.Buffer
	out := cmd.Stdout
	cmd.Stdout = &truth
	exit, err := s.Sandbox.Run(ctx, cmd)
	if err != nil {
		return exit, err
	}
	if s.b.plant != "" {
		if _, err := s.Sandbox.Run(ctx, sandbox.Command{
			Argv:  []string{sandbox.InitPath, "write", sandbox.Workspace + "/" + s.b.plant},
			Stdin: strings.NewReader("planted = True\n"), Stdout: io.Discard,
		}); err != nil {
			return exit, err
		}
	}
	said := truth.Bytes()
	if s.b.lie != nil {
		said = s.b.lie(said)
	}
	_, _ = out.Write(said)
	return exit, nil
}

// without leaves out the frames that hold a text.
func without(text string) func([]byte) []byte {
	return func(b []byte) []byte {
		var out bytes.Buffer
		for in := bytes.NewReader(b); ; {
			kind, payload, err := frame.Read(in, 64<<10)
			if err != nil {
				return out.Bytes()
			}
			if !bytes.Contains(payload, []byte(text)) {
				_ = frame.Write(&out, kind, payload)
			}
		}
	}
}

// A git worker that was taken over by the pack that it parsed can't hide a file
// of the change, name another tree, or have other files tested: each answer is
// held against those of other sandboxes.
func TestTakenOverGitWorkerIsFoundOut(t *testing.T) {
	for name, b := range map[string]takenOver{
		"hides a changed file":        {mode: "difftrees", lie: without("evil.py")},
		"shows another commit":        {mode: "difftrees", lie: func(b []byte) []byte { return bytes.Replace(b, []byte("tree "), []byte("tree 0"), 1) }},
		"leaves a file out":           {mode: "index", lie: without("evil.py")},
		"has other files tested":      {mode: "index", plant: "evil.py"},
		"adds a file to what is seen": {mode: "index", plant: "sitecustomize.py"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubmitted(t, project(), fixed(map[string]githosttest.File{"evil.py": githosttest.Text("x = 1\n")}), says(true))
			if name == "hides a changed file" {
				s.review.Verification.Submission.ChangedFiles = slices.DeleteFunc(s.review.Verification.Submission.ChangedFiles, func(p string) bool { return p == "evil.py" })
			}
			b.Backend = s.config.Backend
			s.config.Backend = b
			s.silent(protocol.CodeInternalError)
		})
	}
}
