package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// wrongAnswers is how many answers that fail the test are tried before giving
// up, which costs one of the agent's two attempts.
const wrongAnswers = 5

// qualificationTest bounds one run of the test command.
const qualificationTest = 5 * time.Minute

// Qualifier answers qualifications: one file, replaced by the model, tested in
// a sandbox like any job.
type Qualifier struct{ cfg Config }

// NewQualifier makes a qualifier of a checked configuration.
func NewQualifier(cfg Config) *Qualifier { return &Qualifier{cfg: cfg} }

// qualification is one execution. One goroutine owns it.
type qualification struct {
	cfg   Config
	run   QualificationRun
	log   *slog.Logger
	files *files
	rules *policies.Effective
	image sandboxImage
	args  []string
	room  sandbox.Job
	ends  time.Time     // of trying
	ended sandbox.Limit // that ended the last test, or ""
}

// Execute tries until an answer passes here, since each wrong submission costs
// an attempt, while trouble that may pass costs nothing but time.
func (q *Qualifier) Execute(ctx context.Context, run QualificationRun) QualificationOutcome {
	log := q.cfg.Log.With("qualification", run.Qualification.ID, "attempt", run.Qualification.Attempt)
	x := &qualification{cfg: q.cfg, run: run, log: log, files: openFiles(q.cfg.Secrets, run.Dir, log), ends: run.Deadline.Add(-lastWord)}
	defer x.close()
	ctx, cancel := context.WithDeadlineCause(ctx, x.ends, errPatienceOver)
	defer cancel()
	outcome, err := x.execute(ctx)
	if err == nil {
		return outcome
	}
	over := errors.Is(context.Cause(ctx), errPatienceOver)
	if reason := abandonment(ctx, err, run.Deadline); reason != "" && !over {
		return QualificationOutcome{Abandoned: reason}
	}
	log.Warn("qualification given up", "error", err)
	x.files.say("given up: %q", err.Error())
	code := codeOf(err)
	if over && code == protocol.CodeInternalError {
		code = protocol.CodeTimeBudgetExhausted // cut off in the middle
	}
	return QualificationOutcome{Failure: code}
}

// lastWord is the time kept for giving up: an attempt that ended without a word
// would be an open one for ever.
const lastWord = 10 * time.Second

var errPatienceOver = errors.New("the owner's patience is over")

func (x *qualification) close() {
	if x.room != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := x.room.Close(ctx); err != nil {
			x.log.Warn("closing the qualification's sandboxes", "error", err)
		}
	}
	x.files.close()
}

func (x *qualification) execute(ctx context.Context) (QualificationOutcome, error) {
	if err := patience(ctx, x.log, x.ends, passingHere, x.prepare); err != nil {
		return QualificationOutcome{}, err
	}
	if err := patience(ctx, x.log, x.ends, passingHere, func() error { return x.open(ctx) }); err != nil {
		return QualificationOutcome{}, err
	}
	brief := x.brief()
	for wrong := 0; ; wrong++ {
		outcome, err := x.try(ctx, brief)
		if err != nil || outcome.ReturnCode == 0 {
			return outcome, err
		}
		if wrong+1 >= wrongAnswers {
			return outcome, x.wrongAnswer(outcome)
		}
		brief.Feedback = outcome.Output
	}
}

func (x *qualification) wrongAnswer(last QualificationOutcome) error {
	if x.ended != "" {
		return &limitError{limit: x.ended}
	}
	return fail(protocol.CodeTestsFailedAfterRepair, "testing the answer", fmt.Errorf("exit status %d", last.ReturnCode))
}

func (x *qualification) prepare() error {
	args, err := policies.ParseValidation(x.run.Qualification.TestCommand)
	if err != nil {
		return fail(protocol.CodeUnsafeValidationCommand, "reading the test command", err)
	}
	image, found := x.cfg.Image(policies.ToolchainOf(args))
	if !found {
		return fail(protocol.CodeHostNotReady, "choosing an image", errors.New("this runtime has no image for the test command"))
	}
	rules, err := x.cfg.Policy.Effective()
	if err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	x.args, x.image, x.rules = args, image, rules
	return nil
}

