package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// envelope is what a request holds besides the evidence, generously: ids, a
// lease token, hash and signature.
const envelope = 32 << 10

// textLimits are the texts of the evidence that are cut, in code points.
var textLimits = map[string]int{
	protocol.KeySetupOutput: protocol.MaxSetupOutput, protocol.KeySetupCommand: protocol.MaxCommand,
	protocol.KeyBaselineOutput: protocol.MaxOutput, protocol.KeyBaselineCommand: protocol.MaxCommand,
	protocol.KeyTestOutput: protocol.MaxOutput, protocol.KeyTestCommand: protocol.MaxCommand,
	protocol.KeySummary: protocol.MaxSummary, protocol.KeyFailureMessage: protocol.MaxFailureMessage,
	protocol.KeyProvider: protocol.MaxProvider, protocol.KeyModel: protocol.MaxModel,
}

// sealed is what is delivered: the exact text, its hash and signature.
type sealed struct {
	revision  int
	body      []byte
	hash      string
	signature string
	at        time.Time
}

// sealJob makes evidence final and hands it to the outbox.
func (s *Supervisor) sealJob(ctx context.Context, r *run, e protocol.Evidence) {
	s.board.show(protocol.AssignmentID(r.key.ID), r.jobID, protocol.JobRunning, protocol.PhaseSubmitting, "Sealing the result")
	body, err := s.canonicalEvidence(e)
	if err != nil {
		r.log.Error("the evidence can't be sealed as it is", "error", err)
		body, err = s.canonicalEvidence(s.failedOutcome(r, codeOf(err), "").Evidence)
	}
	if err != nil {
		r.log.Error("not even a failure can be sealed", "error", err)
		return
	}
	s.draftAndSign(ctx, r, body, "0x"+hashOf(body))
}

// codeOf tells evidence that is too long from evidence that is wrong.
func codeOf(err error) protocol.Code {
	if errors.Is(err, errTooLong) {
		return protocol.CodeChangeTooLarge
	}
	return protocol.CodeInternalError
}

var errTooLong = errors.New("evidence is too long for a request")

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// canonicalEvidence cleans, redacts and cuts every text, and returns the
// canonical text of the whole: these bytes are hashed, signed and sent.
func (s *Supervisor) canonicalEvidence(e protocol.Evidence) ([]byte, error) {
	members, isObject := s.fit(canonjson.Clean(map[string]any(e))).(map[string]any)
	if !isObject {
		return nil, errors.New("evidence is no object")
	}
	cutMembers(members, textLimits)
	return canonicalBody(members)
}

// canonicalBody is the canonical text of what fits into a request.
func canonicalBody(members map[string]any) ([]byte, error) {
	body, err := canonjson.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("writing the evidence: %w", err)
	}
	if len(body) > protocol.MaxBodyBytes-envelope {
		return nil, fmt.Errorf("%d bytes: %w", len(body), errTooLong)
	}
	return body, nil
}

// cutMembers cuts the texts of an object to so many code points.
func cutMembers(members map[string]any, limits map[string]int) {
	for name, most := range limits {
		if text, isText := members[name].(string); isText {
			members[name] = protocol.CutText(text, most)
		}
	}
}

// fit redacts every string of a value, names too.
func (s *Supervisor) fit(v any) any {
	switch v := v.(type) {
	case string:
		return s.parts.Secrets.String(v)
	case []any:
		for i := range v {
			v[i] = s.fit(v[i])
		}
	case map[string]any:
		for name, member := range v {
			delete(v, name)
			v[s.parts.Secrets.String(name)] = s.fit(member)
		}
	}
	return v
}

// submission is what a qualification sends besides its files, the ids and the
// tokens. It is a checkpoint, stored before the files are drafted.
type submission struct {
	TestReturnCode int    `json:"test_return_code"`
	TestOutput     string `json:"test_output"`
	RuntimeError   string `json:"runtime_error,omitempty"`
}

