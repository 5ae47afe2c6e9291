package protocol_test

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestClassify is the table of protocol section 2.
func TestClassify(t *testing.T) {
	const yes, no = true, false
	tests := []struct {
		status  int
		isJSON  bool
		want    protocol.Class
		refusal bool
	}{
		{200, yes, protocol.ClassTaken, no},
		{200, no, protocol.ClassTrouble, no},
		{201, yes, protocol.ClassTrouble, no},
		{204, no, protocol.ClassTrouble, no},
		{0, no, protocol.ClassTrouble, no},
		{0, yes, protocol.ClassTrouble, no},
		{301, no, protocol.ClassMistake, no},
		{302, yes, protocol.ClassMistake, no},
		{308, no, protocol.ClassMistake, no},
		{400, yes, protocol.ClassMistake, yes},
		{400, no, protocol.ClassMistake, no},
		{401, yes, protocol.ClassRevoked, yes},
		{401, no, protocol.ClassMistake, no},
		{403, no, protocol.ClassMistake, no},
		{404, yes, protocol.ClassMistake, yes},
		{405, no, protocol.ClassMistake, no},
		{413, yes, protocol.ClassMistake, yes},
		{413, no, protocol.ClassMistake, no},
		{415, yes, protocol.ClassMistake, yes},
		{409, yes, protocol.ClassRefused, yes},
		{409, no, protocol.ClassTrouble, no},
		{429, yes, protocol.ClassTrouble, no},
		{429, no, protocol.ClassTrouble, no},
		{500, yes, protocol.ClassTrouble, no},
		{500, no, protocol.ClassTrouble, no},
		{502, no, protocol.ClassTrouble, no},
		{503, yes, protocol.ClassTrouble, no},
		{999, no, protocol.ClassTrouble, no},
	}
	for _, test := range tests {
		if got := protocol.Classify(test.status, test.isJSON); got != test.want {
			t.Errorf("%d, json %v: %v, want %v", test.status, test.isJSON, got, test.want)
		}
		if got := protocol.DefiniteRefusal(test.status, test.isJSON); got != test.refusal {
			t.Errorf("%d, json %v: definite refusal %v", test.status, test.isJSON, got)
		}
	}
}

