package supervisor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookAtFiles is how often, at most, handshakes look whether a file changed.
	lookAtFiles = time.Second
	// maxCertificateFile bounds what is read of either file.
	maxCertificateFile = 1 << 20
)

// CertificateFiles serves the certificate and key of two files and follows them:
// a handshake looks at most once a second whether one changed, and reads the
// pair again. A pair that can't be read or doesn't fit together changes nothing,
// the old one stays. All methods may be called at once.
type CertificateFiles struct {
	cert, key string
	log       *slog.Logger

	// mu guards what follows; nobody holds it over more than two small reads.
	mu     sync.Mutex
	pair   *tls.Certificate
	looked time.Time
	// tried is how the files looked when they were read last, with or without
	// success: a bad pair is complained of once and not with each handshake.
	tried [2]fileMark
}

// fileMark tells versions of a file apart. The change time moves with renames
// and new permissions as well, so that a mended mode is noticed too.
type fileMark struct {
	device, inode uint64
	bytes         int64
	changed       unix.Timespec
	fault         string
}

// OpenCertificateFiles reads the pair; an error names the file. Called with
// power it reads keys that only root may read; those are not followed later
// (see Readable).
func OpenCertificateFiles(cert, key string, log *slog.Logger) (*CertificateFiles, error) {
	c := &CertificateFiles{cert: cert, key: key, log: log}
	c.tried = c.marks()
	pair, err := c.read()
	if err != nil {
		return nil, err
	}
	c.pair, c.looked = pair, time.Now()
	return c, nil
}

// TLSConfig is for a listener: TLS 1.2 at least, HTTP/1.1 only.
func (c *CertificateFiles) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(time.Now()), nil },
	}
}

// Readable tells whether this process, as it is now, can read the files again.
func (c *CertificateFiles) Readable() error {
	_, err := c.read()
	return err
}

// Expires is when the certificate in use ends.
func (c *CertificateFiles) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pair.Leaf.NotAfter
}

// Dirs are the directories that must be readable for the files to be followed:
// where the names are, and where links lead to (certbot keeps links to files
// with a number).
func (c *CertificateFiles) Dirs() []string {
	var dirs []string
	for _, name := range []string{c.cert, c.key} {
		dirs = append(dirs, filepath.Dir(name))
		if real, err := filepath.EvalSymlinks(name); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

// current is the pair to serve now.
func (c *CertificateFiles) current(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A clock that was set back must not stop the looking.
	if since := now.Sub(c.looked); since >= 0 && since < lookAtFiles {
		return c.pair
	}
	c.looked = now
	marks := c.marks()
	if marks == c.tried {
		return c.pair
	}
	// The marks were taken first: a file that changes while it is read differs
	// from them at the next look.
	c.tried = marks
	pair, err := c.read()
	if err != nil {
		c.log.Warn("a changed certificate can't be used, the old one stays", "error", err)
		return c.pair
	}
	c.pair = pair
	c.log.Info("the certificate was read again", "expires", pair.Leaf.NotAfter)
	return c.pair
}

func (c *CertificateFiles) marks() [2]fileMark {
	return [2]fileMark{markOf(c.cert), markOf(c.key)}
}

func markOf(name string) fileMark {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return fileMark{fault: err.Error()}
	}
	return fileMark{device: st.Dev, inode: st.Ino, bytes: st.Size, changed: st.Ctim}
}

// read reads both files and checks that they belong together.
func (c *CertificateFiles) read() (*tls.Certificate, error) {
	cert, err := readBounded(c.cert)
	if err != nil {
		return nil, err
	}
	key, err := readBounded(c.key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("reading the pair %s and %s: %w", c.cert, c.key, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("reading the certificate %s: %w", c.cert, err)
		}
	}
	return &pair, nil
}

// readBounded reads a regular file; a pipe in its place must not hold up a
// handshake.
func readBounded(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "reading", Path: name, Err: errors.New("no regular file")}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxCertificateFile+1))
	if err == nil && len(text) > maxCertificateFile {
		err = &fs.PathError{Op: "reading", Path: name, Err: errors.New("over 1 MiB")}
	}
	return text, err
}
