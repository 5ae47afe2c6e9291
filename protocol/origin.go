package protocol

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// The paths below a paired origin, all with their trailing slash: without it
// the answer is a 301 that turns POST into GET (protocol section 1).
const (
	PathHeartbeat              = "/api/v1/agent-runtime/heartbeat/"
	PathConfiguration          = "/api/v1/agent-runtime/configuration/"
	PathQualification          = "/api/v1/agent-runtime/qualification/submit/"
	PathJobCredential          = "/api/v1/agent-runtime/job/credential/"
	PathJobResult              = "/api/v1/agent-runtime/job/result/"
	PathVerificationCredential = "/api/v1/agent-runtime/verification/credential/"
	PathVerificationResult     = "/api/v1/agent-runtime/verification/result/"
)

// The paths of this host's public listener (protocol sections 3 and 8).
const (
	PathChallenge = "/veyra/connect/challenge"
	PathClaim     = "/veyra/connect/claim"
	PathHealth    = "/veyra/health"
)

// ErrOrigin is wrapped by every error of ParseOrigin.
var ErrOrigin = errors.New("not a usable origin")

// Origin is a control plane's or git host's scheme, host and port in the one
// form that is compared byte for byte, for example "https://api.veyra.surf".
// The zero value is no origin.
type Origin struct {
	text string
}

// ParseOrigin reads an origin from a setting or a message: https, or http for
// localhost, 127.0.0.1 and ::1 only; no user, path, query or fragment. Letters
// become lower case, a default port and a final slash are dropped.
func ParseOrigin(s string) (Origin, error) {
	return parseOrigin(s, isLoopback)
}

// ParseOwnerOrigin is ParseOrigin for a setting in which the owner may allow
// http to any host by writing it down. Never give it text from the network.
func ParseOwnerOrigin(s string) (Origin, error) {
	return parseOrigin(s, func(string) bool { return true })
}

func parseOrigin(s string, plain func(host string) bool) (Origin, error) {
	u, err := url.Parse(s)
	if err != nil {
		// Its text repeats the input, which may hold a password.
		return Origin{}, fmt.Errorf("parsing origin: %w", ErrOrigin)
	}
	u.Scheme = strings.ToLower(u.Scheme)
	if why := originFault(u, s); why != "" {
		return Origin{}, fmt.Errorf("parsing origin: %s: %w", why, ErrOrigin)
	}
	host := strings.ToLower(u.Hostname())
	if u.Scheme == "http" && !plain(host) {
		return Origin{}, fmt.Errorf("parsing origin: http to a host that is not this one: %w", ErrOrigin)
	}
	return Origin{text: u.Scheme + "://" + joinHostPort(host, u.Port(), u.Scheme)}, nil
}

// originFault says what is wrong with the parts of an origin, or "".
func originFault(u *url.URL, text string) string {
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return "the scheme is neither https nor http"
	case u.User != nil || strings.Contains(text, "@"):
		return "it names a user"
	case u.Path != "" && u.Path != "/" || u.Opaque != "":
		return "it has a path"
	case strings.ContainsAny(text, "?#"):
		return "it has a query or fragment"
	case !validHost(u.Hostname()):
		return "the host is malformed"
	case !validPort(u):
		return "the port is malformed"
	}
	return ""
}

// validHost takes an address or a name of letters, digits, dots and dashes.
func validHost(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == ""
	}
	if host == "" || len(host) > 253 || strings.HasPrefix(host, ".") || strings.Contains(host, "..") {
		return false
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r != '.' && r != '-' && !isAlphanumeric(r)
	})
}

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func isLoopback(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

func joinHostPort(host, port, scheme string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if n, err := strconv.Atoi(port); err == nil {
		// Leading zeros go.
		port = strconv.Itoa(n)
	}
	if port == "" || scheme == "https" && port == "443" || scheme == "http" && port == "80" {
		return host
	}
	return host + ":" + port
}

// String returns the origin's text, for example "http://localhost:8000".
func (o Origin) String() string { return o.text }

// IsZero tells whether o is no origin.
func (o Origin) IsZero() bool { return o.text == "" }

// URL returns the address of one of the fixed paths.
func (o Origin) URL(path string) string { return o.text + path }

// Loopback tells whether the origin is this host's own.
func (o Origin) Loopback() bool {
	u, err := url.Parse(o.text)
	return err == nil && isLoopback(u.Hostname())
}

// MarshalText writes the origin's text.
func (o Origin) MarshalText() ([]byte, error) { return []byte(o.text), nil }

// UnmarshalText reads what MarshalText wrote, under the rules for the owner's
// settings, since only our own files hold origins in this form.
func (o *Origin) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*o = Origin{}
		return nil
	}
	parsed, err := ParseOwnerOrigin(string(text))
	*o = parsed
	return err
}