// sealQualification makes a submission final and hands it to the outbox. The
// body of its evidence is the list of files, empty when giving up: that is what
// the signature covers, with the return code.
func (s *Supervisor) sealQualification(ctx context.Context, r *run, o jobs.QualificationOutcome) {
	sub := submission{
		TestReturnCode: o.ReturnCode,
		TestOutput:     protocol.CutText(s.parts.Secrets.String(canonjson.CleanText(o.Output)), protocol.MaxOutput),
	}
	if o.Failure != "" {
		sub.RuntimeError = protocol.Lookup(o.Failure).Sentence
	}
	files, err := canonicalFiles(o.Files)
	if err != nil {
		r.log.Error("the qualification's file can't be submitted", "error", err)
		files, sub.RuntimeError = []byte("[]"), protocol.Lookup(protocol.CodeInternalError).Sentence
	}
	text, err := json.Marshal(sub)
	if err == nil {
		err = s.parts.Journal.Checkpoint(ctx, r.key, stepSubmission, text)
	}
	if err != nil {
		r.log.Error("the submission could not be stored: the run stays in the journal", "error", err)
		s.leases.remove(r.key)
		return
	}
	s.draftAndSign(ctx, r, files, hashOf(files))
}

// canonicalFiles is the text of the list of files that the signature covers.
func canonicalFiles(files []protocol.File) ([]byte, error) {
	list := []any{}
	for _, f := range files {
		list = append(list, map[string]any{"path": f.Path, "content": f.Content})
	}
	return canonjson.Marshal(list)
}

// draftAndSign journals the text, has it signed, journals the signature, and
// only then lets it be sent. A crash between two of these steps signs the same
// bytes again, and Ed25519 gives the same signature. What can heal is tried
// again as long as the lease lives.
func (s *Supervisor) draftAndSign(ctx context.Context, r *run, body []byte, hash string) {
	for try := 0; ; try++ {
		err := s.sealOnce(ctx, r, body, hash)
		if err == nil {
			return
		}
		r.log.Error("the result could not be sealed", "error", err, "try", try+1)
		hopeless := errors.Is(err, signer.ErrGone) || errors.Is(err, signer.ErrRefused)
		if hopeless || s.lapsed(r) || wait.For(ctx, backoff(try)) != nil {
			s.unsealed(r, err)
			return
		}
	}
}

// lapsed tells whether the lease of a run is over; a qualification's may come
// back to life.
func (s *Supervisor) lapsed(r *run) bool {
	if r.key.Kind == journal.KindQualification || r.lease.left() > 0 {
		return false
	}
	r.lease.lose(errLeaseOver) // whoever noticed it first
	return true
}

// unsealed ends a run whose result could not be sealed. Without its lease it is
// over; else it stays in the journal, also when it was cancelled, and the next
// start seals and delivers it.
func (s *Supervisor) unsealed(r *run, err error) {
	if errors.Is(context.Cause(r.lease.ctx), jobs.ErrLeaseLost) {
		s.abandon(r, reasonOf(r.lease.ctx, ""), nil)
		return
	}
	s.note("A finished result could not be sealed: " + oneLine(err.Error(), 200) + ". Restart the daemon.")
	s.leases.remove(r.key)
}

func (s *Supervisor) sealOnce(ctx context.Context, r *run, body []byte, hash string) error {
	revision, err := s.parts.Journal.DraftEvidence(ctx, r.key, body, hash)
	if err != nil {
		return fmt.Errorf("journaling the evidence: %w", err)
	}
	e, err := s.sign(ctx, r.lease, sealed{revision: revision, body: body, hash: hash})
	if err != nil {
		return err
	}
	s.outbox.add(r.lease, e, nil)
	return nil
}

