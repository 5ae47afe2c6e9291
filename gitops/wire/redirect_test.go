package wire_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
)

// listener counts requests and credentials that reach a foreign host.
func listener(t *testing.T) (url string, requests, credentials *atomic.Int32) {
	t.Helper()
	requests, credentials = new(atomic.Int32), new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "" {
			credentials.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, requests, credentials
}

// Attack cases F01, F02 and F12: every redirect of the first request.
func TestRedirectsOfTheFirstRequest(t *testing.T) {
	foreign, requests, _ := listener(t)
	const query = "?service=git-upload-pack"
	cases := map[string]struct {
		location string
		kind     error // nil: goes on
	}{
		"same name in another case": {"/ACME/Shop.git/info/refs" + query, nil},
		"without the suffix":        {"/acme/shop/info/refs" + query, wire.ErrRefused}, // this host has no such path
		"another name":              {"/acme/store.git/info/refs" + query, wire.ErrMoved},
		"another owner":             {"/globex/shop.git/info/refs" + query, wire.ErrMoved},
		"by number":                 {"/repositories/17/info/refs" + query, wire.ErrMoved},
		"another service":           {"/acme/shop.git/info/refs?service=git-receive-pack", wire.ErrMoved},
		"climbing":                  {"/acme/shop.git/../../etc/info/refs" + query, wire.ErrMoved},
		"another host":              {foreign + "/acme/shop.git/info/refs" + query, wire.ErrMoved},
		"another host, no scheme":   {strings.TrimPrefix(foreign, "http:") + "/acme/shop.git/info/refs" + query, wire.ErrMoved},
		"other scheme":              {"https://127.0.0.1/acme/shop.git/info/refs" + query, wire.ErrUnreachable},
		"a file":                    {"file:///etc/passwd", wire.ErrUnreachable},
		"no location":               {"", wire.ErrUnreachable},
		"itself":                    {"/acme/shop.git/info/refs" + query, wire.ErrUnreachable},
	}
	for name, c := range cases {
		for _, code := range []int{301, 302, 307} {
			t.Run(name, func(t *testing.T) {
				f := newFixture(t)
				f.host.Fault = on(1, isGet, githosttest.Redirect(code, c.location))
				_, err := f.remote(t, nil).Branch(t.Context(), "main")
				if c.kind == nil && err != nil {
					t.Errorf("status %d: %v", code, err)
				}
				if c.kind != nil {
					wantKind(t, err, c.kind)
				}
			})
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the foreign host saw %d requests", n)
	}
}

func TestSecondHopEnds(t *testing.T) {
	for location, kind := range map[string]error{
		"/acme/shop.git/info/refs?service=git-upload-pack":    wire.ErrUnreachable,
		"/globex/store.git/info/refs?service=git-upload-pack": wire.ErrMoved,
	} {
		f := newFixture(t)
		hops := 0
		f.host.Fault = func(*http.Request) githosttest.Fault {
			if hops++; hops == 1 {
				return githosttest.Redirect(302, "/Acme/shop.git/info/refs?service=git-upload-pack")
			}
			return githosttest.Redirect(302, location)
		}
		_, err := f.remote(t, nil).Branch(t.Context(), "main")
		wantKind(t, err, kind)
		if hops != 2 {
			t.Errorf("%d requests", hops)
		}
	}
}

// A sub-domain would get the header from net/http's own redirects; the port
// stands for it here.
func TestRedirectedPushKeepsItsCredential(t *testing.T) {
	foreign, requests, credentials := listener(t)
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	f.host.Fault = on(0, func(r *http.Request) bool { return isPost(r) }, githosttest.Redirect(308, foreign+"/x"))
	err := f.push(t, f.remote(t, nil), m)
	wantKind(t, err, wire.ErrUnreachable)
	if requests.Load() != 0 || credentials.Load() != 0 {
		t.Errorf("the foreign host saw %d requests, %d credentials", requests.Load(), credentials.Load())
	}
}

// The token is in one header and nowhere else.
func TestTokenStaysInTheHeader(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	if err := f.push(t, f.remote(t, nil), m); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.host.Requests() {
		if strings.Contains(r.Path+r.Query, oldToken) || r.Token != oldToken {
			t.Errorf("request %s %s?%s with token %q", r.Method, r.Path, r.Query, r.Token)
		}
	}
}

func TestTLSIsNotRelaxed(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	f := &fixture{server: s}
	_, err := f.remote(t, nil).Branch(t.Context(), "main")
	wantKind(t, err, wire.ErrUnreachable) // self-signed
}