func (x *qualification) open(ctx context.Context) error {
	id := sandbox.JobID(fmt.Sprintf("%s-q%d", string(x.run.Qualification.ID)[:8], x.run.Qualification.Attempt))
	opened, err := x.cfg.Backend.OpenJob(ctx, sandbox.JobSpec{ID: id, Limits: x.rules.Policy.Limits})
	if err != nil {
		return fmt.Errorf("opening the qualification: %w", err)
	}
	x.room = opened
	return nil
}

// passingHere: giving up costs an attempt, so whatever time, the owner or the
// host may cure is waited for.
func passingHere(err error) bool {
	return provider.KindOf(err) != "" || sandbox.KindOf(err) != "" || coding.KindOf(err) != "" ||
		codeOf(err) == protocol.CodeHostNotReady
}

func (x *qualification) brief() coding.SingleBrief {
	task := x.run.Qualification
	return coding.SingleBrief{
		Title: task.Title, Instructions: task.Instructions, Target: task.Target,
		Files: task.Starter, TestCommand: task.TestCommand,
	}
}

// try asks for one answer and tests it, both with patience.
func (x *qualification) try(ctx context.Context, brief coding.SingleBrief) (QualificationOutcome, error) {
	var content string
	err := patience(ctx, x.log, x.ends, passingHere, func() (err error) {
		content, err = x.cfg.Single.Answer(ctx, brief, x.run.Ledger)
		return err
	})
	if err != nil {
		return QualificationOutcome{}, fmt.Errorf("asking for the answer: %w", err)
	}
	var outcome QualificationOutcome
	err = patience(ctx, x.log, x.ends, passingHere, func() (err error) {
		outcome, err = x.test(ctx, content)
		return err
	})
	return outcome, err
}

func (x *qualification) test(ctx context.Context, content string) (QualificationOutcome, error) {
	place, err := x.room.Create(ctx, sandbox.Spec{
		Image: x.image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: x.rules.Policy.Limits,
	})
	if err != nil {
		return QualificationOutcome{}, err
	}
	defer endPlace(place, x.log)
	if err := x.write(ctx, place, content); err != nil {
		return QualificationOutcome{}, err
	}
	kept := headtail.New(1 << 20)
	log := newShown(x.files.log)
	exit, err := place.Run(ctx, sandbox.Command{Argv: x.args, Stdout: tee{kept, log}, Timeout: qualificationTest, Alone: true})
	log.finish()
	if err != nil {
		return QualificationOutcome{}, fmt.Errorf("testing the answer: %w", err)
	}
	x.files.say("exit status %d, limits %v", exit.Code, exit.Limits)
	if x.ended = exit.Ended; exit.Ended != "" {
		// An answer that makes the test run into a limit is a wrong answer.
		exit.Code = cmp.Or(exit.Code, -1)
		fmt.Fprintf(kept, "\n[ended by the limit %s]\n", exit.Ended)
	}
	if exit.Code == 0 && endedEarly(x.args, kept.String()) {
		exit.Code = -1
		fmt.Fprintf(kept, "\n[ended before its runner told a result]\n")
	}
	return QualificationOutcome{
		Files:      []protocol.File{{Path: x.run.Qualification.Target, Content: content}},
		ReturnCode: exit.Code,
		Output:     protocol.CutText(x.cfg.Secrets.String(kept.String()), protocol.MaxOutput),
	}, nil
}

// write unpacks the starter files with the target replaced.
func (x *qualification) write(ctx context.Context, place sandbox.Sandbox, content string) error {
	out, in := io.Pipe()
	go func() { in.CloseWithError(starterTree(in, x.run.Qualification, content)) }()
	words := headtail.New(4 << 10)
	exit, err := place.Run(ctx, sandbox.Command{
		Argv: []string{sandbox.InitPath, "unpack", sandbox.Workspace}, Stdin: out, Stdout: words, Timeout: time.Minute,
	})
	out.Close()
	if err != nil {
		return fmt.Errorf("writing the starter files: %w", err)
	}
	if exit.Code != 0 {
		return fail(protocol.CodeTaskInvalid, "writing the starter files", fmt.Errorf("%q", words.String()))
	}
	return nil
}

func starterTree(w io.Writer, task protocol.Qualification, content string) error {
	files := make([]plainFile, 0, len(task.Starter))
	for _, file := range task.Starter {
		text := file.Content
		if file.Path == task.Target {
			text = content
		}
		files = append(files, plainFile{path: file.Path, text: []byte(text)})
	}
	return writeTree(w, files, nil)
}
