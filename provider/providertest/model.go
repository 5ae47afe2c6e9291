// Package providertest is the scripted model: an HTTP server with the
// OpenAI-compatible chat dialect whose answers follow a script instead of any
// intelligence. It works by reading the tools it is offered, so it serves any
// client whose tools take a command or an edit. Faults can be queued before the
// next answers. Start reading at Model; scripts.go has ready-made scripts.
package providertest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Model is the server. Set the fields before it serves; Queue and Requests may
// be called at any time.
type Model struct {
	// Key that requests must carry; empty: any.
	Key string
	// Name of the model that GET /models lists.
	Name string
	// Decide gives the next step of a conversation.
	Decide func(Conversation) Step

	mu       sync.Mutex
	faults   []Fault
	requests []Conversation
}

// Fault replaces one answer.
type Fault struct {
	Status int
	Header map[string]string
	Body   string
	// Cut sends the header and half of Body and then ends the connection.
	Cut bool
}

// Conversation is one request as the script sees it.
type Conversation struct {
	System string
	// User is the first message of the user.
	User string
	// Turn counts the answers that the history holds.
	Turn int
	// Results are the tools' replies so far, in order.
	Results []string
	Tools   []Tool
	Body    []byte
}

// Tool is a tool that was offered, with the names of its parameters.
type Tool struct {
	Name       string
	Parameters map[string]bool
}

// Step is one answer: exactly one field is set.
type Step struct {
	Shell string
	// Seconds bounds Shell, where the tool lets one; 0: the tool's own bound.
	Seconds int
	Edit    *Edit
	Finish  string
	Text    string
	// Message is a whole assistant message as JSON, for odd shapes.
	Message string
}

// Edit replaces Old, which occurs once, by New; an empty Old creates the file.
type Edit struct{ Path, Old, New string }

// Queue adds faults for the next requests to chat/completions.
func (m *Model) Queue(faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, faults...)
}

// Requests returns the conversations seen so far.
func (m *Model) Requests() []Conversation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Conversation(nil), m.requests...)
}

// ServeHTTP answers any path that ends in /models or /chat/completions.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.Key != "" && r.Header.Get("Authorization") != "Bearer "+m.Key {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"message": "wrong key", "code": "invalid_api_key"}})
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/models"):
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": m.Name, "object": "model"}}})
	case strings.HasSuffix(r.URL.Path, "/chat/completions") && r.Method == http.MethodPost:
		m.chat(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (m *Model) chat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if err != nil {
		return
	}
	conversation, err := parse(body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error()}})
		return
	}
	if fault, found := m.next(conversation); found {
		fault.write(w)
		return
	}
	message, err := render(m.Decide(conversation), conversation.Tools)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error()}})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"id": "scripted", "object": "chat.completion", "model": m.Name,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": json.RawMessage(message)}},
		"usage":   map[string]any{"prompt_tokens": len(body) / 4, "completion_tokens": len(message)/4 + 1},
	})
}

func (m *Model) next(c Conversation) (Fault, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, c)
	if len(m.faults) == 0 {
		return Fault{}, false
	}
	fault := m.faults[0]
	m.faults = m.faults[1:]
	return fault, true
}

func (f Fault) write(w http.ResponseWriter) {
	for name, value := range f.Header {
		w.Header().Set(name, value)
	}
	if f.Cut {
		w.Header().Set("Content-Length", "1000000")
	}
	w.WriteHeader(f.Status)
	body := f.Body
	if f.Cut {
		body = body[:len(body)/2]
	}
	_, _ = io.WriteString(w, body)
	if f.Cut {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
