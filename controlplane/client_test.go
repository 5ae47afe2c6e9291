package controlplane_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	agentID    = "43725ad0-077e-46c3-a4f0-b991a459d879"
	credential = "0123456789012345678901234567890123456789"
)

func client(t *testing.T, origin string, timeout time.Duration) *controlplane.Client {
	t.Helper()
	parsed, err := protocol.ParseOrigin(origin)
	if err != nil {
		t.Fatal(err)
	}
	c := controlplane.New(controlplane.Config{
		Origin: parsed, AgentID: agentID, Credential: credential, Version: "1.0", Timeout: timeout,
	})
	t.Cleanup(c.Close)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func respond(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestRequestsCarryWhatTheProtocolAsksFor(t *testing.T) {
	var got *http.Request
	var body []byte
	origin := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "sid=1")
		w.Header().Set("X-Request-ID", strings.Repeat("r", 200))
		_, _ = io.WriteString(w, `{"ok":true}`)
	})
	c := client(t, origin, 0)
	for range 2 {
		a := c.SubmitJobResult(context.Background(), protocol.JobResultRequest{
			AssignmentID: agentID, LeaseToken: "tok", Evidence: []byte(`{"a":"<&>"}`),
		})
		if a.Class != protocol.ClassTaken || !a.Reply.OK || !a.Dated {
			t.Fatalf("answer %+v", a)
		}
		if len(a.RequestID) > 90 {
			t.Errorf("the request id has %d bytes", len(a.RequestID))
		}
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer " + credential, "X-Veyra-Agent-Id": agentID,
		"Content-Type": "application/json", "User-Agent": "veyra-sandboxd/1.0",
		"Origin": "", "Cookie": "", "Accept-Encoding": "",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("header %s is %q, want %q", name, got.Header.Get(name), want)
		}
	}
	if got.URL.Path != "/api/v1/agent-runtime/job/result/" {
		t.Errorf("path %s", got.URL.Path)
	}
	if !bytes.Contains(body, []byte(`"evidence":{"a":"<&>"}`)) || !bytes.Contains(body, []byte(agentID)) {
		t.Errorf("body %s", body)
	}
}

// A verifier's two calls go to their own paths, with the verification's id.
func TestVerifierCallsGoToTheirPaths(t *testing.T) {
	var path string
	var body []byte
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true,"verification_id":"`+agentID+`","write_access":true,"token":"t"}`)
	}), 0)
	given := c.VerificationCredential(context.Background(), protocol.VerifierCredentialRequest{VerificationID: agentID, LeaseToken: "tok"})
	if path != "/api/v1/agent-runtime/verification/credential/" || given.Reply.WriteAccess == nil || !*given.Reply.WriteAccess {
		t.Errorf("%s: %+v", path, given)
	}
	taken := c.SubmitVerificationResult(context.Background(), protocol.VerificationResultRequest{
		VerificationID: agentID, LeaseToken: "tok", Report: []byte(`{"a":"<&>"}`), Signature: "sig",
	})
	want := `{"agent_id":"` + agentID + `","verification_id":"` + agentID + `","lease_token":"tok","report":{"a":"<&>"},"signature":"sig"}`
	if path != "/api/v1/agent-runtime/verification/result/" || !taken.Reply.OK || strings.TrimSpace(string(body)) != want {
		t.Errorf("%s: %s, %+v", path, body, taken)
	}
}

// Attack case G01, and protocol section 2: every answer has a class and none of
// them invents a task.
func TestG01AnswersHaveClasses(t *testing.T) {
	const html = "<html>no</html>"
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		class  protocol.Class
	}{
		"taken":           {respond(200, "application/json; charset=utf-8", `{"ok":true}`), protocol.ClassTaken},
		"409":             {respond(409, "application/json", `{"detail":"x"}`), protocol.ClassRefused},
		"401":             {respond(401, "application/json", `{"detail":"x"}`), protocol.ClassRevoked},
		"400":             {respond(400, "application/json", `{"detail":"x"}`), protocol.ClassMistake},
		"404 html":        {respond(404, "text/html", html), protocol.ClassMistake},
		"409 html":        {respond(409, "text/html", html), protocol.ClassTrouble},
		"429":             {respond(429, "application/json", `{}`), protocol.ClassTrouble},
		"500":             {respond(500, "text/html", html), protocol.ClassTrouble},
		"502 html":        {respond(502, "text/html", html), protocol.ClassTrouble},
		"204":             {respond(204, "application/json", ""), protocol.ClassTrouble},
		"empty":           {respond(200, "application/json", ""), protocol.ClassTrouble},
		"null":            {respond(200, "application/json", " null"), protocol.ClassTrouble},
		"list":            {respond(200, "application/json", "[]"), protocol.ClassTrouble},
		"wrong type":      {respond(200, "application/json", `{"ok":"yes"}`), protocol.ClassTrouble},
		"bom":             {respond(200, "application/json", "\ufeff{}"), protocol.ClassTrouble},
		"html 200":        {respond(200, "text/html", html), protocol.ClassTrouble},
		"json as html":    {respond(200, "text/html", `{"ok":true}`), protocol.ClassTrouble},
		"duplicate":       {respond(200, "application/json", `{"ok":true,"ok":true}`), protocol.ClassTrouble},
		"deep":            {respond(200, "application/json", deep), protocol.ClassTrouble},
		"nul":             {respond(200, "application/json", `{"ok":true,"x":"\u0000"}`), protocol.ClassTrouble},
		"large":           {respond(200, "application/json", `{"x":"`+strings.Repeat("y", 5<<20)+`"}`), protocol.ClassTrouble},
		"large error":     {respond(409, "application/json", `{"detail":"`+strings.Repeat("y", 300<<10)+`"}`), protocol.ClassTrouble},
		"gzip bomb":       {gzipped, protocol.ClassTrouble},
		"redirect 302":    {respond(302, "text/html", ""), protocol.ClassMistake},
		"endless headers": {headers, protocol.ClassTrouble},
	} {
		t.Run(name, func(t *testing.T) {
			a := client(t, serve(t, c.answer), 0).Heartbeat(context.Background(), protocol.HeartbeatRequest{})
			if a.Class != c.class {
				t.Errorf("class %v (%s), want %v", a.Class, a.Say(), c.class)
			}
			if a.Class != protocol.ClassTaken && (a.Reply.OK || protocol.Present(a.Reply.JobTask)) {
				t.Error("a reply was made up")
			}
		})
	}
}

func gzipped(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = z.Write(bytes.Repeat([]byte(" "), 10<<20))
	_ = z.Close()
}

func headers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Large", strings.Repeat("x", 100<<10))
}

// Attack case G03: no redirect is followed, the bearer goes nowhere else.
func TestG03RedirectsAreNotFollowed(t *testing.T) {
	reached := false
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { reached = true })
	for _, status := range []int{301, 302, 303, 307, 308} {
		origin := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere+"/api", status)
		})
		a := client(t, origin, 0).Configuration(context.Background())
		if a.Class != protocol.ClassMistake || a.Status != status {
			t.Errorf("%d: %s", status, a.Say())
		}
	}
	if reached {
		t.Error("a redirect was followed")
	}
}

// Attack case G02: a byte now and then does not outlast the total deadline.
func TestG02DeadlinesAreTotal(t *testing.T) {
	done := make(chan struct{})
	trickle := func(conn net.Conn, first string) {
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 4096)); err != nil {
			return
		}
		_, _ = io.WriteString(conn, first)
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
				if _, err := io.WriteString(conn, "x"); err != nil {
					return
				}
			}
		}
	}
	defer close(done)
	for name, first := range map[string]string{
		"headers": "HTTP/1.1 200 OK\r\nX: ",
		"body":    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go trickle(conn, first)
			}
		}()
		a := client(t, "http://"+l.Addr().String(), 200*time.Millisecond).Heartbeat(context.Background(), protocol.HeartbeatRequest{})
		var timeout net.Error
		if a.Class != protocol.ClassTrouble || !errors.As(a.Err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: %s", name, a.Say())
		}
	}
}

func TestCutAnswersAreTrouble(t *testing.T) {
	origin := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"ok":true}`)
	})
	a := client(t, origin, 0).SubmitJobResult(context.Background(), protocol.JobResultRequest{})
	if a.Class != protocol.ClassTrouble || a.Definite || a.Err == nil {
		t.Errorf("answer %+v", a)
	}
}

