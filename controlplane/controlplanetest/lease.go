package controlplanetest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"time"
)

// leaseGrace is how long after its lease a token is still read.
const leaseGrace = 2 * time.Minute

// leaseClaims is the signed inside of a lease token. Nonce makes each delivery's
// token another one.
type leaseClaims struct {
	Kind, ID, Lease string
	Until           time.Time
	Nonce           string
}

func (p *Plane) signLease(c leaseClaims) string {
	c.Nonce = rand.Text()
	payload, _ := json.Marshal(c)
	mac := hmac.New(sha256.New, p.key)
	mac.Write(payload)
	enc := base64.RawURLEncoding
	return enc.EncodeToString(payload) + "." + enc.EncodeToString(mac.Sum(nil))
}

// readLease checks a token's signature and age.
func (p *Plane) readLease(token string) (leaseClaims, error) {
	var c leaseClaims
	m := tokenSyntax.FindStringSubmatch(token)
	if m == nil {
		return c, fmt.Errorf("Lease token is malformed.")
	}
	payload, err1 := base64.RawURLEncoding.DecodeString(m[1])
	sum, err2 := base64.RawURLEncoding.DecodeString(m[2])
	mac := hmac.New(sha256.New, p.key)
	mac.Write(payload)
	if err1 != nil || err2 != nil || !hmac.Equal(sum, mac.Sum(nil)) {
		return c, fmt.Errorf("Lease token is invalid.")
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return c, fmt.Errorf("Lease token is invalid.")
	}
	if p.opts.Now().After(c.Until.Add(leaseGrace)) {
		return c, fmt.Errorf("Lease token has expired.")
	}
	return c, nil
}

var (
	tokenSyntax = regexp.MustCompile(`^([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)$`)
	uuidSyntax  = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)
)

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
