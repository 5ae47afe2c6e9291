package controlplanetest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const qualificationLease = 15 * time.Minute

// QualificationSpec is a qualification that agents have to pass.
type QualificationSpec struct {
	Title, Instructions string
	// Target is the one file to be replaced, one of Files.
	Target string
	// Files are path and content.
	Files [][2]string
	// TestCommand defaults to "python -m unittest discover -s tests -q".
	TestCommand string
	// Expect is the exact content that passes, line ends normalised.
	Expect string
	// Change may bend the task's JSON before it is delivered.
	Change func(task map[string]any)
}

type qualification struct {
	spec         QualificationSpec
	id           string
	attempt      int
	status       string
	runtimeError string
	leaseUntil   time.Time
}

func newQualification(spec QualificationSpec, attempt int) *qualification {
	return &qualification{spec: spec, id: newUUID(), attempt: attempt, status: "PENDING"}
}

// defaultQualification looks like the real control plane's.
func defaultQualification() QualificationSpec {
	return QualificationSpec{
		Title: "Make the readiness check pass",
		Instructions: "The test suite fails. Replace qualification/ready.txt so that it contains exactly " +
			"the text VEYRA_AGENT_READY_V1 followed by one line end, and nothing else.",
		Target: "qualification/ready.txt",
		Files: [][2]string{
			{"qualification/ready.txt", "NOT_READY\n"},
			{"tests/test_ready.py", "import pathlib\nimport unittest\n\n\n" +
				"class ReadyTest(unittest.TestCase):\n    def test_ready(self):\n" +
				"        text = pathlib.Path('qualification/ready.txt').read_text()\n" +
				"        self.assertEqual(text, 'VEYRA_AGENT_READY_V1\\n')\n\n\n" +
				"if __name__ == '__main__':\n    unittest.main()\n"},
		},
		TestCommand: "python -m unittest discover -s tests -q",
		Expect:      "VEYRA_AGENT_READY_V1\n",
	}
}

// AddQualification gives an agent a qualification now; without spec the default
// one. It returns the qualification's id.
func (p *Plane) AddQualification(agentID string, spec *QualificationSpec) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	a := p.agents[agentID]
	if spec == nil {
		def := defaultQualification()
		spec = &def
	}
	if spec.TestCommand == "" {
		spec.TestCommand = defaultQualification().TestCommand
	}
	q := newQualification(*spec, 1)
	if n := len(a.qualifications); n > 0 && a.qualifications[n-1].status == "PENDING" {
		a.qualifications = a.qualifications[:n-1]
	}
	a.qualifications = append(a.qualifications, q)
	if a.status == statusActive {
		a.status = statusConnected
	}
	return q.id
}

func passed(a *agent) bool {
	n := len(a.qualifications)
	return n > 0 && a.qualifications[n-1].status == "PASSED"
}

// qualificationTask is what a beat of an agent that is not qualified carries;
// each delivery renews the lease. p.mu is held.
func (p *Plane) qualificationTask(a *agent) map[string]any {
	n := len(a.qualifications)
	if a.status != statusConnected || !a.healthy || n == 0 || a.qualifications[n-1].status != "PENDING" {
		return nil
	}
	q := a.qualifications[n-1]
	q.leaseUntil = p.opts.Now().Add(qualificationLease)
	files := []any{}
	for _, f := range q.spec.Files {
		files = append(files, map[string]any{"path": f[0], "content": f[1]})
	}
	task := map[string]any{
		"id": q.id, "type": "automatic_qualification", "attempt": q.attempt, "task_version": 1,
		"title": q.spec.Title, "instructions": q.spec.Instructions,
		"qualification_target_path": q.spec.Target, "starter_files": files,
		"allowed_submission_paths": []any{q.spec.Target}, "test_command": q.spec.TestCommand,
		"lease_token": p.signLease(leaseClaims{Kind: "qualification", ID: q.id, Until: q.leaseUntil}),
		"submit_url":  p.url(Qualification),
	}
	if q.spec.Change != nil {
		q.spec.Change(task)
	}
	return task
}

