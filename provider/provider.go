// Package provider is the contract with the companies that sell model answers:
// one request with its tools, one reply with its usage, and a readiness probe.
// Dialects live in packages of their own (openai). Nothing a model or its
// provider says becomes a setting; every reply is bounded before it gets here.
// Start reading at Provider.
package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Provider answers chat requests. Both methods may run at once and return
// *Error, besides the error of their context.
type Provider interface {
	// Chat sends one request and returns the whole reply. It tries passing
	// trouble again by itself, within ctx.
	Chat(ctx context.Context, req Request) (Reply, error)
	// Ready asks whether the provider takes our key and knows our model,
	// without spending tokens where that is possible.
	Ready(ctx context.Context) error
}

// Request is one turn of a conversation.
type Request struct {
	Messages []Message
	Tools    []Tool // none: a plain answer is wanted
	// MaxTokens bounds the answer's output tokens.
	MaxTokens int64
}

// Author says who wrote a message.
type Author string

// The authors of messages.
const (
	System    Author = "system"
	User      Author = "user"
	Assistant Author = "assistant"
	ToolReply Author = "tool"
)

// Message is one message. Raw, when set, is the assistant's message exactly as
// the provider sent it and is sent back byte for byte: providers refuse a
// history whose reasoning fields were dropped.
type Message struct {
	Author    Author
	Text      string
	Calls     []Call // of an assistant's message
	CallID    string // of a tool's reply
	Raw       json.RawMessage
	Truncated bool // the answer was cut off: run nothing of it
}

// Call is a tool call as the model wrote it. Arguments may be anything; BadJSON
// says that they do not parse as an object and must not be run.
type Call struct {
	ID        string
	Name      string
	Arguments json.RawMessage
	BadJSON   bool
}

// Tool is a function that the model may call.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON Schema of the arguments
}

// Reply is one answer and what it cost.
type Reply struct {
	Message Message
	Usage   Usage
}

// Usage counts tokens. Estimated says that the provider gave no figures.
type Usage struct {
	Input, Output int64
	Estimated     bool
}

// Kind says what a failure of a provider means.
type Kind string

// The kinds of failures.
const (
	NotConfigured   Kind = "not_configured"
	AuthFailed      Kind = "auth_failed"
	QuotaExhausted  Kind = "quota_exhausted"
	ModelNotFound   Kind = "model_not_found"
	RateLimited     Kind = "rate_limited"
	Unavailable     Kind = "unavailable"
	TimedOut        Kind = "timed_out"
	BadResponse     Kind = "bad_response"
	Rejected        Kind = "rejected"
	EmptyResponse   Kind = "empty_response"
	ContextOverflow Kind = "context_overflow"
	Declined        Kind = "declined"
)

// Error is a failure of a provider, without any text of the provider's own.
type Error struct {
	Kind       Kind
	Status     int           // HTTP status, or 0
	RetryAfter time.Duration // what the provider asked for, capped; or 0
	Err        error         // our own words on the cause; may be nil
}

// Error tells kind, status and cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("model provider: %s (status %d)", e.Kind, e.Status)
	}
	return fmt.Sprintf("model provider: %s (status %d): %v", e.Kind, e.Status, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
