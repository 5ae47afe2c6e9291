package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/provider/openai"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

func newModel(t *testing.T, m *providertest.Model) (*openai.Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	client, err := openai.New(openai.Config{
		BaseURL: server.URL + "/v1/", Model: "scripted", Key: "key-of-the-owner", Timeout: 20 * time.Second, FirstPause: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func request() provider.Request {
	return provider.Request{
		Messages: []provider.Message{{Author: provider.System, Text: "be brief"}, {Author: provider.User, Text: "hello"}},
		Tools: []provider.Tool{{Name: "bash", Schema: json.RawMessage(
			`{"type":"object","properties":{"command":{"type":"string"}}}`)}},
		MaxTokens: 512,
	}
}

func TestChatReturnsCallsAndUsage(t *testing.T) {
	model := &providertest.Model{Key: "key-of-the-owner", Name: "scripted", Decide: providertest.Steps(providertest.Step{Shell: "ls"})}
	client, _ := newModel(t, model)
	reply, err := client.Chat(context.Background(), request())
	if err != nil {
		t.Fatal(err)
	}
	if len(reply.Message.Calls) != 1 || reply.Message.Calls[0].Name != "bash" || string(reply.Message.Calls[0].Arguments) != `{"command":"ls"}` {
		t.Errorf("calls = %+v", reply.Message.Calls)
	}
	if reply.Usage.Input <= 0 || reply.Usage.Output <= 0 || reply.Usage.Estimated {
		t.Errorf("usage = %+v", reply.Usage)
	}
}

// TestFailuresHaveTheirKind counts the requests of each failure: passing
// trouble is tried three times, anything else once.
func TestFailuresHaveTheirKind(t *testing.T) {
	cases := []struct {
		name  string
		fault providertest.Fault
		kind  provider.Kind
		calls int
	}{
		{"401", providertest.Fault{Status: 401, Body: `{}`}, provider.AuthFailed, 1},
		{"402", providertest.Fault{Status: 402, Body: `{}`}, provider.QuotaExhausted, 1},
		{"402 with a wait", providertest.Fault{Status: 402, Header: map[string]string{"Retry-After": "3600"}, Body: `{}`}, provider.RateLimited, 1},
		{"429 quota", providertest.Fault{Status: 429, Body: `{"error":{"code":"insufficient_quota"}}`}, provider.QuotaExhausted, 1},
		{"429", providertest.Fault{Status: 429, Body: `{}`}, provider.RateLimited, 3},
		{"429 hour", providertest.Fault{Status: 429, Header: map[string]string{"Retry-After": "3600"}}, provider.RateLimited, 1},
		{"429 negative wait", providertest.Fault{Status: 429, Header: map[string]string{"Retry-After": "-5"}}, provider.RateLimited, 3},
		{"404", providertest.Fault{Status: 404, Body: `{}`}, provider.ModelNotFound, 1},
		{"400", providertest.Fault{Status: 400, Body: `{"error":{"message":"no"}}`}, provider.Rejected, 1},
		{"400 context", providertest.Fault{Status: 400, Body: `{"error":{"code":"context_length_exceeded"}}`}, provider.ContextOverflow, 1},
		{"413", providertest.Fault{Status: 413}, provider.ContextOverflow, 1},
		{"500", providertest.Fault{Status: 500, Body: "<html>"}, provider.Unavailable, 3},
		{"529", providertest.Fault{Status: 529}, provider.Unavailable, 3},
		{"html with 200", providertest.Fault{Status: 200, Body: "<html>sign in</html>"}, provider.BadResponse, 3},
		{"error with 200", providertest.Fault{Status: 200, Body: `{"error":{"message":"x"}}`}, provider.Unavailable, 3},
		{"no choices", providertest.Fault{Status: 200, Body: `{"choices":[]}`}, provider.BadResponse, 3},
		{"empty", providertest.Fault{Status: 200, Body: `{"choices":[{"message":{"role":"assistant","content":null}}]}`}, provider.EmptyResponse, 1},
		{"refusal", providertest.Fault{Status: 200, Body: `{"choices":[{"message":{"refusal":"no","content":null}}]}`}, provider.Declined, 1},
		{"deep", providertest.Fault{Status: 200, Body: strings.Repeat("[", 20000)}, provider.BadResponse, 3},
		{"cut", providertest.Fault{Status: 200, Body: `{"choices":[{"message":{"content":"x"}}]}`, Cut: true}, provider.Unavailable, 3},
		{"redirect", providertest.Fault{Status: 302, Header: map[string]string{"Location": "http://127.0.0.1:1/"}}, provider.Rejected, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			model := &providertest.Model{Name: "scripted", Decide: providertest.Steps()}
			model.Queue(c.fault, c.fault, c.fault)
			client, _ := newModel(t, model)
			_, err := client.Chat(context.Background(), request())
			if provider.KindOf(err) != c.kind {
				t.Errorf("kind %q, want %q (%v)", provider.KindOf(err), c.kind, err)
			}
			if got := len(model.Requests()); got != c.calls {
				t.Errorf("%d requests, want %d", got, c.calls)
			}
		})
	}
}

func TestTroubleThatPassesIsNoFailure(t *testing.T) {
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps(providertest.Step{Text: "hi"})}
	model.Queue(providertest.Fault{Status: 503}, providertest.Fault{Status: 429, Header: map[string]string{"Retry-After": "0"}})
	client, _ := newModel(t, model)
	reply, err := client.Chat(context.Background(), request())
	if err != nil || reply.Message.Text != "hi" {
		t.Errorf("%+v, %v", reply.Message, err)
	}
}

func TestLimitNameIsLearned(t *testing.T) {
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps(providertest.Step{Text: "hi"})}
	model.Queue(providertest.Fault{Status: 400, Body: `{"error":{"message":"use max_completion_tokens","param":"max_tokens"}}`})
	client, _ := newModel(t, model)
	for range 2 {
		if _, err := client.Chat(context.Background(), request()); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range model.Requests() {
		if got := strings.Contains(string(c.Body), `"max_completion_tokens":512`); got != (i > 0) {
			t.Errorf("request %d uses the new name: %v", i, got)
		}
	}
}

// TestHistoryIsReplayedByteForByte sends fields we do not know back, and broken
// arguments as an empty object.
func TestHistoryIsReplayedByteForByte(t *testing.T) {
	odd := `{"role":"assistant","content":"thinking","reasoning_signature":"s\u00e9 1","tool_calls":[{"id":"a","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]}`
	broken := `{"role":"assistant","content":null,"tool_calls":[{"id":7,"type":"function","function":{"name":"bash","arguments":"{\"command\":"}}]}`
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps(
		providertest.Step{Message: odd}, providertest.Step{Message: broken}, providertest.Step{Text: "end"})}
	client, _ := newModel(t, model)
	req := request()
	for range 3 {
		reply, err := client.Chat(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Messages = append(req.Messages, reply.Message)
		for _, call := range reply.Message.Calls {
			if call.BadJSON != (call.ID == "7") {
				t.Errorf("call %q bad = %v", call.ID, call.BadJSON)
			}
		}
	}
	last := string(model.Requests()[2].Body)
	if !strings.Contains(last, `"reasoning_signature":"s\u00e9 1"`) {
		t.Errorf("the odd message was not sent back as it came: %s", last)
	}
	if !strings.Contains(last, `"arguments":"{}"`) {
		t.Errorf("broken arguments were not replayed as {}: %s", last)
	}
}

func TestCutAnswersAreMarked(t *testing.T) {
	body := `{"choices":[{"finish_reason":"stop","message":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":512}}`
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps()}
	model.Queue(providertest.Fault{Status: 200, Body: body})
	client, _ := newModel(t, model)
	reply, err := client.Chat(context.Background(), request())
	if err != nil || !reply.Message.Truncated {
		t.Errorf("an answer at the limit is not marked as cut: %+v %v", reply, err)
	}
}