// sign has drafted evidence signed and journals the signature. Recovery and
// revisions go on here, too.
func (s *Supervisor) sign(ctx context.Context, l *lease, e sealed) (sealed, error) {
	statement, err := s.statementOf(ctx, l.key, e)
	if err != nil {
		return e, err
	}
	signature, err := s.parts.Signer.Sign(ctx, statement)
	if err != nil {
		s.parts.Metrics.SignatureFailures.Inc()
		return e, fmt.Errorf("having the result signed: %w", err)
	}
	s.parts.Metrics.Signed(kindOf(statement))
	e.signature, e.at = string(signature), time.Now()
	if err := s.parts.Journal.Seal(ctx, l.key, e.hash, e.signature); err != nil {
		return e, fmt.Errorf("journaling the signature: %w", err)
	}
	s.log.Info("sealed", "kind", l.key.Kind, "assignment", l.key.ID, "lease", l.key.Lease, "revision", e.revision)
	return e, nil
}

func (s *Supervisor) statementOf(ctx context.Context, key runKey, e sealed) (signer.Statement, error) {
	switch key.Kind {
	case journal.KindJob:
		return signer.JobResult{
			Assignment: protocol.AssignmentID(key.ID), Lease: protocol.LeaseID(key.Lease), EvidenceHash: e.hash,
		}, nil
	case journal.KindVerification:
		return signer.Verifier{
			ID: protocol.AssignmentID(key.ID), Lease: protocol.LeaseID(key.Lease), ReportHash: e.hash,
		}, nil
	}
	sub, err := s.readSubmission(ctx, key)
	if err != nil {
		return nil, err
	}
	return signer.Qualification{
		ID: protocol.QualificationID(key.ID), FilesHash: e.hash, Code: sub.TestReturnCode,
	}, nil
}

func (s *Supervisor) readSubmission(ctx context.Context, key runKey) (submission, error) {
	var sub submission
	steps, err := s.parts.Journal.Checkpoints(ctx, key)
	if err == nil {
		err = json.Unmarshal(steps[stepSubmission], &sub)
	}
	if err != nil {
		return sub, fmt.Errorf("reading the submission of %v: %w", key, err)
	}
	return sub, nil
}

// sealRevision drafts and signs a RESULT_REFUSED in place of a result that was
// only ever refused; both stay in the journal.
func (s *Supervisor) sealRevision(ctx context.Context, l *lease, old sealed) (sealed, error) {
	v, err := canonjson.Parse(old.body)
	members, isObject := v.(map[string]any)
	if err != nil || !isObject {
		return old, fmt.Errorf("reading the refused result: %w", err)
	}
	e := protocol.Evidence(members)
	e.Fail(protocol.CodeResultRefused)
	body, err := s.canonicalEvidence(e)
	if err != nil {
		return old, err
	}
	hash := "0x" + hashOf(body)
	revision, err := s.parts.Journal.DraftEvidence(ctx, l.key, body, hash)
	if err != nil {
		return old, fmt.Errorf("journaling the revision: %w", err)
	}
	return s.sign(ctx, l, sealed{revision: revision, body: body, hash: hash})
}

func kindOf(s signer.Statement) string {
	switch s.(type) {
	case signer.JobResult:
		return "job_result"
	case signer.Qualification:
		return "qualification"
	case signer.Verifier:
		return "verifier_result"
	}
	return "connect"
}

// keepEvidence writes the exact signed text beside the run's log, for the
// owner; the journal's copy is the one that counts.
func (s *Supervisor) keepEvidence(key runKey, e sealed) {
	name := "evidence.json"
	if key.Kind == journal.KindVerification {
		name = "report.json"
	}
	dir, err := s.dir(key)
	if err == nil {
		err = durable.WriteFile(filepath.Join(dir, name), e.body, 0o600)
	}
	if err != nil {
		s.log.Warn(name+" could not be written", "error", err)
	}
}

// refuse seals a failure for a task that no worker saw.
func (s *Supervisor) refuse(r *run, code protocol.Code, why string) {
	outcome := s.failedOutcome(r, code, oneLine(why, protocol.MaxSummary))
	s.measure(r, string(code), "")
	s.sealJob(r.lease.ctx, r, outcome.Evidence)
}
