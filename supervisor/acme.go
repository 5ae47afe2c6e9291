package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
)

// ErrNoACME says that no certificate can be asked for under this host.
var ErrNoACME = errors.New("no certificate can be issued for this host")

const (
	// acmeAgain and acmeAgainMost bound the pause after a failed order. The
	// issuer counts failures by the hour.
	acmeAgain     = 2 * time.Minute
	acmeAgainMost = time.Hour
	// acmeLook is how often a certificate that is there is looked at, so that a
	// renewed one is served; renewing itself is autocert's.
	acmeLook = 6 * time.Hour
	// acmeCall bounds one call of the issuer.
	acmeCall = time.Minute
)

// ACMEConfig says for which host certificates are asked, and where.
type ACMEConfig struct {
	// Host is what a link names: a public name with or without a port.
	Host string
	// Email is told to the issuer; empty: nothing is.
	Email string
	// Dir keeps the account's key and the certificates: 0700, ours.
	Dir string
	// Directory is the issuer's directory URL; empty: Let's Encrypt's. Client
	// calls it; nil: one with the system's certificates.
	Directory string
	Client    *http.Client
	Log       *slog.Logger
}

// ACME gets and renews the certificate of the public host (RFC 8555). It answers
// the issuer by TLS-ALPN-01 on the public listener and, once Plain is served, by
// HTTP-01. Only Obtain and autocert's own renewals order anything: if handshakes
// did, strangers could use up what an issuer allows in an hour. All methods may
// be called at once.
type ACME struct {
	host, name string
	log        *slog.Logger
	manager    *autocert.Manager
	// current is what handshakes are served; nil until Obtain has one.
	current atomic.Pointer[tls.Certificate]
}

// NewACME calls nobody. An error wraps ErrNoACME and says what to do.
func NewACME(config ACMEConfig) (*ACME, error) {
	name := hostName(config.Host)
	if why := unissuable(name); why != "" {
		return nil, fmt.Errorf("%w: %q %s", ErrNoACME, name, why)
	}
	client := config.Client
	if client == nil {
		client = &http.Client{Timeout: acmeCall, Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second,
			ResponseHeaderTimeout: acmeCall, IdleConnTimeout: time.Minute,
		}}
	}
	a := &ACME{host: config.Host, name: name, log: config.Log}
	a.manager = &autocert.Manager{
		// Choosing this mode is the owner's agreement; the terms are logged.
		Prompt: func(terms string) bool {
			a.log.Info("the certificate issuer's terms are agreed to", "terms", terms)
			return true
		},
		Cache: autocert.DirCache(config.Dir), HostPolicy: autocert.HostWhitelist(name), Email: config.Email,
		Client: &acme.Client{DirectoryURL: config.Directory, HTTPClient: client, UserAgent: "veyra-sandboxd"},
	}
	return a, nil
}

// hostName takes the port off.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// unissuable says why a public issuer gives no certificate to a name, or "".
func unissuable(name string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return "is an IP address: set public.host (RUNTIME_PUBLIC_HOST) to a name that leads here, or use public.tls.mode files or proxy"
	}
	if !strings.Contains(strings.Trim(name, "."), ".") || strings.HasSuffix(name, ".local") || strings.HasSuffix(name, ".localhost") {
		return "is no public name: set public.host (RUNTIME_PUBLIC_HOST) to one that leads here"
	}
	return ""
}

// TLSConfig is for the public listener: TLS 1.2 at least, HTTP/1.1, and the
// issuer's TLS-ALPN-01. A hello that names another host or none ends here.
func (a *ACME) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1", acme.ALPNProto},
		GetCertificate: a.certificate,
	}
}

// Reasons to end a handshake.
var (
	errOtherName     = errors.New("the hello names another host")
	errNoCertificate = errors.New("there is no certificate yet")
)

func (a *ACME) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !strings.EqualFold(strings.TrimSuffix(hello.ServerName, "."), a.name) {
		return nil, errOtherName
	}
	if slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}) {
		return a.manager.GetCertificate(hello) // the issuer's question
	}
	if cert := a.current.Load(); cert != nil {
		return cert, nil
	}
	return nil, errNoCertificate
}

// Plain is for port 80: it answers HTTP-01 and sends everything else to the
// public host over https. It must be made before Keep runs, or HTTP-01 is not
// offered.
func (a *ACME) Plain() http.Handler {
	challenges := a.manager.HTTPHandler(http.HandlerFunc(a.redirect))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = hostName(r.Host) // autocert compares it with the bare name
		challenges.ServeHTTP(w, r)
	})
}

// redirect leads to the setting's host and never to the request's own.
func (a *ACME) redirect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "Use HTTPS", http.StatusBadRequest)
		return
	}
	http.Redirect(w, r, "https://"+a.host+r.URL.EscapedPath(), http.StatusFound)
}

// Keep asks for the certificate before the control plane connects, which waits
// for 20 seconds only, and tells the log what came of it. It returns when ctx
// ends.
func (a *ACME) Keep(ctx context.Context) {
	var until time.Time
	again := acmeAgain
	for {
		rest := acmeLook
		switch expires, err := a.Obtain(ctx); {
		case err != nil && ctx.Err() == nil:
			a.log.Error("no certificate for the public host yet", "host", a.name, "error", err, "again_in", again.String())
			rest, again = again, min(2*again, acmeAgainMost)
		case err == nil && !expires.Equal(until):
			a.log.Info("the public host has a certificate", "host", a.name, "expires", expires)
			until, again = expires, acmeAgain
		}
		if wait.For(ctx, rest) != nil {
			return
		}
	}
}

// Obtain returns when the certificate ends that is stored or, if there is none,
// was asked for just now. An order that was begun goes on when ctx ends: the
// library takes no context.
func (a *ACME) Obtain(ctx context.Context) (time.Time, error) {
	type outcome struct {
		expires time.Time
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		cert, err := a.manager.GetCertificate(modernHello(a.name))
		if err != nil {
			done <- outcome{err: fmt.Errorf("asking for a certificate: %w", err)}
			return
		}
		a.current.Store(cert)
		done <- outcome{expires: cert.Leaf.NotAfter}
	}()
	select {
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case got := <-done:
		return got.expires, got.err
	}
}

// modernHello is what a client says that takes ECDSA, as all do: else autocert
// would order an RSA certificate.
func modernHello(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName: name, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
		SupportedCurves: []tls.CurveID{tls.CurveP256}, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}
}
