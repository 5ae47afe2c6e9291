package supervisor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
	"github.com/veyra-labs/veyra-sandboxd/supervisor/acmetest"
)

const publicName = "worker.example.net"

// pairFiles is a directory with a certificate and a key.
type pairFiles struct {
	t         *testing.T
	cert, key string
}

func newPairFiles(t *testing.T) *pairFiles {
	dir := t.TempDir()
	p := &pairFiles{t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	cert, key := acmetest.Certificate(t, 1, publicName)
	p.replace(p.cert, cert)
	p.replace(p.key, key)
	return p
}

// replace puts a new file in the place of an old one.
func (p *pairFiles) replace(name string, text []byte) {
	p.t.Helper()
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pairFiles) open() *supervisor.CertificateFiles {
	p.t.Helper()
	files, err := supervisor.OpenCertificateFiles(p.cert, p.key, logger(p.t))
	if err != nil {
		p.t.Fatal(err)
	}
	return files
}

func TestChangedCertificatesAreServed(t *testing.T) {
	p := newPairFiles(t)
	files := p.open()
	now := time.Now()
	want := func(what string, serial int64) {
		t.Helper()
		now = now.Add(time.Second)
		if got := supervisor.CertificateAt(files, now).Leaf.SerialNumber.Int64(); got != serial {
			t.Errorf("%s: certificate %d is served, want %d", what, got, serial)
		}
	}
	want("at first", 1)
	cert, key := acmetest.Certificate(t, 2, publicName)
	p.replace(p.cert, cert)
	want("a new certificate beside the old key", 1)
	p.replace(p.key, key)
	want("both are new", 2)
	if got := supervisor.CertificateAt(files, now).Leaf.SerialNumber.Int64(); got != 2 {
		t.Errorf("certificate %d", got)
	}

	third, thirdKey := acmetest.Certificate(t, 3, publicName)
	p.replace(p.key, thirdKey)
	p.replace(p.cert, third)
	// Within a second of the last look nobody looks again.
	if got := supervisor.CertificateAt(files, now.Add(900*time.Millisecond)).Leaf.SerialNumber.Int64(); got != 2 {
		t.Errorf("certificate %d is served 0.9 s after the last look", got)
	}
	want("a second later", 3)

	for _, spoil := range []struct {
		what string
		do   func() error
	}{
		{"garbage", func() error { return os.WriteFile(p.cert, []byte("no certificate"), 0o600) }},
		{"too long", func() error { return os.Truncate(p.cert, 2<<20) }},
		{"a pipe", func() error { _ = os.Remove(p.cert); return unix.Mkfifo(p.cert, 0o600) }},
		{"no key", func() error { return os.Remove(p.key) }},
	} {
		if err := spoil.do(); err != nil {
			t.Fatal(spoil.what, err)
		}
		want(spoil.what, 3)
		want(spoil.what+", again", 3)
	}
	_ = os.Remove(p.cert)
	p.replace(p.cert, cert)
	p.replace(p.key, key)
	want("mended", 2)
	// A clock that was set back doesn't stop the looking.
	p.replace(p.cert, third)
	p.replace(p.key, thirdKey)
	now = now.Add(-time.Hour)
	want("after the clock was set back", 3)
}

// Renewers such as certbot point a link to another file.
func TestLinkedCertificatesAreFollowed(t *testing.T) {
	p := newPairFiles(t)
	live := t.TempDir()
	cert, key := filepath.Join(live, "cert.pem"), filepath.Join(live, "key.pem")
	for link, target := range map[string]string{cert: p.cert, key: p.key} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	linked := &pairFiles{t, cert, key}
	files := linked.open()
	for _, dir := range []string{live, filepath.Dir(p.cert)} {
		if !slices.Contains(files.Dirs(), dir) {
			t.Errorf("%q is not among the directories %q", dir, files.Dirs())
		}
	}
	next := newPairFiles(t)
	text, secret := acmetest.Certificate(t, 7, publicName)
	next.replace(next.cert, text)
	next.replace(next.key, secret)
	for link, target := range map[string]string{cert: next.cert, key: next.key} {
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	if got := supervisor.CertificateAt(files, time.Now().Add(2*time.Second)).Leaf.SerialNumber.Int64(); got != 7 {
		t.Errorf("certificate %d is served after the links were moved", got)
	}
}

func TestUnusablePairsAreRefusedAtStart(t *testing.T) {
	p := newPairFiles(t)
	_, other := acmetest.Certificate(t, 2, publicName)
	for name, spoil := range map[string]func(){
		"another key": func() { p.replace(p.key, other) },
		"no key":      func() { p.replace(p.key, nil) },
	} {
		spoil()
		if _, err := supervisor.OpenCertificateFiles(p.cert, p.key, logger(t)); err == nil {
			t.Errorf("%s: the pair is taken", name)
		}
	}
}

// serveTLS serves the door's routes with a configuration of TLS and returns how
// a control plane that trusts roots gets there under any name.
func (d *door) serveTLS(config *tls.Config, roots *x509.CertPool) *http.Transport {
	d.t.Helper()
	return d.serveOn(listen(d.t, "tcp", "127.0.0.1:0"), config, roots)
}

func (d *door) serveOn(l net.Listener, config *tls.Config, roots *x509.CertPool) *http.Transport {
	server := supervisor.PublicServer(d.public, logger(d.t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(supervisor.LimitStrangers(tls.NewListener(l, config)))
	}()
	d.t.Cleanup(func() { _ = server.Close(); <-ended })
	way := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		},
	}
	d.t.Cleanup(way.CloseIdleConnections)
	return way
}

// pairOver introduces the door to a control plane that goes this way.
func (d *door) pairOver(way http.RoundTripper) error {
	d.t.Helper()
	plane := controlplanetest.New(controlplanetest.Options{Origin: origin, Transport: way})
	link, err := d.pairing.Link(false)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = plane.Pair(ctx, link)
	return err
}

func TestPairingOverHTTPSWithFiles(t *testing.T) {
	p := newPairFiles(t)
	d := newDoor(t)
	d.host = publicName
	d.open()
	roots := x509.NewCertPool()
	text, err := os.ReadFile(p.cert)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal("no certificate", err)
	}
	way := d.serveTLS(p.open().TLSConfig(), roots)
	if err := d.pairOver(way); err != nil {
		t.Fatal(err)
	}
	if state := d.pairing.State(); state != supervisor.Claimed {
		t.Errorf("the pairing is %s", state)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	p := newPairFiles(t)
	d := newDoor(t)
	way := d.serveTLS(p.open().TLSConfig(), x509.NewCertPool())
	way.TLSClientConfig.InsecureSkipVerify = true
	way.TLSClientConfig.MinVersion, way.TLSClientConfig.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if err := d.pairOver(way); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
}