func TestClassNames(t *testing.T) {
	got := []string{}
	for c := protocol.ClassTrouble; c <= protocol.ClassMistake; c++ {
		got = append(got, c.String())
	}
	if diff := cmp.Diff([]string{"trouble", "taken", "revoked", "refused", "mistake"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestErrorBodyHasTwoShapes(t *testing.T) {
	for text, want := range map[string]string{
		`{"detail":"no"}`: "no", `{"error":{"code":"c","message":"m","request_id":"r"}}`: "m", `{}`: "",
	} {
		var body protocol.ErrorBody
		if err := protocol.Decode([]byte(text), &body, 1000); err != nil || body.Text() != want {
			t.Errorf("%s says %q, %v", text, body.Text(), err)
		}
	}
}

func TestErrorsOfTasksReadWell(t *testing.T) {
	_, err := protocol.DecodeJobTask(json.RawMessage(`{"policy":{"maximum_execution_minutes":"45"}}`))
	if want := "task field policy.maximum_execution_minutes: wrong type or out of range"; err == nil || err.Error() != want {
		t.Errorf("error = %v", err)
	}
	_, err = protocol.DecodeJobTask(json.RawMessage(`[1`))
	if want := "task: not one complete json value"; err == nil || err.Error() != want {
		t.Errorf("error = %v", err)
	}
}

func TestValidCommit(t *testing.T) {
	sha := strings.Repeat("0a", 20)
	if !protocol.ValidCommit(sha) || protocol.ValidCommit(sha[1:]) || protocol.ValidCommit(strings.ToUpper(sha)) || protocol.ValidCommit("") {
		t.Error("object ids are not told apart")
	}
}

func TestCapabilitiesOnTheWire(t *testing.T) {
	tests := map[protocol.Role]string{
		protocol.RoleWorker: `{"role":"WORKER","coding":true,"verification":false,"testing":true,"git":true,` +
			`"repository_access":"job-scoped-write","job_transport":"veyra-outbound-heartbeat-v1"}`,
		protocol.RoleVerifier: `{"role":"VERIFIER","coding":false,"verification":true,"testing":true,"git":true,` +
			`"repository_access":"read-only","job_transport":"veyra-outbound-heartbeat-v1"}`,
	}
	for role, want := range tests {
		got, err := json.Marshal(protocol.CapabilitiesFor(role))
		if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
}

// TestSecretsTravelInMessages: hidden from every format, but not from the wire.
func TestSecretsTravelInMessages(t *testing.T) {
	got, err := json.Marshal(protocol.CredentialRequest{AgentID: "a", AssignmentID: "b", LeaseToken: "c"})
	if want := `{"agent_id":"a","assignment_id":"b","lease_token":"c"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestBeatWithoutAJob(t *testing.T) {
	got, err := json.Marshal(protocol.HeartbeatRequest{AgentID: "a", Health: protocol.Healthy})
	want := `{"agent_id":"a","health":"HEALTHY","provider_ready":false,"provider":"","model":"","runtime_version":"","message":""}`
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestCutTextKeepsBothEnds(t *testing.T) {
	text := strings.Repeat("a", 500) + strings.Repeat("\u65e5", 500) + strings.Repeat("z", 500)
	got := protocol.CutText(text, 600)
	if n := utf8.RuneCountInString(got); n > 600 || n < 590 {
		t.Errorf("%d characters", n)
	}
	match := regexp.MustCompile(`^(a+)\n\[\.\.\. (\d+) characters left out \.\.\.\]\n(z+)$`).FindStringSubmatch(got)
	if match == nil {
		t.Fatalf("got %q", got)
	}
	if left, _ := strconv.Atoi(match[2]); left != 1500-len(match[1])-len(match[3]) {
		t.Errorf("the marker says %d", left)
	}
	if head, tail := len(match[1]), len(match[3]); tail < 2*head-1 || tail > 2*head+3 {
		t.Errorf("%d in front, %d behind", head, tail)
	}
}

func TestCutTextOfALine(t *testing.T) {
	if got := protocol.CutText(strings.Repeat("\u00e9", 300), 240); got != strings.Repeat("\u00e9", 239)+"\u2026" {
		t.Errorf("got %q", got)
	}
}

func TestCutTextBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Repeat(rapid.String().Draw(t, "text"), rapid.IntRange(1, 200).Draw(t, "times"))
		limit := rapid.OneOf(rapid.IntRange(-1, 80), rapid.IntRange(490, 1000)).Draw(t, "limit")
		got := protocol.CutText(text, limit)
		if n := utf8.RuneCountInString(got); n > max(limit, 0) || !utf8.ValidString(got) {
			t.Fatalf("%d characters of %d: %q", n, limit, got)
		}
		if utf8.RuneCountInString(text) <= limit && got != text {
			t.Fatalf("%q was cut to %q", text, got)
		}
	})
}

// TestBranchesAgreeWithGit: what we take git takes; what we refuse beyond git
// stands in the test's list.
func TestBranchesAgreeWithGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("not applicable: git is not installed")
	}
	stricter := map[string]bool{"@": true, "refs/heads/main": true, "HEAD": true, "a.LOCK": true, "a\xff": true}
	for _, name := range []string{
		"main", "veyra/job-7-x-1", "a..b", "a b", "-x", "a~", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a@{b", "@", "a@", "/a", "a/", "a//b",
		".a", "a/.b", "a.", "a.lock", "a.lock/b", "a.LOCK", "\u00e9", "a\x7f", "a\tb", "refs/heads/main", "HEAD", "a\xff", "a,b", "a'b",
	} {
		gitTakes := exec.Command(git, "check-ref-format", "--branch", name).Run() == nil
		if got := protocol.ValidBranch(name); got != gitTakes && !(stricter[name] && !got) {
			t.Errorf("%q: we say %v, git says %v", name, got, gitTakes)
		}
	}
}
