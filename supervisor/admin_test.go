package supervisor_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func TestH04AdminChecksHostAndServesOnlyProbes(t *testing.T) {
	why := "disk is full"
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) })
	admin := supervisor.NewAdmin("127.0.0.1:9101", metrics, func() string { return why })
	for _, c := range []struct {
		host, path string
		status     int
		body       string
	}{
		{"127.0.0.1:9101", "/metrics", 200, "metrics"},
		{"localhost:9101", "/livez", 200, "ok"},
		{"[::1]:9101", "/livez", 200, "ok"},
		{"localhost", "/readyz", 503, "disk is full"},
		{"evil.example:9101", "/metrics", 403, ""},
		{"127.0.0.1.evil.example", "/metrics", 403, ""},
		{"127.0.0.1:9101", "/status", 404, ""},
		{"127.0.0.1:9101", "/link", 404, ""},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, r)
		if w.Code != c.status || !strings.HasPrefix(w.Body.String(), c.body) {
			t.Errorf("%s %s: %d %q, want %d %q", c.host, c.path, w.Code, w.Body, c.status, c.body)
		}
	}
	why = ""
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/readyz", nil))
	if w.Code != 200 {
		t.Errorf("ready host answers %d", w.Code)
	}
}
