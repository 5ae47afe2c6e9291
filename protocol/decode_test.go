package protocol_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestDecodeRefuses covers attack cases G01 and G12.
func TestDecodeRefuses(t *testing.T) {
	manyNames := `{"a":0` + strings.Repeat(`,"a":1`, 100_000) + `}`
	tests := map[string]string{
		"empty":               ``,
		"space":               "  \n",
		"html":                `<html>`,
		"cut":                 `{"ok":true`,
		"list":                `[]`,
		"number":              `7`,
		"trailing value":      `{} {}`,
		"trailing text":       `{}x`,
		"trailing brace":      `{}}`,
		"byte order mark":     "\ufeff{}",
		"not utf-8":           "{\"detail\":\"\xff\"}",
		"nul":                 `{"detail":"a\u0000"}`,
		"nul in a name":       `{"\u0000":1}`,
		"nul in what is new":  `{"new":["\u0000"]}`,
		"lone high":           `{"detail":"\ud83d"}`,
		"lone low":            `{"detail":"\ude42"}`,
		"high then text":      `{"detail":"\ud83d\n\n"}`,
		"high then letter":    `{"detail":"\ud83d\u0041"}`,
		"duplicate":           `{"detail":"a","detail":"b"}`,
		"duplicate deep":      `{"new":[{"a":{"b":1,"b":2}}]}`,
		"duplicate escaped":   `{"detail":"a","d\u0065tail":"b"}`,
		"duplicate but case":  `{"detail":"a","Detail":"b"}`,
		"duplicate long s":    `{"s":1,"ſ":2}`,
		"many duplicates":     manyNames,
		"65 lists":            `{"new":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
		"100000 lists":        strings.Repeat("[", 100_000),
		"100000 objects":      strings.Repeat(`{"a":`, 100_000),
		"too long":            `{"detail":"` + strings.Repeat("x", 2_000_000) + `"}`,
		"wrong type":          `{"detail":7}`,
		"number out of range": `{"n":1e400}`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			var body struct {
				protocol.ErrorBody
				N int64 `json:"n"`
			}
			err := protocol.Decode([]byte(text), &body, 1_000_000)
			var refused *protocol.DecodeError
			if !errors.As(err, &refused) {
				t.Fatalf("error = %v", err)
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 100 {
				t.Errorf("the error repeats foreign text: %q", err)
			}
		})
	}
}

func TestDecodeTakes(t *testing.T) {
	tests := map[string]string{
		"plain":           `{"detail":"x"}`,
		"space around":    " \n{\"detail\":\"x\"}\r\n ",
		"unknown member":  `{"detail":"x","new":{"deep":[1.5,null]}}`,
		"pair":            `{"detail":"x","new":"\ud83d\ude42"}`,
		"escaped slashes": `{"detail":"x","new":"\\u0000 \\\\ \\ud83d"}`,
		"64 levels":       `{"detail":"x","new":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`,
		"same in two":     `{"detail":"x","a":{"k":1},"b":{"k":1}}`,
		"value like name": `{"detail":"x","a":"detail","b":["detail","detail"]}`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			var body protocol.ErrorBody
			if err := protocol.Decode([]byte(text), &body, 1000); err != nil || body.Detail != "x" {
				t.Errorf("detail %q, error %v", body.Detail, err)
			}
		})
	}
}

func TestOneBrokenTaskLeavesTheBeatWhole(t *testing.T) {
	const text = `{"ok":true,"agent_id":"43725ad0-077e-46c3-a4f0-b991a459d879",
		"qualification_task":null,"job_task":{"id":7,"policy":"no"},
		"delivery_errors":[{"stage":"job","message":"repository gone"}]}`
	var reply protocol.HeartbeatReply
	if err := protocol.Decode([]byte(text), &reply, protocol.MaxReplyBytes); err != nil {
		t.Fatal(err)
	}
	if protocol.Present(reply.QualificationTask) || protocol.Present(reply.VerificationTask) {
		t.Error("a task was invented")
	}
	if !protocol.Present(reply.JobTask) {
		t.Error("the job's task is missing")
	}
	want := []protocol.DeliveryError{{Stage: "job", Message: "repository gone"}}
	if diff := cmp.Diff(want, reply.DeliveryErrors); diff != "" {
		t.Errorf("delivery errors (-want +got):\n%s", diff)
	}
}

func TestStatementTakesBothForms(t *testing.T) {
	const text = `["plain", {"statement":"s","verificationMethod":"m","id":4}, {"description":"d"},
		7, null, true, [], {"statement":["x"]}]`
	var got []protocol.Statement
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := []protocol.Statement{{Text: "plain"}, {Text: "s", VerificationMethod: "m"}, {Text: "d"}, {Text: "7"}, {}, {}, {}, {Text: `{"statement":["x"]}`}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("statements (-want +got):\n%s", diff)
	}
}

func TestConfigurationForgivesWhatIsOnlyShown(t *testing.T) {
	const text = `{"agent":{"agent_role":"WORKER","specialisation":null,"languages":["Go",7,{}],"frameworks":"Django",
		"testing_tools":{"a":1},"task_types":null,"maximum_execution_minutes":45,"protected_paths":["infra"]}}`
	var got protocol.Configuration
	if err := protocol.Decode([]byte(text), &got, 10_000); err != nil {
		t.Fatal(err)
	}
	want := protocol.AgentConfiguration{
		AgentRole: protocol.RoleWorker, Languages: protocol.Texts{"Go", "7"}, Frameworks: protocol.Texts{"Django"},
		MaximumExecutionMinutes: 45, ProtectedPaths: []string{"infra"},
	}
	if diff := cmp.Diff(want, got.Agent); diff != "" {
		t.Errorf("agent (-want +got):\n%s", diff)
	}
}

func TestStatementKeepsItsForm(t *testing.T) {
	text, err := json.Marshal([]protocol.Statement{{Text: "a"}, {Text: "b", VerificationMethod: "m"}})
	if want := `["a",{"statement":"b","verificationMethod":"m"}]`; err != nil || string(text) != want {
		t.Errorf("got %s, %v", text, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"ok":true,"job_task":{"id":"x"}}`, `{"a":"\ud83d\ude42"}`, `{"a":1,"A":2}`, `[[[[]]]]`, `{}{}`, `"\u0000"`, "\"\xff\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var reply protocol.HeartbeatReply
		err := protocol.Decode(data, &reply, 1<<16)
		var refused *protocol.DecodeError
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("error of another kind: %v", err)
		}
		if err == nil && !json.Valid(data) {
			t.Fatal("took what is not json")
		}
	})
}
