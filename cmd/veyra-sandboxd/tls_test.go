package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/supervisor/acmetest"
)

const workerName = "worker.example.net"

// newPair makes a self-signed certificate and puts both files into a directory,
// each by a rename, as renewers do.
func newPair(t *testing.T, dir string, serial int64, mode os.FileMode) []byte {
	t.Helper()
	cert, key := acmetest.Certificate(t, serial, workerName)
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		path := filepath.Join(dir, name)
		writeFile(t, path+".new", string(text), mode)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}

// certificateDir is a directory that every user may pass.
func certificateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "veyra-certificates-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// withTLS makes the place one whose public listener speaks TLS.
func (p place) withTLS(t *testing.T, settings string) place {
	t.Helper()
	text, err := os.ReadFile(p.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, p.config, string(text)+"public: {tls: "+settings+"}\n", 0o600)
	var env []string
	for _, pair := range p.env {
		if !strings.HasPrefix(pair, "VEYRA_TLS_MODE=") && !strings.HasPrefix(pair, "RUNTIME_PUBLIC_HOST=") {
			env = append(env, pair)
		}
	}
	p.env = append(env, "RUNTIME_PUBLIC_HOST="+workerName)
	return p
}

// servedSerial is the number of the certificate that the public listener shows.
func (p place) servedSerial(t *testing.T) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", p.public, &tls.Config{ServerName: workerName, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// The supervisor has another user by then and sees a renewed certificate all the
// same; the control plane's first call is answered over https.
func TestPublicListenerFollowsItsCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	dir := certificateDir(t)
	cert := newPair(t, dir, 1, 0o644)
	p := w.newPlace().withTLS(t, fmt.Sprintf("{mode: files, cert: %s/cert.pem, key: %s/key.pem}", dir, dir))
	d := w.start(p)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: workerName}}}
	link := strings.TrimSpace(d.tell("link").want(t, 0).out)
	_, rest, _ := strings.Cut(link, "/connect/")
	token, _, _ := strings.Cut(rest, "?")
	if !strings.HasPrefix(link, "veyra-connect://"+workerName+":") {
		t.Errorf("link %s", link)
	}
	for _, c := range []struct {
		from string
		want int
	}{{"https://relay.example", 403}, {w.origin, 200}} {
		body := fmt.Sprintf(`{"token":%q,"challenge":%q,"veyra_origin":%q}`, token, strings.Repeat("c", 43), c.from)
		res, err := client.Post("https://"+p.public+"/veyra/connect/challenge", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("a challenge of %s is answered %d, want %d", c.from, res.StatusCode, c.want)
		}
	}
	client.CloseIdleConnections()
	newPair(t, dir, 2, 0o644)
	until(t, "the new certificate is served", func() bool { return p.servedSerial(t) == 2 })
	if strings.Contains(d.text(), "after a restart only") {
		t.Errorf("readable files are complained of:\n%s", d.text())
	}
	d.stop()
}

// A key of root's works as it is; that a renewal is not seen is said at the
// start.
func TestRootsKeyIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	dir := certificateDir(t)
	newPair(t, dir, 1, 0o600)
	p := w.newPlace().withTLS(t, fmt.Sprintf("{mode: files, cert: %s/cert.pem, key: %s/key.pem}", dir, dir))
	d := w.start(p)
	if n := p.servedSerial(t); n != 1 {
		t.Errorf("certificate %d", n)
	}
	d.line("a renewed certificate will be seen after a restart only: let the supervisor's user (--user) read certificate and key to have it followed")
	newPair(t, dir, 2, 0o600)
	until(t, "the change was noticed", func() bool {
		return p.servedSerial(t) == 1 && strings.Contains(d.text(), "the old one stays")
	})
	d.stop()
}

// With the powers gone the daemon asks for a certificate at its start, by the
// owner's proxy, keeps its account's key, and works on when there is no answer.
func TestACMEAsksWithThePowersGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	var asked atomic.Pointer[string]
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := r.Method + " " + r.Host
		asked.Store(&line)
		http.Error(w, "no way", http.StatusForbidden)
	})}
	go func() { _ = server.Serve(proxy) }()
	t.Cleanup(func() { _ = server.Close() })
	p := w.newPlace().withTLS(t, "{mode: acme, acme_email: owner@example.net}")
	d := w.start(p, "RUNTIME_PUBLIC_PORT=443", "HTTPS_PROXY=http://"+proxy.Addr().String())
	d.line("no certificate for the public host yet")
	if line := asked.Load(); line == nil || !strings.HasPrefix(*line, "CONNECT acme-v02.api.letsencrypt.org:443") {
		t.Errorf("the proxy was asked for %v", line)
	}
	st, err := os.Stat(filepath.Join(p.state, "acme", "acme_account+key"))
	if err != nil || st.Mode().Perm() != 0o600 || st.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Errorf("the account's key: %v, %v", st, err)
	}
	d.stop()
}
