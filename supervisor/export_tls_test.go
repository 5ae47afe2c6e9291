package supervisor

import (
	"crypto/tls"
	"time"
)

// CertificateAt is the pair that a handshake at a given time is served.
func CertificateAt(c *CertificateFiles, now time.Time) *tls.Certificate { return c.current(now) }
