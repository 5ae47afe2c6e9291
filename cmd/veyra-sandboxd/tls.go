package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/mail"
	"path/filepath"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// The values of public.tls.mode.
const (
	tlsProxy = "proxy"
	tlsFiles = "files"
	tlsACME  = "acme"
	tlsOff   = "off"
)

// publicTLS is what a public listener with TLS of its own is made of.
type publicTLS struct {
	files *supervisor.CertificateFiles // nil unless the mode is files
	acme  *supervisor.ACME             // nil unless the mode is acme
	// plain is port 80, which is opened for acme where the issuer can't come by
	// port 443; else nil.
	plain net.Listener
}

// checkTLS says what can't work. finishPublic has made public.host by now.
func (s *Settings) checkTLS() error {
	mode := s.Public.TLS
	switch mode.Mode {
	case tlsProxy, tlsOff:
	case tlsFiles:
		return mode.checkFiles()
	case tlsACME:
		if _, err := supervisor.NewACME(supervisor.ACMEConfig{Host: s.Public.Host}); err != nil {
			return fmt.Errorf("%w: public.tls.mode acme: %w", errSettings, err)
		}
		if address, err := mail.ParseAddress(mode.ACME); mode.ACME != "" && (err != nil || address.Address != mode.ACME) {
			return fmt.Errorf("%w: public.tls.acme_email %.100q is no address", errSettings, mode.ACME)
		}
	default:
		return fmt.Errorf("%w: public.tls.mode must be proxy, files, acme or off (it is %q)", errSettings, mode.Mode)
	}
	return nil
}

// checkFiles wants names that mean the same from every directory, and a
// directory that the supervisor may be shown without the rest of the host.
func (t tlsSettings) checkFiles() error {
	for _, file := range []struct{ key, path string }{{"cert", t.Cert}, {"key", t.Key}} {
		switch {
		case file.path == "":
			return fmt.Errorf("%w: public.tls.mode files needs public.tls.cert and public.tls.key", errSettings)
		case !filepath.IsAbs(file.path), filepath.Dir(file.path) == "/":
			return fmt.Errorf("%w: public.tls.%s must be an absolute path below some directory (it is %q)", errSettings, file.key, file.path)
		}
	}
	return nil
}

// listenPublic opens the public listener, with TLS where that is ours.
func (h *host) listenPublic(log *slog.Logger) (err error) {
	s := h.settings
	mode := s.Public.TLS.Mode
	if host, _, err := net.SplitHostPort(s.Public.Listen); mode == tlsOff && (err != nil || !isLoopback(host)) {
		return fmt.Errorf("%w: public.tls.mode off is for loopback, but public.listen is %s", errSettings, s.Public.Listen)
	}
	var config *tls.Config
	switch mode {
	case tlsFiles:
		if h.tls.files, err = supervisor.OpenCertificateFiles(s.Public.TLS.Cert, s.Public.TLS.Key, log); err != nil {
			return fmt.Errorf("%w: public.tls: %w", errSettings, err)
		}
		config = h.tls.files.TLSConfig()
	case tlsACME:
		if err := h.openACME(log); err != nil {
			return err
		}
		config = h.tls.acme.TLSConfig()
	}
	if h.public, err = listenTCP(s.Public.Listen, "public.listen (RUNTIME_BIND_HOST, RUNTIME_PORT)"); err != nil {
		return err
	}
	if config != nil {
		h.public = tls.NewListener(h.public, config)
	}
	return nil
}

// openACME opens port 80 unless the issuer finds the public listener at port
// 443: a link without a port leads there.
func (h *host) openACME(log *slog.Logger) (err error) {
	s := h.settings
	h.tls.acme, err = supervisor.NewACME(supervisor.ACMEConfig{
		// The supervisor works from inside the state directory.
		Host: s.Public.Host, Email: s.Public.TLS.ACME, Dir: pathsOf(".").acme, Log: log,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	if _, port, err := net.SplitHostPort(s.Public.Host); err != nil || port == "443" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.Public.Listen)
	if err != nil {
		return fmt.Errorf("%w: public.listen: %w", errSettings, err)
	}
	h.tls.plain, err = listenTCP(net.JoinHostPort(host, "80"), "public.tls.mode acme, for the issuer's HTTP-01")
	return err
}

// dirs are what the supervisor has to read for a changed certificate.
func (t *publicTLS) dirs() []string {
	if t.files == nil {
		return nil
	}
	return t.files.Dirs()
}

// serve looks after the certificate with the powers gone, until ctx ends.
func (t *publicTLS) serve(ctx context.Context, log *slog.Logger) {
	switch {
	case t.files != nil:
		if err := t.files.Readable(); err != nil {
			log.Warn("a renewed certificate will be seen after a restart only: "+
				"let the supervisor's user (--user) read certificate and key to have it followed", "error", err)
		}
		if expires := t.files.Expires(); time.Now().After(expires) {
			log.Warn("the certificate of the public listener has expired", "expired", expires)
		}
	case t.acme != nil:
		if t.plain != nil {
			stop := servePlain(t.plain, t.acme.Plain(), log)
			defer stop()
		}
		t.acme.Keep(ctx)
	}
}

// servePlain serves port 80 to strangers until its result is called.
func servePlain(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	server := supervisor.PublicServer(h, log)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(supervisor.LimitStrangers(l)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("port 80 is not served any more", "error", err)
		}
	}()
	return func() { _ = server.Close(); <-ended }
}
