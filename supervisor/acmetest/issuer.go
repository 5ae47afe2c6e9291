// Package acmetest runs letsencrypt/pebble on loopback: an ACME server (RFC 8555)
// that really comes to look, to ports of a test instead of 80 and 443. Only tests
// may import it. Begin at Build and Start.
package acmetest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
)

// patience bounds what a test waits for.
const patience = 2 * time.Minute

// Issuer is a running pebble. Its methods may be called at once.
type Issuer struct {
	t testing.TB
	// Directory is the URL that a client begins with, and Client trusts it.
	Directory string
	Client    *http.Client
	manage    string
	program   *exec.Cmd
	end       sync.Once
	read      chan struct{} // closed once the program's output has ended
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

// Build builds the issuer from the module proxy, pinned by the go.sum of a module
// directory that names it as a tool, and returns the program.
func Build(t testing.TB, module string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pebble")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/letsencrypt/pebble/v2/cmd/pebble")
	build.Dir = module
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Logf("building pebble: %v\n%s", err, out)
		t.Skip("not applicable: pebble can't be built here")
	}
	return program
}

// Start starts a program that Build made, until the test ends. It looks for
// TLS-ALPN-01 and HTTP-01 at two ports of loopback, whatever the name.
func Start(t testing.TB, program string, tlsPort, httpPort int) *Issuer {
	t.Helper()
	dir := t.TempDir()
	cert, key := Certificate(t, 1, "localhost")
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
	i := &Issuer{t: t, Directory: "https://" + api + "/dir", manage: "https://" + manage}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	i.Client = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(i.Client.CloseIdleConnections)
	i.run(exec.Command(program, "-config", dir+"/config.json", "-dnsserver", serveNames(t), "-strict"))
	waittest.Until(t, "pebble answers", i.answers) // it says that it listens a moment before it does
	return i
}

func (i *Issuer) answers() bool {
	for _, url := range []string{i.Directory, i.manage + "/roots/0"} {
		res, err := i.Client.Get(url)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
	}
	return true
}

// run starts the program and returns once it says that it listens.
func (i *Issuer) run(program *exec.Cmd) {
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
	ready := make(chan struct{})
	i.program, i.read = program, make(chan struct{})
	go func() {
		defer close(i.read)
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
	i.t.Cleanup(func() {
		i.Stop()
		if i.t.Failed() {
			i.t.Log(i.said.text())
		}
	})
	select {
	case <-ready:
	case <-i.read:
		i.t.Fatal("pebble ended at its start")
	}
}

// Stop ends the issuer, now and not with the test. A second call does nothing.
func (i *Issuer) Stop() {
	i.end.Do(func() {
		_ = i.program.Process.Kill()
		<-i.read
		_ = i.program.Wait()
	})
}

// Said is the issuer's own log so far.
func (i *Issuer) Said() string { return i.said.text() }

// Roots are what the issuer's certificates are checked with.
func (i *Issuer) Roots() *x509.CertPool {
	i.t.Helper()
	text := i.rootText()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		i.t.Fatalf("no root: %.200s", text)
	}
	return pool
}

func (i *Issuer) rootText() []byte {
	i.t.Helper()
	res, err := i.Client.Get(i.manage + "/roots/0")
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// freePort is an address below the ports that the kernel gives to connections, or
// one of them might take it before pebble does.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 4_000+rand.IntN(6_000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no address is free")
	return ""
}

// serveNames answers that every name is 127.0.0.1, over TCP, as pebble asks.
func serveNames(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