func TestRetryAfterIsCapped(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"7": 7 * time.Second, "86400": 30 * time.Second, "-1": 0, "soon": 0,
		"Fri, 31 Dec 2999 23:59:59 GMT": 30 * time.Second, "": 0, "0": 0, "1.5": 0, "0x10": 0, "7, 9": 0,
		// Absurd ones are long, and not forgotten.
		"4294967296": 30 * time.Second, "99999999999999999999999999": 30 * time.Second, "-99999999999999999999999999": 0,
	} {
		origin := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(429)
		})
		if a := client(t, origin, 0).Configuration(context.Background()); a.RetryAfter != want {
			t.Errorf("Retry-After %q is %v, want %v", header, a.RetryAfter, want)
		}
	}
}

// A date is one of the clock that wrote it, however far that is from ours.
func TestRetryAfterGoesByTheOthersClock(t *testing.T) {
	for date, want := range map[string]time.Duration{
		"Sat, 01 Jan 2000 00:00:00 GMT": 12 * time.Second, "Wed, 01 Jan 2200 00:00:00 GMT": 12 * time.Second,
	} {
		origin := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			at, err := http.ParseTime(date)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("Date", date)
			w.Header().Set("Retry-After", at.Add(12*time.Second).Format(http.TimeFormat))
			w.WriteHeader(503)
		})
		if a := client(t, origin, 0).Configuration(context.Background()); a.RetryAfter != want {
			t.Errorf("at %s: %v, want %v", date, a.RetryAfter, want)
		}
	}
}

func TestDetailsAreCutAndClean(t *testing.T) {
	long := fmt.Sprintf(`{"detail":"line\nwith \u001b[31m colour %s"}`, strings.Repeat("x", 2000))
	a := client(t, serve(t, respond(409, "application/json", long)), 0).Configuration(context.Background())
	if strings.ContainsAny(a.Detail, "\n\x1b") || len([]rune(a.Detail)) > 501 || !a.Definite {
		t.Errorf("detail %q", a.Detail)
	}
	shaped := `{"error":{"code":"x","message":"why","request_id":"1"}}`
	a = client(t, serve(t, respond(400, "application/json", shaped)), 0).Configuration(context.Background())
	if a.Detail != "why" {
		t.Errorf("detail %q", a.Detail)
	}
}

func TestTooLargeRequestsAreNotSent(t *testing.T) {
	sent := false
	origin := serve(t, func(http.ResponseWriter, *http.Request) { sent = true })
	a := client(t, origin, 0).SubmitQualification(context.Background(), protocol.QualificationSubmission{
		TestOutput: strings.Repeat("\x01", protocol.MaxBodyBytes/6),
	})
	if sent || !errors.Is(a.Err, controlplane.ErrTooLarge) {
		t.Errorf("answer %+v, sent %v", a, sent)
	}
}
