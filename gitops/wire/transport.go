package wire

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// NewTransport is the one way to a git host and its REST interface: TLS 1.2
// or newer and never relaxed, no compression (bounds count what is held), a
// time-out for each step before the body. A proxy is used only if the owner
// set HTTPS_PROXY for the process; git's own settings do not exist here. roots
// is nil for the system's certificates.
func NewTransport(roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    15 * time.Second,
		ResponseHeaderTimeout:  2 * time.Minute,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConns:           4,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
}