// TestKeyStaysAtItsAddress: a redirect to another server brings it nothing (I03,
// invariant 3).
func TestKeyStaysAtItsAddress(t *testing.T) {
	seen := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen++ }))
	t.Cleanup(other.Close)
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps()}
	model.Queue(providertest.Fault{Status: 307, Header: map[string]string{"Location": other.URL}})
	client, _ := newModel(t, model)
	if _, err := client.Chat(context.Background(), request()); err == nil || seen != 0 {
		t.Errorf("err %v, the other server saw %d requests", err, seen)
	}
}

func TestReadyAsksWithTheKey(t *testing.T) {
	model := &providertest.Model{Key: "key-of-the-owner", Name: "scripted"}
	client, _ := newModel(t, model)
	if err := client.Ready(context.Background()); err != nil {
		t.Error(err)
	}
	model.Key = "another"
	if err := client.Ready(context.Background()); provider.KindOf(err) != provider.AuthFailed {
		t.Errorf("wrong key: %v", err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for name, cfg := range map[string]openai.Config{
		"no address":    {Model: "m", Key: "k"},
		"plain http":    {BaseURL: "http://models.example/v1", Model: "m", Key: "k"},
		"user info":     {BaseURL: "https://u:p@models.example/v1", Model: "m", Key: "k"},
		"no model":      {BaseURL: "https://models.example/v1", Key: "k"},
		"no remote key": {BaseURL: "https://models.example/v1", Model: "m"},
	} {
		if _, err := openai.New(cfg); provider.KindOf(err) != provider.NotConfigured {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := openai.New(openai.Config{BaseURL: "http://127.0.0.1:1/v1", Model: "m"}); err != nil {
		t.Errorf("a local model without a key: %v", err)
	}
}

func TestCancelledRequestGivesTheContextsError(t *testing.T) {
	model := &providertest.Model{Name: "scripted", Decide: providertest.Steps()}
	client, server := newModel(t, model)
	server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Chat(ctx, request()); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if _, err := client.Chat(context.Background(), request()); provider.KindOf(err) != provider.Unavailable {
		t.Errorf("a closed server: %v", err)
	}
}

// FuzzReply reads any answer without a panic; what it takes has text or calls.
func FuzzReply(f *testing.F) {
	f.Add(`{"choices":[{"message":{"content":"x"}}]}`)
	f.Add(`{"choices":[{"message":{"content":[{"text":"x"}],"tool_calls":[{"id":1,"function":{"name":"b","arguments":{}}}]}}]}`)
	f.Add(`{"error":"x","choices":null,"usage":{"prompt_tokens":-1}}`)
	f.Fuzz(func(t *testing.T, body string) {
		transport := fixed{body}
		client, err := openai.New(openai.Config{BaseURL: "http://127.0.0.1:1", Model: "m", Transport: transport, FirstPause: 1})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := client.Chat(context.Background(), request())
		if err == nil && reply.Message.Text == "" && len(reply.Message.Calls) == 0 {
			t.Error("an empty reply was taken")
		}
	})
}

type fixed struct{ body string }

func (f fixed) RoundTrip(*http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	_, _ = recorder.WriteString(f.body)
	return recorder.Result(), nil
}
