package controlplanetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// verdict judges a verifier's report. After the lease not even the identical
// report is taken. p.mu is held.
func (p *Plane) verdict(c call) reply {
	r, bad := p.reviewOf(c)
	if bad == nil {
		bad = p.judgeReport(c, r)
	}
	if bad != nil {
		if r != nil {
			r.refusal = bad.detail()
		}
		return *bad
	}
	return ok(map[string]any{
		"ok": true, "verification_id": r.id, "status": r.status, "verdict": r.verdict,
		"worker_assignment_id": r.spec.WorkerAssignmentID,
	})
}

func (p *Plane) judgeReport(c call, r *verification) *reply {
	report, isObject := c.body["report"].(map[string]any)
	if !isObject {
		return ref(refuse(http.StatusBadRequest, "report must be an object."))
	}
	text, err := canonical(report)
	if err != nil {
		return ref(refuse(http.StatusConflict, "report can't be hashed: %v", err))
	}
	sum := sha256.Sum256(text)
	hash := "0x" + hex.EncodeToString(sum[:])
	message := fmt.Sprintf("veyra-verifier-result-v1:%s:%s:%s", r.id, r.leaseID, hash)
	if !signed(c.agent.key, message, c.text("signature")) {
		return ref(refuse(http.StatusConflict, "Report signature is not valid."))
	}
	switch {
	case r.hash == hash:
		return nil
	case r.hash != "":
		return ref(refuse(http.StatusConflict, "Verification already holds another report."))
	}
	if err := checkReport(r.spec, report); err != nil {
		return ref(refuse(http.StatusConflict, "%s", err))
	}
	r.status, r.hash, r.report, r.signature, r.refusal = "COMPLETED", hash, report, c.text("signature"), ""
	r.verdict, _ = report["verdict"].(string)
	p.counts.Verdicts++
	return nil
}

// checkReport checks a report as the control plane does. Its errors are the
// details of a 409.
func checkReport(s VerificationSpec, e map[string]any) error {
	if err := reportFields(s, e); err != nil {
		return err
	}
	passed, err := criteria(e, len(s.Criteria))
	if err != nil {
		return err
	}
	grave, err := findings(e)
	if err != nil {
		return err
	}
	switch e["verdict"] {
	case "APPROVED":
		switch {
		case integer(e, "independent_test_return_code") != 0:
			return fmt.Errorf("An approved report needs passing tests.")
		case !passed:
			return fmt.Errorf("An approved report needs every criterion passed.")
		case grave:
			return fmt.Errorf("An approved report cannot hold high or critical findings.")
		}
	case "REJECTED", "INCONCLUSIVE":
	default:
		return fmt.Errorf("Report verdict is not valid.")
	}
	return nil
}

func reportFields(s VerificationSpec, e map[string]any) error {
	if err := texts(e, "summary", "provider", "model", "runtime_version", "started_at", "completed_at"); err != nil {
		return err
	}
	for name, most := range map[string]int{
		"summary": 3000, "independent_test_command": 500, "independent_test_output": 12_000,
		"environment_setup_command": 12_000, "environment_setup_output": 12_000,
	} {
		if err := bounded(e, name, most); err != nil {
			return err
		}
	}
	for _, name := range []string{"pull_request_number", "independent_test_return_code"} {
		n, isNumber := e[name].(json.Number)
		if _, err := n.Int64(); !isNumber || err != nil {
			return fmt.Errorf("Report %s must be an integer.", name)
		}
	}
	if e["commit_sha"] != s.CommitSHA || integer(e, "pull_request_number") != s.PullRequest {
		return fmt.Errorf("Report is about another commit or pull request.")
	}
	files, _ := e["changed_files"].([]any)
	if !slices.Equal(files, list(s.ChangedFiles)) {
		return fmt.Errorf("Report changed_files is not the submission's.")
	}
	return nil
}

func bounded(e map[string]any, name string, most int) error {
	text, isText := e[name].(string)
	if !isText || len([]rune(text)) > most {
		return fmt.Errorf("Report %s is no text or too long.", name)
	}
	return nil
}

func integer(e map[string]any, name string) int {
	number, _ := e[name].(json.Number)
	n, err := number.Int64()
	if err != nil {
		return -1
	}
	return int(n)
}

func criteria(e map[string]any, want int) (passed bool, err error) {
	items, isList := e["acceptance_criteria"].([]any)
	if !isList || len(items) != want {
		return false, fmt.Errorf("Report acceptance_criteria has not one entry for each criterion.")
	}
	passed = true
	for _, item := range items {
		one, _ := item.(map[string]any)
		met, isBool := one["passed"].(bool)
		if !isBool {
			return false, fmt.Errorf("Report acceptance_criteria needs passed.")
		}
		if err := bounded(one, "evidence", 1200); err != nil {
			return false, err
		}
		passed = passed && met
	}
	return passed, nil
}

func findings(e map[string]any) (grave bool, err error) {
	items, isList := e["security_findings"].([]any)
	if !isList || len(items) > 30 {
		return false, fmt.Errorf("Report security_findings is no list or too long.")
	}
	for _, item := range items {
		one, _ := item.(map[string]any)
		severity, _ := one["severity"].(string)
		if !slices.Contains([]string{"INFO", "LOW", "MEDIUM", "HIGH", "CRITICAL"}, severity) {
			return false, fmt.Errorf("Report security_findings has an unknown severity.")
		}
		for name, most := range map[string]int{"title": 240, "detail": 1200} {
			if err := bounded(one, name, most); err != nil {
				return false, err
			}
		}
		grave = grave || severity == "HIGH" || severity == "CRITICAL"
	}
	return grave, nil
}
