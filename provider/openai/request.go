package openai

import (
	"encoding/json"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/provider"
)

type wireRequest struct {
	Model               string            `json:"model"`
	Messages            []json.RawMessage `json:"messages"`
	Tools               []wireTool        `json:"tools,omitempty"`
	MaxTokens           int64             `json:"max_tokens,omitempty"`
	MaxCompletionTokens int64             `json:"max_completion_tokens,omitempty"`
}

type wireTool struct {
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

type wireMessage struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []wireCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Function wireCallFunction `json:"function"`
}

type wireCallFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// encodeRequest never sends a temperature: some models refuse any.
func encodeRequest(model string, req provider.Request, newLimitName bool) ([]byte, error) {
	wire := wireRequest{Model: model}
	if newLimitName {
		wire.MaxCompletionTokens = req.MaxTokens
	} else {
		wire.MaxTokens = req.MaxTokens
	}
	for _, m := range req.Messages {
		raw, err := encodeMessage(m)
		if err != nil {
			return nil, fmt.Errorf("encoding a message: %w", err)
		}
		wire.Messages = append(wire.Messages, raw)
	}
	for _, t := range req.Tools {
		wire.Tools = append(wire.Tools, wireTool{Type: "function", Function: wireFunction{
			Name: t.Name, Description: t.Description, Parameters: t.Schema,
		}})
	}
	return json.Marshal(wire)
}

// encodeMessage sends an assistant's message back byte for byte where it came
// from the provider: servers refuse histories that lost their reasoning fields.
func encodeMessage(m provider.Message) (json.RawMessage, error) {
	if len(m.Raw) > 0 {
		return m.Raw, nil
	}
	wire := wireMessage{Role: string(m.Author), Content: m.Text, ToolCallID: m.CallID}
	for _, call := range m.Calls {
		wire.ToolCalls = append(wire.ToolCalls, encodeCall(call))
	}
	return json.Marshal(wire)
}

// encodeCall replays broken arguments as {}: a history with bad JSON in it is
// refused for ever.
func encodeCall(call provider.Call) wireCall {
	arguments := string(call.Arguments)
	if call.BadJSON || arguments == "" {
		arguments = "{}"
	}
	return wireCall{ID: call.ID, Type: "function", Function: wireCallFunction{Name: call.Name, Arguments: arguments}}
}
