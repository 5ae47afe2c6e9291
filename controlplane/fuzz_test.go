package controlplane_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

type canned struct {
	status int
	header http.Header
	body   []byte
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: c.status, Header: c.header, Body: io.NopCloser(bytes.NewReader(c.body))}, nil
}

// FuzzAnswer reads any answer: it has a class, waits within bounds, and only a
// whole JSON object is taken.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "application/json", "", []byte(`{"ok":true,"job_task":{"id":1}}`))
	f.Add(200, "application/json", "9", []byte(`null`))
	f.Add(409, "application/json", "-1", []byte(`{"detail":"\u0000"}`))
	f.Add(429, "text/html", "99999999999999", []byte(`<html>`))
	f.Add(200, "application/json", "", []byte(`{"error":{"message":7}}`))
	origin, err := protocol.ParseOrigin("https://plane.example")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, kind, wait string, body []byte) {
		c := controlplane.New(controlplane.Config{Origin: origin, Transport: canned{
			status, http.Header{"Content-Type": {kind}, "Retry-After": {wait}, "Date": {wait}}, body,
		}})
		a := c.Heartbeat(context.Background(), protocol.HeartbeatRequest{})
		if a.RetryAfter < 0 || a.RetryAfter > 30*time.Second {
			t.Errorf("wait %v", a.RetryAfter)
		}
		if a.Class == protocol.ClassTaken && (status != 200 || !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))) {
			t.Errorf("%d %q was taken", status, body)
		}
		if a.Class != protocol.ClassTaken && (a.Reply.OK || a.Reply.JobTask != nil) {
			t.Error("a reply was made up")
		}
		if bytes.ContainsAny([]byte(a.Say()), "\n\r\x1b\x00") {
			t.Errorf("said %q", a.Say())
		}
	})
}