// submitQualification judges one submission. p.mu is held.
func (p *Plane) submitQualification(c call) reply {
	id := c.text("qualification_id")
	if !uuidSyntax.MatchString(id) {
		return crash(http.StatusInternalServerError)
	}
	q := c.agent.qualification(id)
	if q == nil {
		return refuse(http.StatusConflict, "Qualification was not found.")
	}
	claims, err := p.readLease(c.text("lease_token"))
	if err != nil || claims.Kind != "qualification" || claims.ID != id {
		return refuse(http.StatusConflict, "Qualification lease is not valid.")
	}
	if q.status == "PASSED" {
		return ok(qualificationReply(c.agent, q))
	}
	if q.status != "PENDING" {
		return refuse(http.StatusConflict, "Qualification is %s.", strings.ToLower(q.status))
	}
	return p.judge(c, q)
}

func (a *agent) qualification(id string) *qualification {
	for _, q := range a.qualifications {
		if q.id == id {
			return q
		}
	}
	return nil
}

func (p *Plane) judge(c call, q *qualification) reply {
	if text := c.text("runtime_error"); text != "" {
		q.runtimeError = text
		return p.fail(c.agent, q)
	}
	code, content, bad := checkSubmission(c, q)
	if bad != nil {
		return *bad
	}
	p.counts.Qualifications++
	if code != 0 || normalise(content) != normalise(q.spec.Expect) {
		return p.failJudged(c.agent, q)
	}
	q.status, c.agent.status = "PASSED", statusActive
	return ok(qualificationReply(c.agent, q))
}

func normalise(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

func (p *Plane) fail(a *agent, q *qualification) reply {
	p.counts.Qualifications++
	return p.failJudged(a, q)
}

// failJudged costs an attempt: the second one comes at once, the third never.
func (p *Plane) failJudged(a *agent, q *qualification) reply {
	q.status = "FAILED"
	if q.attempt >= 2 {
		a.status = statusDead
	} else {
		a.qualifications = append(a.qualifications, newQualification(q.spec, q.attempt+1))
	}
	return ok(qualificationReply(a, q))
}

func qualificationReply(a *agent, q *qualification) map[string]any {
	return map[string]any{
		"ok": true, "qualification_id": q.id, "qualification_status": q.status,
		"passed": q.status == "PASSED", "agent_status": a.status, "provisioning_stage": "DONE",
	}
}

// checkSubmission reads files, code and signature; what it refuses costs no
// attempt.
func checkSubmission(c call, q *qualification) (code int, content string, bad *reply) {
	for _, name := range []string{"provider", "model", "runtime_version", "signature"} {
		if c.text(name) == "" {
			return 0, "", ref(refuse(http.StatusBadRequest, "%s is required.", name))
		}
	}
	if output, isText := c.body["test_output"].(string); !isText || len([]rune(output)) > 12_000 {
		return 0, "", ref(refuse(http.StatusBadRequest, "test_output is not valid."))
	}
	number, isNumber := c.body["test_return_code"].(json.Number)
	code64, err := number.Int64()
	if !isNumber || err != nil {
		return 0, "", ref(refuse(http.StatusBadRequest, "test_return_code is not valid."))
	}
	files, _ := c.body["files"].([]any)
	content, err = theFile(files, q.spec.Target)
	if err != nil {
		return 0, "", ref(refuse(http.StatusConflict, "%s", err))
	}
	canonical, err := canonical(c.body["files"])
	if err != nil {
		return 0, "", ref(refuse(http.StatusConflict, "files can't be hashed: %v", err))
	}
	sum := sha256.Sum256(canonical)
	message := fmt.Sprintf("veyra-qualification-v1:%s:%s:%d", q.id, hex.EncodeToString(sum[:]), code64)
	if !signed(c.agent.key, message, c.text("signature")) {
		return 0, "", ref(refuse(http.StatusConflict, "Qualification signature is not valid."))
	}
	return int(code64), content, nil
}

func theFile(files []any, target string) (string, error) {
	if len(files) != 1 {
		return "", fmt.Errorf("Exactly one file is expected.")
	}
	file, _ := files[0].(map[string]any)
	content, isText := file["content"].(string)
	if file["path"] != target || !isText || len(file) != 2 {
		return "", fmt.Errorf("Only %s may be submitted.", target)
	}
	if len(content) > 20_000 {
		return "", fmt.Errorf("The file is too large.")
	}
	return content, nil
}

func signed(key ed25519.PublicKey, message, signature string) bool {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(signature, "="))
	return err == nil && len(raw) == ed25519.SignatureSize && ed25519.Verify(key, []byte(message), raw)
}
