package providertest

import (
	"encoding/json"
	"fmt"
)

type wireRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name       string `json:"name"`
			Parameters struct {
				Properties map[string]json.RawMessage `json:"properties"`
			} `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
}

func parse(body []byte) (Conversation, error) {
	var wire wireRequest
	if err := json.Unmarshal(body, &wire); err != nil {
		return Conversation{}, fmt.Errorf("the request is no JSON: %w", err)
	}
	if wire.Model == "" || len(wire.Messages) == 0 {
		return Conversation{}, fmt.Errorf("a request needs a model and messages")
	}
	c := Conversation{Body: body}
	for _, m := range wire.Messages {
		var text string
		_ = json.Unmarshal(m.Content, &text)
		switch m.Role {
		case "system":
			c.System += text
		case "user":
			if c.User == "" {
				c.User = text
			}
		case "assistant":
			c.Turn++
		case "tool":
			c.Results = append(c.Results, text)
		}
	}
	for _, t := range wire.Tools {
		offered := Tool{Name: t.Function.Name, Parameters: map[string]bool{}}
		for name := range t.Function.Parameters.Properties {
			offered.Parameters[name] = true
		}
		c.Tools = append(c.Tools, offered)
	}
	return c, nil
}

// render puts a step into a tool that takes it.
func render(s Step, tools []Tool) ([]byte, error) {
	switch {
	case s.Message != "":
		return []byte(s.Message), nil
	case s.Shell != "" && s.Seconds > 0:
		return callWith(tools, map[string]any{"command": s.Shell, "timeout_s": s.Seconds})
	case s.Shell != "":
		return callWith(tools, map[string]any{"command": s.Shell}, "cmd")
	case s.Edit != nil:
		return callWith(tools, map[string]any{"path": s.Edit.Path, "old": s.Edit.Old, "new": s.Edit.New})
	case s.Finish != "":
		if raw, err := callWith(tools, map[string]any{"summary": s.Finish}); err == nil {
			return raw, nil
		}
		return json.Marshal(map[string]any{"role": "assistant", "content": s.Finish})
	}
	return json.Marshal(map[string]any{"role": "assistant", "content": s.Text})
}

// callWith calls the first tool that has all the arguments' names as
// parameters; with one argument, alias is another name for it.
func callWith(tools []Tool, arguments map[string]any, alias ...string) ([]byte, error) {
	for _, tool := range tools {
		if takes(tool, arguments) {
			return call(tool.Name, arguments)
		}
	}
	for _, other := range alias {
		for _, tool := range tools {
			if tool.Parameters[other] {
				for _, value := range arguments {
					return call(tool.Name, map[string]any{other: value})
				}
			}
		}
	}
	return nil, fmt.Errorf("no tool was offered that the script's step fits")
}

func takes(tool Tool, arguments map[string]any) bool {
	for name := range arguments {
		if !tool.Parameters[name] {
			return false
		}
	}
	return true
}

func call(name string, arguments map[string]any) ([]byte, error) {
	text, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"role": "assistant", "content": nil,
		"tool_calls": []any{map[string]any{
			"id": "call_" + name, "type": "function",
			"function": map[string]any{"name": name, "arguments": string(text)},
		}},
	})
}
