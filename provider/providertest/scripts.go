package providertest

import (
	"encoding/json"
	"strings"
)

// Steps answers the n-th turn of a conversation with the n-th step; after the
// last it finishes.
func Steps(steps ...Step) func(Conversation) Step {
	return func(c Conversation) Step {
		if c.Turn < len(steps) {
			return steps[c.Turn]
		}
		return Step{Finish: "Done."}
	}
}

// Qualify answers a conversation without tools with one file, and leaves every
// other to next.
func Qualify(path, content string, next func(Conversation) Step) func(Conversation) Step {
	return func(c Conversation) Step {
		if len(c.Tools) > 0 || !strings.Contains(c.User, path) {
			return next(c)
		}
		text, _ := json.Marshal(map[string]any{
			"summary": "Replaced the file.",
			"files":   []any{map[string]any{"path": path, "content": content}},
		})
		return Step{Text: string(text)}
	}
}

// Repair uses first for round one and second once the prompt tells of a failed
// round.
func Repair(first, second func(Conversation) Step, sign string) func(Conversation) Step {
	return func(c Conversation) Step {
		if strings.Contains(c.User, sign) {
			return second(c)
		}
		return first(c)
	}
}
