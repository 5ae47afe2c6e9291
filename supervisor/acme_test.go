package supervisor_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// issuer is letsencrypt/pebble on loopback: an ACME server that really comes to
// look, to ports of this test instead of 80 and 443.
type issuer struct {
	t         *testing.T
	directory string
	client    *http.Client
	manage    string
	stop      func()
	// said is the issuer's own log, shown when a test fails.
	said lineLog
}

type lineLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *lineLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *lineLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// buildPebble builds the issuer from the module proxy, pinned by testdata's
// go.sum.
func buildPebble(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pebble")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/letsencrypt/pebble/v2/cmd/pebble")
	build.Dir = filepath.Join("testdata", "pebble")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Logf("building pebble: %v\n%s", err, out)
		t.Skip("not applicable: pebble can't be built here")
	}
	return program
}

// startIssuer starts pebble, which looks for TLS-ALPN-01 and HTTP-01 at two
// ports of loopback, whatever the name.
func startIssuer(t *testing.T, program string, tlsPort, httpPort int) *issuer {
	t.Helper()
	dir := t.TempDir()
	cert, key := certificate(t, 1, "localhost")
	files := map[string][]byte{"cert.pem": cert, "key.pem": key}
	api, manage := freePort(t), freePort(t)
	files["config.json"], _ = json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": api, "managementListenAddress": manage, "certificate": dir + "/cert.pem", "privateKey": dir + "/key.pem",
		"httpPort": httpPort, "tlsPort": tlsPort, "keyAlgorithm": "ecdsa", "retryAfter": map[string]int{"authz": 1, "order": 1},
	}})
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i := &issuer{t: t, directory: "https://" + api + "/dir", manage: "https://" + manage}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	i.client = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(i.client.CloseIdleConnections)
	i.run(exec.Command(program, "-config", dir+"/config.json", "-dnsserver", serveNames(t), "-strict"))
	return i
}

// run starts the program and returns once it says that it listens.
func (i *issuer) run(program *exec.Cmd) {
	i.t.Helper()
	program.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0")
	out, err := program.StdoutPipe()
	if err == nil {
		program.Stderr = program.Stdout
		err = program.Start()
	}
	if err != nil {
		i.t.Fatal(err)
	}
	ready, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for said := false; lines.Scan(); {
			i.said.add(lines.Text())
			if !said && strings.Contains(lines.Text(), "ACME directory available at") {
				close(ready)
				said = true
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	stopped := false
	i.stop = func() {
		if !stopped {
			stopped = true
			_ = program.Process.Kill()
			<-read
			_ = program.Wait()
		}
	}
	i.t.Cleanup(func() {
		i.stop()
		if i.t.Failed() {
			i.t.Log(i.said.text())
		}
	})
	select {
	case <-ready:
	case <-read:
		i.t.Fatal("pebble ended at its start")
	}
}

// roots are what the issuer's certificates are checked with.
func (i *issuer) roots() *x509.CertPool {
	i.t.Helper()
	text := i.rootText()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		i.t.Fatalf("no root: %.200s", text)
	}
	return pool
}

// rootText asks until somebody answers: pebble says that it listens a moment
// before it does.
func (i *issuer) rootText() []byte {
	i.t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); ; <-again.C {
		res, err := i.client.Get(i.manage + "/roots/0")
		if err == nil {
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				i.t.Fatal(err)
			}
			return text
		}
		if time.Now().After(end) {
			i.t.Fatal(err)
		}
	}
}

func (i *issuer) config(dir string) supervisor.ACMEConfig {
	return supervisor.ACMEConfig{
		Host: publicName + ":9100", Email: "owner@example.net", Dir: dir, Directory: i.directory, Client: i.client, Log: logger(i.t),
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

// freePort is an address that nobody listens on at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// serveNames answers that every name is 127.0.0.1, over TCP, as pebble asks.
func serveNames(t *testing.T) string {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asking.Go(func() { answerNames(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); asking.Wait() })
	return l.Addr().String()
}

// answerNames answers messages, each behind its length, until the asker goes.
func answerNames(conn net.Conn) {
	defer conn.Close()
	for {
		var size uint16
		if binary.Read(conn, binary.BigEndian, &size) != nil {
			return
		}
		question := make([]byte, size)
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		reply, err := loopbackReply(question)
		if err != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

func loopbackReply(question []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(question); err != nil {
		return nil, err
	}
	message.Response, message.RecursionAvailable, message.Additionals = true, true, nil
	if asked := message.Questions[0]; asked.Type == dnsmessage.TypeA {
		message.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: asked.Class, TTL: 60},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
	}
	return message.Pack()
}

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
	program := buildPebble(t)
	t.Run("TLS-ALPN-01", func(t *testing.T) { issueByTLS(t, program) })
	t.Run("HTTP-01", func(t *testing.T) { issueByHTTP(t, program) })
}

// The public listener answers the issuer by itself, and then the control plane.
// A restart finds the certificate where it was and asks nobody.
func issueByTLS(t *testing.T, program string) {
	l := listen(t, "tcp", "127.0.0.1:0")
	pebble := startIssuer(t, program, portOf(l), portOf(l))
	roots := pebble.roots()
	dir := t.TempDir()
	acme := newACME(t, pebble.config(dir))
	d := newDoor(t)
	d.host = publicName + ":9100"
	d.open()
	way := d.serveOn(l, acme.TLSConfig(), roots)
	if err := d.pairOver(way); err == nil {
		t.Fatal("paired without a certificate")
	}
	if said := pebble.said.text(); strings.Contains(said, "/order-plz") {
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
	pebble.stop()
	if again := obtain(t, newACME(t, pebble.config(dir))); !again.Equal(expires) {
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
	pebble := startIssuer(t, program, portOf(l), portOf(l))
	pebble.roots()
	acme := newACME(t, pebble.config(t.TempDir()))
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
