package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/provider"
)

// maxCalls bounds the tool calls of one message.
const maxCalls = 64

type wireReply struct {
	Choices []struct {
		Message      json.RawMessage `json:"message"`
		FinishReason string          `json:"finish_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type looseMessage struct {
	Content   json.RawMessage `json:"content"`
	Refusal   string          `json:"refusal"`
	ToolCalls []looseCall     `json:"tool_calls"`
}

type looseCall struct {
	ID       json.RawMessage `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// reply reads an answer of any status.
func (a answer) reply(req provider.Request, sent int) (provider.Reply, error) {
	if a.status != 200 {
		return provider.Reply{}, a.failure()
	}
	var wire wireReply
	if err := json.Unmarshal(a.body, &wire); err != nil {
		return provider.Reply{}, a.fail(provider.BadResponse, "the answer is no JSON object")
	}
	if len(wire.Error) > 0 && string(wire.Error) != "null" {
		return provider.Reply{}, a.failure()
	}
	if len(wire.Choices) == 0 {
		return provider.Reply{}, a.fail(provider.BadResponse, "the answer holds no choice")
	}
	choice := wire.Choices[0]
	usage := readUsage(wire.Usage, sent, len(a.body))
	message, err := readMessage(choice.Message)
	if err != nil {
		return provider.Reply{}, err
	}
	message.Truncated = wasCut(choice.FinishReason, message, usage, req.MaxTokens)
	return provider.Reply{Message: message, Usage: usage}, nil
}

// wasCut: some servers say "stop" or "tool_calls" for an answer that ended at
// the limit, so the count decides as well.
func wasCut(reason string, m provider.Message, usage provider.Usage, limit int64) bool {
	if reason == "length" {
		return true
	}
	return limit > 0 && !usage.Estimated && usage.Output >= limit
}

func readMessage(raw json.RawMessage) (provider.Message, error) {
	var loose looseMessage
	if err := json.Unmarshal(raw, &loose); err != nil {
		return provider.Message{}, &provider.Error{Kind: provider.BadResponse, Status: 200, Err: errors.New("the message has a wrong shape")}
	}
	if len(loose.ToolCalls) > maxCalls {
		return provider.Message{}, &provider.Error{Kind: provider.BadResponse, Status: 200, Err: fmt.Errorf("%d tool calls in one message", len(loose.ToolCalls))}
	}
	m := provider.Message{Author: provider.Assistant, Text: textOf(loose.Content)}
	if loose.Refusal != "" && m.Text == "" && len(loose.ToolCalls) == 0 {
		return provider.Message{}, &provider.Error{Kind: provider.Declined, Status: 200}
	}
	clean := m.Text != "" || len(loose.ToolCalls) > 0
	for i, call := range loose.ToolCalls {
		read, asIs := readCall(call, i)
		m.Calls = append(m.Calls, read)
		clean = clean && asIs
	}
	distinct := numberDoubles(m.Calls)
	if clean && distinct {
		m.Raw = bytes.Clone(raw)
	}
	if m.Text == "" && len(m.Calls) == 0 {
		return m, &provider.Error{Kind: provider.EmptyResponse, Status: 200}
	}
	return m, nil
}

// numberDoubles gives a call whose id another one has an id of its own and
// tells whether all were distinct.
func numberDoubles(calls []provider.Call) bool {
	seen, distinct := map[string]bool{}, true
	for i := range calls {
		if seen[calls[i].ID] {
			calls[i].ID, distinct = fmt.Sprintf("%s-%d", calls[i].ID, i), false
		}
		seen[calls[i].ID] = true
	}
	return distinct
}

// readCall reports whether the call may be replayed byte for byte.
func readCall(call looseCall, index int) (provider.Call, bool) {
	read := provider.Call{Name: call.Function.Name}
	var id string
	asIs := json.Unmarshal(call.ID, &id) == nil && id != ""
	if !asIs {
		id = strings.Trim(string(call.ID), `"`)
		if id == "" || id == "null" {
			id = fmt.Sprintf("call-%d", index)
		}
	}
	read.ID = id
	text := argumentText(call.Function.Arguments)
	if text == "" {
		text, asIs = "{}", false
	}
	read.Arguments = json.RawMessage(text)
	var object map[string]json.RawMessage
	if json.Unmarshal(read.Arguments, &object) != nil {
		read.BadJSON, asIs = true, false
	}
	return read, asIs
}

// argumentText takes a string, as the dialect says, or an object, as some send.
func argumentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// textOf takes content as a string, null, or a list of parts.
func textOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	return all.String()
}

// readUsage estimates by bytes where the figures are missing or absurd.
func readUsage(raw json.RawMessage, sent, received int) provider.Usage {
	var u struct {
		Prompt     *float64 `json:"prompt_tokens"`
		Completion *float64 `json:"completion_tokens"`
	}
	const most = 1e9
	if json.Unmarshal(raw, &u) != nil || u.Prompt == nil || u.Completion == nil ||
		*u.Prompt < 0 || *u.Completion < 0 || *u.Prompt > most || *u.Completion > most {
		return provider.Usage{Input: int64(sent / 4), Output: int64(received/4) + 1, Estimated: true}
	}
	return provider.Usage{Input: int64(*u.Prompt), Output: int64(*u.Completion)}
}
