package supervisor_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
	"github.com/veyra-labs/veyra-sandboxd/supervisor/acmetest"
)

func acmeConfig(t *testing.T, i *acmetest.Issuer, dir string) supervisor.ACMEConfig {
	return supervisor.ACMEConfig{
		Host: publicName + ":9100", Email: "owner@example.net", Dir: dir, Directory: i.Directory, Client: i.Client, Log: logger(t),
	}
}

func newACME(t *testing.T, config supervisor.ACMEConfig) *supervisor.ACME {
	t.Helper()
	acme, err := supervisor.NewACME(config)
	if err != nil {
		t.Fatal(err)
	}
	return acme
}

// portOf is the port that a listener has.
func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func obtain(t *testing.T, acme *supervisor.ACME) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	expires, err := acme.Obtain(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return expires
}

func TestCertificatesByACME(t *testing.T) {
	program := acmetest.Build(t, filepath.Join("testdata", "pebble"))
	t.Run("TLS-ALPN-01", func(t *testing.T) { issueByTLS(t, program) })
	t.Run("HTTP-01", func(t *testing.T) { issueByHTTP(t, program) })
}

// The public listener answers the issuer by itself, and then the control plane.
// A restart finds the certificate where it was and asks nobody.
func issueByTLS(t *testing.T, program string) {
	l := listen(t, "tcp", "127.0.0.1:0")
	pebble := acmetest.Start(t, program, portOf(l), portOf(l))
	roots := pebble.Roots()
	dir := t.TempDir()
	acme := newACME(t, acmeConfig(t, pebble, dir))
	d := newDoor(t)
	d.host = publicName + ":9100"
	d.open()
	way := d.serveOn(l, acme.TLSConfig(), roots)
	if err := d.pairOver(way); err == nil {
		t.Fatal("paired without a certificate")
	}
	if said := pebble.Said(); strings.Contains(said, "/order-plz") {
		t.Errorf("a stranger's handshake led to an order:\n%s", said)
	}
	expires := obtain(t, acme)
	if time.Until(expires) < time.Hour {
		t.Errorf("the certificate ends %v", expires)
	}
	if err := d.pairOver(way); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"other.example.net", ""} {
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err == nil {
			_ = conn.Close()
			t.Errorf("a hello for %q was answered", name)
		}
	}
	pebble.Stop()
	if again := obtain(t, newACME(t, acmeConfig(t, pebble, dir))); !again.Equal(expires) {
		t.Errorf("after a restart the certificate ends %v, not %v", again, expires)
	}
	modes(t, dir)
}

// modes wants what is kept to be the owner's alone.
func modes(t *testing.T, dir string) {
	t.Helper()
	kept, err := os.ReadDir(dir)
	if err != nil || len(kept) < 2 {
		t.Fatalf("%d files are kept, %v", len(kept), err)
	}
	for _, file := range kept {
		if info, err := file.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", file.Name(), info.Mode(), err)
		}
	}
}

// Where port 443 leads elsewhere the issuer comes by port 80.
func issueByHTTP(t *testing.T, program string) {
	l := listen(t, "tcp", "127.0.0.1:0")
	pebble := acmetest.Start(t, program, portOf(l), portOf(l))
	pebble.Roots()
	acme := newACME(t, acmeConfig(t, pebble, t.TempDir()))
	server := supervisor.PublicServer(acme.Plain(), logger(t))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	obtain(t, acme)
}

// What is no challenge is sent to the public host, whatever host was asked for.
func TestPlainPortLeadsToThePublicHost(t *testing.T) {
	plain := newACME(t, supervisor.ACMEConfig{Host: publicName + ":9100", Dir: t.TempDir(), Log: logger(t)}).Plain()
	for name, c := range map[string]struct {
		method, url, location string
		status                int
	}{
		"a page":             {"GET", "http://" + publicName + "/veyra/health", "https://" + publicName + ":9100/veyra/health", 302},
		"another host":       {"GET", "http://evil.example//evil.example/", "https://" + publicName + ":9100//evil.example/", 302},
		"a post":             {"POST", "http://" + publicName + "/veyra/connect/claim", "", 400},
		"no such challenge":  {"GET", "http://" + publicName + "/.well-known/acme-challenge/x", "", 404},
		"a challenge abroad": {"GET", "http://evil.example/.well-known/acme-challenge/x", "", 403},
	} {
		w := httptest.NewRecorder()
		plain.ServeHTTP(w, httptest.NewRequest(c.method, c.url, nil))
		if w.Code != c.status || w.Header().Get("Location") != c.location {
			t.Errorf("%s: %d to %q, want %d to %q", name, w.Code, w.Header().Get("Location"), c.status, c.location)
		}
	}
}

func TestNamesWithoutAnIssuerAreRefused(t *testing.T) {
	for host, says := range map[string]string{
		"192.0.2.1": "IP address", "192.0.2.1:9100": "IP address", "[2001:db8::1]:443": "IP address", "2001:db8::1": "IP address",
		"localhost:9100": "public name", "machine": "public name", "printer.local": "public name", "a.localhost": "public name", "": "public name",
	} {
		_, err := supervisor.NewACME(supervisor.ACMEConfig{Host: host})
		if !errors.Is(err, supervisor.ErrNoACME) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want a sentence with %q", host, err, says)
		}
	}
	for _, host := range []string{"worker.example.net", "Worker.Example.net:9100", "xn--bcher-kva.example"} {
		if _, err := supervisor.NewACME(supervisor.ACMEConfig{Host: host}); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
}
