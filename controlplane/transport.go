package controlplane

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// newHTTP makes a client with a transport of its own. Proxies of the owner's
// environment count; net/http leaves them out for loopback.
func newHTTP(config Config, total time.Duration) *http.Client {
	if config.Timeout > 0 {
		total = min(total, config.Timeout)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: config.Roots},
		TLSHandshakeTimeout:    5 * time.Second,
		ResponseHeaderTimeout:  total,
		IdleConnTimeout:        60 * time.Second,
		MaxIdleConns:           2,
		MaxConnsPerHost:        4,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
		// A compressed answer could be small on the wire and huge here.
		DisableCompression: true,
		// HTTP/2 connections die silently (suspend, NAT): without pings a beat
		// would hang on one until its deadline.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 2 * time.Second},
	}
	var way http.RoundTripper = transport
	if config.Transport != nil {
		way = config.Transport
	}
	return &http.Client{
		Transport: way,
		Timeout:   total,
		// The bearer goes to the paired origin and nowhere else (attack case G03).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
