package supervisor

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Admin serves /metrics, /livez and /readyz, nothing else: on TCP there is no
// status, link or job. A Host header that names another place than the listener
// is refused, so that a page in the owner's browser can't read it by DNS
// rebinding (attack case H04).
type Admin struct {
	listen string
	mux    *http.ServeMux
}

// NewAdmin makes the handler of the admin listener at address listen. ready
// returns "" or why no work is taken.
func NewAdmin(listen string, metrics http.Handler, ready func() string) *Admin {
	a := &Admin{listen: listen, mux: http.NewServeMux()}
	a.mux.Handle("GET /metrics", metrics)
	a.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	a.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := ready(); why != "" {
			plain(w, http.StatusServiceUnavailable, why)
			return
		}
		plain(w, http.StatusOK, "ok")
	})
	return a
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// ServeHTTP answers one request.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !a.knows(r.Host) {
		plain(w, http.StatusForbidden, "this host name is not served here")
		return
	}
	a.mux.ServeHTTP(w, r)
}

// knows takes IP addresses, localhost and the name that the owner listens on:
// a rebinding page always sends its own name.
func (a *Admin) knows(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	own, _, _ := net.SplitHostPort(a.listen)
	return strings.EqualFold(host, "localhost") || own != "" && strings.EqualFold(host, own)
}
