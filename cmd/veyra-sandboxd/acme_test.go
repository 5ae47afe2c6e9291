package main_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
	"github.com/veyra-labs/veyra-sandboxd/supervisor/acmetest"
)

// issuerName is whom mode acme asks; there is no setting for another.
const issuerName = "acme-v02.api.letsencrypt.org"

// issuerFront serves an issuer under the name of the real one, and a proxy that
// leads there. It returns the proxy's URL and the file of the certificate to
// trust: what an owner's HTTPS_PROXY and SSL_CERT_FILE may do as well.
func issuerFront(t *testing.T, issuer *acmetest.Issuer) (proxy, roots string) {
	t.Helper()
	behind, err := url.Parse(issuer.Directory)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := acmetest.Certificate(t, 1, issuerName)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: issuer.Client.Transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = behind.Scheme, behind.Host
		if r.In.URL.Path == "/directory" {
			r.Out.URL.Path = behind.Path
		}
		r.Out.Host = issuerName // a request is signed for the address it was sent to
	}})
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	front.StartTLS()
	t.Cleanup(front.Close)
	tunnels := httptest.NewServer(tunnel(t, issuerName+":443", front.Listener.Addr().String()))
	t.Cleanup(tunnels.Close)
	roots = filepath.Join(certificateDir(t), "roots.pem")
	writeFile(t, roots, string(cert), 0o644)
	return tunnels.URL, roots
}

// tunnel is a proxy that knows one address, and where it really leads.
func tunnel(t *testing.T, name, address string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != name {
			t.Errorf("the proxy was asked for %s %s", r.Method, r.Host)
			http.Error(w, "no way", http.StatusForbidden)
			return
		}
		there, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, "no way", http.StatusBadGateway)
			return
		}
		defer there.Close()
		w.WriteHeader(http.StatusOK)
		here, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer here.Close()
		go func() { _, _ = io.Copy(there, here); _ = there.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(here, there)
	})
}

// portAt is the port of an address.
func portAt(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	port, bad := strconv.Atoi(text)
	if err != nil || bad != nil {
		t.Fatal(address, err, bad)
	}
	return port
}

// With its powers gone the daemon gets a certificate from an ACME server that
// comes to look, and is paired over it; after a restart, when no issuer can be
// reached, it serves the same one.
func TestPairingOverACME(t *testing.T) {
	t.Parallel()
	program := acmetest.Build(t, "../../supervisor/testdata/pebble")
	w := newWorld(t, true)
	p := w.newPlace().withTLS(t, "{mode: acme, acme_email: owner@example.net}")
	issuer := acmetest.Start(t, program, portAt(t, p.public), portAt(t, p.public))
	proxy, roots := issuerFront(t, issuer)
	p.env = append(p.env, "RUNTIME_PUBLIC_PORT=443", "HTTPS_PROXY="+proxy, "SSL_CERT_FILE="+roots)
	trusted := issuer.Roots()
	d := w.start(p)
	d.line("the public host has a certificate")
	link := strings.TrimSpace(d.tell("link").want(t, 0).out)
	if !strings.HasPrefix(link, "veyra-connect://"+workerName+"/connect/") && !strings.HasPrefix(link, "veyra-connect://"+workerName+":443/connect/") {
		t.Errorf("link %s", link)
	}
	way := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", p.public)
		},
	}
	t.Cleanup(way.CloseIdleConnections)
	if _, err := w.plane.PairWith(t.Context(), link, controlplanetest.PairOptions{Transport: way}); err != nil {
		t.Fatalf("pairing over the issued certificate: %v", err)
	}
	d.statusUntil("paired", func(st supervisor.Status) bool { return st.Pairing == supervisor.Paired })
	serial := p.servedBy(t, trusted)
	d.stop()
	issuer.Stop()
	d = w.start(p)
	d.line("the public host has a certificate")
	if again := p.servedBy(t, trusted); again != serial {
		t.Errorf("after a restart certificate %s is served, not %s", again, serial)
	}
	d.stop()
}

// servedBy is the number of a certificate that these roots bear out.
func (p place) servedBy(t *testing.T, roots *x509.CertPool) string {
	t.Helper()
	conn, err := tls.Dial("tcp", p.public, &tls.Config{ServerName: workerName, RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
