package supervisor

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// tokenBytes of randomness make a link's token of 48 characters.
	tokenBytes = 36
	// maxPast is how many ended tokens are remembered to say how they ended.
	maxPast = 16
)

// tokenEnd says how a token's time ended.
type tokenEnd string

const (
	endUsed    tokenEnd = "used"
	endRevoked tokenEnd = "revoked"
	endExpired tokenEnd = "expired"
	endUnknown tokenEnd = "unknown"
)

// errToken refuses a token; it says which kind of bad it is, for the owner.
type errToken struct{ end tokenEnd }

// Error is read by the owner, on the control plane's page.
func (e errToken) Error() string {
	switch e.end {
	case endUsed:
		return "This connection link was already used."
	case endRevoked:
		return "This connection link was revoked by a newer one."
	case endExpired:
		return "This connection link has expired. Create a new one."
	}
	return "This connection link is not known here."
}

// pastToken remembers a token that can't be used any more, by its digest.
type pastToken struct {
	SHA256 string   `json:"sha256"`
	End    tokenEnd `json:"end"`
}

// links is the content of link.json: at most one token that works, and how the
// last ones ended.
type links struct {
	Version int                   `json:"version"`
	Token   protocol.PairingToken `json:"token,omitempty"`
	Created time.Time             `json:"created,omitzero"`
	Expires time.Time             `json:"expires,omitzero"`
	Past    []pastToken           `json:"past"`
}

func digest(token protocol.PairingToken) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// fresh returns links with a new token that works until ttl from now; the old
// one is revoked.
func (l links) fresh(now time.Time, ttl time.Duration) links {
	var raw [tokenBytes]byte
	_, _ = rand.Read(raw[:])
	next := l.ended(endRevoked, now)
	next.Token = protocol.PairingToken(base64.RawURLEncoding.EncodeToString(raw[:]))
	next.Created, next.Expires = now, now.Add(ttl)
	return next
}

// ended returns links whose token no longer works, for the given reason or for
// its age.
func (l links) ended(end tokenEnd, now time.Time) links {
	next := links{Version: stateVersion, Past: append([]pastToken(nil), l.Past...)}
	if l.Token == "" {
		return next
	}
	if end != endUsed && !l.works(now) {
		end = endExpired
	}
	next.Past = append(next.Past, pastToken{digest(l.Token), end})
	next.Past = next.Past[max(0, len(next.Past)-maxPast):]
	return next
}

// works tells whether there is a token that has not expired. A clock set back
// beyond the creation doesn't lengthen its life.
func (l links) works(now time.Time) bool {
	return l.Token != "" && now.Before(l.Expires) && !now.Before(l.Created.Add(-time.Minute))
}

// check compares a token with all that are known, in constant time, and returns
// nil or an errToken.
func (l links) check(token protocol.PairingToken, now time.Time) error {
	got := digest(token)
	current := l.Token != "" && equalText(got, digest(l.Token))
	end := endUnknown
	for _, past := range l.Past {
		if equalText(got, past.SHA256) {
			end = past.End
		}
	}
	switch {
	case current && l.works(now):
		return nil
	case current:
		return errToken{endExpired}
	}
	return errToken{end}
}

func equalText(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// isUnknown tells whether err refuses a token that was never ours: only those
// count against an address.
func isUnknown(err error) bool {
	var bad errToken
	return errors.As(err, &bad) && bad.end == endUnknown
}
