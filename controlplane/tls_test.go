package controlplane_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// tlsServer answers every call well and says which protocol was spoken.
func tlsServer(t *testing.T, config *tls.Config) (*httptest.Server, *string) {
	t.Helper()
	spoken := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		spoken = r.Proto
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	server.EnableHTTP2 = true
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, &spoken
}

func tlsClient(t *testing.T, server *httptest.Server, roots *x509.CertPool) *controlplane.Client {
	t.Helper()
	origin, err := protocol.ParseOrigin(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := controlplane.New(controlplane.Config{Origin: origin, AgentID: agentID, Credential: credential, Roots: roots})
	t.Cleanup(c.Close)
	return c
}

func TestCallsSpeakHTTP2OverTLS(t *testing.T) {
	server, spoken := tlsServer(t, &tls.Config{MinVersion: tls.VersionTLS13})
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	a := tlsClient(t, server, roots).Heartbeat(context.Background(), protocol.HeartbeatRequest{})
	if a.Class != protocol.ClassTaken || *spoken != "HTTP/2.0" {
		t.Errorf("%s over %s", a.Say(), *spoken)
	}
}

func TestUnknownCertificatesAndOldTLSAreRefused(t *testing.T) {
	server, spoken := tlsServer(t, nil)
	if a := tlsClient(t, server, x509.NewCertPool()).Configuration(context.Background()); a.Class != protocol.ClassTrouble {
		t.Errorf("an unknown certificate was taken: %s", a.Say())
	}
	old, spokenOld := tlsServer(t, &tls.Config{MaxVersion: tls.VersionTLS11})
	roots := x509.NewCertPool()
	roots.AddCert(old.Certificate())
	if a := tlsClient(t, old, roots).Configuration(context.Background()); a.Class != protocol.ClassTrouble {
		t.Errorf("TLS 1.1 was spoken: %s", a.Say())
	}
	if *spoken != "" || *spokenOld != "" {
		t.Error("a request was sent")
	}
}
