package protocol

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// The bounds of a link and its token, in bytes (protocol section 3).
const (
	MaxLink         = 2_000
	MinPairingToken = 24
	MaxPairingToken = 256
	MinChallenge    = 24
	MaxChallenge    = 256
)

// ErrLink is wrapped by every error of NewLink and ParseLink.
var ErrLink = errors.New("not a connection link")

const (
	linkScheme = "veyra-connect"
	linkPath   = "/connect/"
	linkQuery  = "protocol=1"
)

// Link is what the owner pastes into the control plane, for example
// "veyra-connect://host.example:9100/connect/<token>?protocol=1". It holds a
// secret: print it where the owner asked for it and nowhere else.
type Link struct {
	// Host is a name or address with an optional port, as in a URL.
	Host  string
	Token PairingToken
}

// NewLink joins a host, as in a URL, and a token of 24 to 256 URL-safe
// characters. No error repeats the token.
func NewLink(host string, token PairingToken) (Link, error) {
	l := Link{Host: host, Token: token}
	if !l.valid() {
		return Link{}, fmt.Errorf("making link for host %q: %w", host, ErrLink)
	}
	return l, nil
}

// ParseLink reads a link back. It takes exactly what Text writes.
func ParseLink(text string) (Link, error) {
	rest, found := strings.CutPrefix(text, linkScheme+"://")
	host, rest, found2 := strings.Cut(rest, linkPath)
	token, found3 := strings.CutSuffix(rest, "?"+linkQuery)
	l := Link{Host: host, Token: PairingToken(token)}
	if !found || !found2 || !found3 || len(text) > MaxLink || !l.valid() {
		return Link{}, fmt.Errorf("parsing link: %w", ErrLink)
	}
	return l, nil
}

func (l Link) valid() bool {
	u, err := url.Parse("https://" + l.Host)
	if err != nil || u.Host != l.Host || originFault(u, l.Host) != "" {
		return false
	}
	return ValidPairingToken(l.Token) && len(l.Text()) <= MaxLink
}

// Text returns the link with its token in the clear.
func (l Link) Text() string {
	return linkScheme + "://" + l.Host + linkPath + string(l.Token) + "?" + linkQuery
}

// String returns the link without its token, for logs and status.
func (l Link) String() string {
	return linkScheme + "://" + l.Host + linkPath + redacted + "?" + linkQuery
}

// ValidPairingToken tells whether t has the length and letters of a link's
// token.
func ValidPairingToken(t PairingToken) bool {
	return urlSafe(string(t), MinPairingToken, MaxPairingToken)
}

// ValidChallenge tells whether a challenge may be signed: 24 to 256 of
// [A-Za-z0-9_-], so that it can't hold another message's text (attack case H06).
func ValidChallenge(s string) bool {
	return urlSafe(s, MinChallenge, MaxChallenge)
}

func urlSafe(s string, least, most int) bool {
	if len(s) < least || len(s) > most {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && !isAlphanumeric(r)
	})
}
