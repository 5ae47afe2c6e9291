package supervisor_test

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// Attack case H09: strangers who hold connections open miss no beat, and get no
// more connections than there are slots.
func TestH09IdleStrangersMissNoBeat(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{Qualified: true})
	h.boot()
	h.pair()
	h.wait("beats come", func(v controlplanetest.View) bool { return v.Counts.Beats > 0 })
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for range 300 {
		conn, err := net.Dial("tcp", h.public)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	// One over the slots is closed at once: its read ends without a byte.
	last := open[len(open)-1]
	if err := last.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := last.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a connection over the slots read %d bytes, %v", n, err)
	}
	before := h.plane.View().Counts.Beats
	h.wait("beats go on", func(v controlplanetest.View) bool { return v.Counts.Beats > before+5 })
}

// Attack case H09: one stranger who holds every connection that it gets keeps
// nobody else out.
func TestH09OneCallerLeavesRoomForOthers(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{})
	h.boot()
	for range 300 {
		conn, err := net.Dial("tcp", h.public)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	other := http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	defer other.CloseIdleConnections()
	res, err := other.Get("http://" + h.public + protocol.PathHealth)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("another caller got %s", res.Status)
	}
}

// What a caller has closed it may open again, and a proxy brings many callers.
func TestH09ConnectionsAreGivenBack(t *testing.T) {
	for name, c := range map[string]struct {
		proxied bool
		at      int // once
	}{"a caller": {false, 16}, "a proxy": {true, 200}} {
		l := supervisor.LimitCallers(listen(t, "tcp", "127.0.0.1:0"), c.proxied)
		for range 3 {
			var open []net.Conn
			for range c.at {
				near, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				far, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, near, far, far) // closing twice frees once
			}
			for _, conn := range open {
				_ = conn.Close()
			}
		}
		if t.Failed() {
			t.Log(name)
		}
	}
}

// Attack case H09: wrong lengths and chunks end in an error, not in a hang.
func TestH09WrongLengthsAreRefused(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{})
	h.boot()
	for name, request := range map[string]string{
		"two lengths": "POST /veyra/connect/claim HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
		"both":        "POST /veyra/connect/claim HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: gzip\r\n\r\n{}",
		"bad chunk":   "POST /veyra/connect/claim HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"no host":     "GET /veyra/health HTTP/1.1\r\n\r\n",
		"long header": "GET /veyra/health HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", h.public)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && (res.StatusCode < 400 || res.StatusCode >= 600) {
			t.Errorf("%s: %s", name, res.Status)
		}
		_ = conn.Close()
	}
}

// FuzzPublic sends anything to the connect routes: no 5xx, and a signature only
// for a challenge that is nothing but letters.
func FuzzPublic(f *testing.F) {
	f.Add(false, "", `{"token":"x","challenge":"`+goodQuestion+`","veyra_origin":""}`)
	f.Add(false, "", `{"token":7}`)
	f.Add(true, "", `{"token":"x","agent_id":"`+someID+`","heartbeat_url":"`+origin+protocol.PathHeartbeat+`"}`)
	f.Add(true, "", `[[[[`)
	f.Add(false, "protocol=2", `{"protocol_version":1e99}`)
	dir := f.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, claim bool, query, body string) {
		d := &door{t: t, dir: dir, host: "host.example:9100", key: fuzzKey()}
		d.open()
		path := protocol.PathChallenge
		if claim {
			path = protocol.PathClaim
		}
		body = strings.ReplaceAll(body, `"x"`, `"`+string(d.token(true))+`"`)
		r := httptest.NewRequest("POST", path, strings.NewReader(body))
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		d.public.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%d for %q", w.Code, body)
		}
		if w.Code == 200 && !strings.Contains(w.Body.String(), `"signature"`) {
			t.Errorf("200 without a signature: %s", w.Body)
		}
	})
}
