package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/provider"
)

// wireError is the dialect's error object. Its words are a stranger's: they
// choose a kind here and go nowhere else.
type wireError struct {
	Message string          `json:"message"`
	Type    string          `json:"type"`
	Code    json.RawMessage `json:"code"`
	Param   string          `json:"param"`
}

func (a answer) wireError() wireError {
	var outer struct {
		Error json.RawMessage `json:"error"`
	}
	var inner wireError
	if json.Unmarshal(a.body, &outer) != nil {
		return inner
	}
	if json.Unmarshal(outer.Error, &inner) != nil {
		_ = json.Unmarshal(outer.Error, &inner.Message)
	}
	return inner
}

// names tells whether the error is about the request's parameter.
func (a answer) names(parameter string) bool {
	e := a.wireError()
	return e.Param == parameter || strings.Contains(e.Message, parameter)
}

func (e wireError) code() string { return strings.Trim(string(e.Code), `"`) }

// failure gives the kind of an answer that is no reply.
func (a answer) failure() error {
	e := a.wireError()
	switch {
	case e.code() == "insufficient_quota" || e.Type == "insufficient_quota",
		a.status == http.StatusPaymentRequired && a.retryAfter == 0:
		return a.fail(provider.QuotaExhausted, "")
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return a.fail(provider.AuthFailed, "")
	case e.code() == "context_length_exceeded" || a.status == http.StatusRequestEntityTooLarge || overflows(a.status, e):
		return a.fail(provider.ContextOverflow, "")
	case a.status == http.StatusNotFound || e.code() == "model_not_found":
		return a.fail(provider.ModelNotFound, "")
	case a.status == http.StatusTooManyRequests || a.status == http.StatusPaymentRequired:
		return a.fail(provider.RateLimited, "")
	case a.status == http.StatusRequestTimeout || a.status == http.StatusConflict || a.status >= 500:
		return a.fail(provider.Unavailable, "")
	case a.status == http.StatusOK:
		return a.fail(provider.Unavailable, "an error object with status 200")
	case a.status >= 300 && a.status < 400:
		return a.fail(provider.Rejected, "a redirect, which the key does not follow")
	}
	return a.fail(provider.Rejected, "")
}

// overflows reads the text of a 400, since servers have no common code for a
// full context.
func overflows(status int, e wireError) bool {
	text := strings.ToLower(e.Message)
	return status == http.StatusBadRequest && strings.Contains(text, "context") &&
		(strings.Contains(text, "length") || strings.Contains(text, "window") || strings.Contains(text, "maximum"))
}

func (a answer) fail(kind provider.Kind, why string) error {
	e := &provider.Error{Kind: kind, Status: a.status, RetryAfter: a.retryAfter}
	if why != "" {
		e.Err = errors.New(why)
	}
	return e
}

// retryAfter reads seconds or a date; garbage and the past are 0.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
		if seconds < 0 || seconds > 1<<30 {
			return 0
		}
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// Ready asks for the list of models with the key; 200 with JSON is ready.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	got, err := c.do(ctx, http.MethodGet, "/models", nil)
	if err != nil {
		return err
	}
	if got.status != http.StatusOK {
		return got.failure()
	}
	if !json.Valid(bytes.TrimSpace(got.body)) {
		return got.fail(provider.BadResponse, "the list of models is no JSON")
	}
	return nil
}
