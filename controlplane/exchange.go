package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// ErrTooLarge is in an Answer whose body was longer than what is read, or whose
// request would be longer than what the control plane takes.
var ErrTooLarge = errors.New("too large")

// call is one request before it is sent.
type call struct {
	endpoint Endpoint
	method   string
	path     string
	body     any // nil: none
}

// exchange sends one request, once, and reads its answer.
func exchange[T any](ctx context.Context, c *Client, client *http.Client, call call) Answer[T] {
	req, err := c.request(ctx, call)
	if err != nil {
		return Answer[T]{Class: protocol.ClassMistake, Err: err}
	}
	sent := time.Now()
	res, err := client.Do(req)
	if err != nil {
		c.observe(call.endpoint, 0, sent)
		return Answer[T]{Class: protocol.ClassTrouble, Err: fmt.Errorf("calling %s: %w", call.endpoint, err)}
	}
	defer drain(res.Body)
	received := time.Now()
	answer := read[T](res)
	answer.Offset, answer.Dated = offset(res.Header, sent, received)
	answer.RetryAfter = retryAfter(res.Header, received)
	answer.RequestID = cleanText(res.Header.Get("X-Request-ID"), 80)
	c.observe(call.endpoint, res.StatusCode, sent)
	c.config.Log.Debug("control plane answered", "endpoint", string(call.endpoint),
		"status", res.StatusCode, "request_id", answer.RequestID)
	return answer
}

func (c *Client) observe(e Endpoint, code int, sent time.Time) {
	if c.config.Observe != nil {
		c.config.Observe(e, code, time.Since(sent))
	}
}

// request builds the request. No header but these: an Origin header or a
// cookie is answered 403.
func (c *Client) request(ctx context.Context, call call) (*http.Request, error) {
	var body io.Reader
	if call.body != nil {
		raw, err := encode(call.body)
		if err != nil {
			return nil, fmt.Errorf("encoding request of %s: %w", call.endpoint, err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, call.method, c.config.Origin.URL(call.path), body)
	if err != nil {
		return nil, fmt.Errorf("building request of %s: %w", call.endpoint, err)
	}
	req.Header.Set("Authorization", "Bearer "+string(c.config.Credential))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "veyra-sandboxd/"+c.config.Version)
	req.Header.Set("X-Veyra-Agent-ID", string(c.config.AgentID))
	return req, nil
}

// encode writes JSON without HTML escapes, which would make outputs longer.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	if out.Len() >= protocol.MaxBodyBytes {
		return nil, fmt.Errorf("body of %d bytes: %w", out.Len(), ErrTooLarge)
	}
	return out.Bytes(), nil
}

// read parses a taken answer; a body that can't be read or parsed makes the
// whole answer unknown.
func read[T any](res *http.Response) Answer[T] {
	a := Answer[T]{Status: res.StatusCode}
	limit := int64(maxErrorBytes)
	if res.StatusCode == http.StatusOK {
		limit = maxReplyBytes
	}
	body, err := readBody(res.Body, limit)
	isJSON := err == nil && isJSON(res.Header, body)
	a.Class = protocol.Classify(res.StatusCode, isJSON)
	a.Definite = protocol.DefiniteRefusal(res.StatusCode, isJSON)
	if a.Class != protocol.ClassTaken {
		if isJSON {
			a.Detail = detailOf(body)
		}
		a.Err = err
		return a
	}
	if err == nil {
		err = decode(body, &a.Reply)
	}
	if err != nil {
		var none T
		a.Reply, a.Class, a.Err = none, protocol.ClassTrouble, err
	}
	return a
}

// decode wants an object: null would fill nothing and look like an answer.
func decode(body []byte, reply any) error {
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return &protocol.DecodeError{Why: "not an object"}
	}
	return protocol.Decode(body, reply, maxReplyBytes)
}

func readBody(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading answer: %w", err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("reading answer over %d bytes: %w", limit, ErrTooLarge)
	}
	return body, nil
}

// isJSON tells a JSON answer from a proxy's page by what it is, not only by
// what it says it is.
func isJSON(h http.Header, body []byte) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json" && json.Valid(body)
}

// drain reads a little of what is left, so that the connection can be used
// again, and closes it.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}
