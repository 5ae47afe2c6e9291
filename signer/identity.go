package signer

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Names in the state directory. The directory "key" is the signer's alone.
const (
	identityName = "identity"
	keyDir       = "key"
	newKeyDir    = "key.new"
	keyFile      = "key.pem"
	runtimeFile  = "runtime_id"
	pemType      = "PRIVATE KEY"
	maxFile      = 4096 // bytes of a key or id file; real ones have about 120
)

// identity is the key pair and its name. Both are made once, together, and
// never replaced.
type identity struct {
	runtimeID protocol.RuntimeID
	key       ed25519.PrivateKey
}

func (id *identity) public() ed25519.PublicKey {
	return id.key.Public().(ed25519.PublicKey)
}

// ReadRuntimeID returns the identity's name, without touching the key, for the
// commands that run beside no daemon; parent is STATE/identity. An
// identity that was never made is fs.ErrNotExist, anything wrong is ErrState.
// The caller must be the key directory's owner or root.
func ReadRuntimeID(parent string) (protocol.RuntimeID, error) {
	dir := filepath.Join(parent, keyDir)
	if absent, err := neverMade(dir); absent || err != nil {
		return "", errors.Join(err, absentError(absent, dir))
	}
	return readRuntimeID(dir)
}

func absentError(absent bool, dir string) error {
	if !absent {
		return nil
	}
	return fmt.Errorf("reading the identity in %q: %w", dir, fs.ErrNotExist)
}

// neverMade reports whether dir is missing or empty. Part of an identity is
// not "never made": a lost file must not lead to a new key.
func neverMade(dir string) (bool, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || !info.IsDir() {
		return false, fmt.Errorf("key directory %q is not a directory: %w", dir, ErrState)
	}
	if err := checkOwned(dir, info); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("listing %q: %w: %w", dir, ErrState, err)
	}
	return len(entries) == 0, nil
}

// checkOwned wants a file that belongs to us and opens for nobody else.
func checkOwned(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%q has mode %o, others can use it: %w", path, info.Mode().Perm(), ErrState)
	}
	raw, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(raw.Uid) != os.Geteuid() {
		return fmt.Errorf("%q belongs to another user: %w", path, ErrState)
	}
	return nil
}

// readOwned reads a small regular file that is ours alone. Links and FIFOs are
// refused by the open, not by a look before it.
func readOwned(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%q is not a small regular file: %w", path, ErrState)
	}
	if err := checkOwned(path, info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w: %w", path, ErrState, err)
	}
	return text, nil
}

func readRuntimeID(dir string) (protocol.RuntimeID, error) {
	text, err := readOwned(filepath.Join(dir, runtimeFile))
	if err != nil {
		return "", err
	}
	id, err := protocol.ParseRuntimeID(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %w", runtimeFile, ErrState, err)
	}
	return id, nil
}

func readIdentity(dir string) (*identity, error) {
	runtimeID, err := readRuntimeID(dir)
	if err != nil {
		return nil, err
	}
	text, err := readOwned(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) != 0 {
		return nil, fmt.Errorf("%s is not one PEM private key: %w", keyFile, ErrState)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is not PKCS#8: %w", keyFile, ErrState)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an Ed25519 key: %w", keyFile, ErrState)
	}
	return &identity{runtimeID: runtimeID, key: key}, nil
}

// openIdentity reads the identity or makes the first one, and checks it against
// the log, whose first line is written before the identity appears. So
//
//	identity  log                  means
//	no        nothing, first line  first start, or one that crashed: make it
//	no        signatures           the key was lost: ErrState
//	yes       nothing              the log was lost: ErrState
//	yes       another first line   one of both was swapped: ErrState
func openIdentity(parent string, log *ledger, read *logContent) (*identity, error) {
	dir := filepath.Join(parent, keyDir)
	absent, err := neverMade(dir)
	if err != nil {
		return nil, err
	}
	if absent && len(read.records) > 0 {
		return nil, fmt.Errorf("no key in %q, yet the signing log holds %d signatures: %w", dir, len(read.records), ErrState)
	}
	if absent {
		return createIdentity(parent, log)
	}
	id, err := readIdentity(dir)
	if err != nil {
		return nil, err
	}
	if read.key == nil {
		return nil, fmt.Errorf("the signing log of the identity in %q is missing: %w", dir, ErrState)
	}
	if !read.key.Equal(id.public()) || read.runtimeID != id.runtimeID {
		return nil, fmt.Errorf("the signing log belongs to another identity than %q: %w", dir, ErrState)
	}
	return id, nil
}

// createIdentity makes both files in a new directory and renames it into place:
// a crash before the rename leaves no identity, after it a whole one.
func createIdentity(parent string, log *ledger) (*identity, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	id := &identity{runtimeID: newRuntimeID(), key: key}
	fresh := filepath.Join(parent, newKeyDir)
	if err := writeIdentity(fresh, id); err != nil {
		return nil, err
	}
	if err := log.restart(); err != nil {
		return nil, err
	}
	if err := log.begin(id); err != nil {
		return nil, err
	}
	if err := os.Rename(fresh, filepath.Join(parent, keyDir)); err != nil {
		return nil, fmt.Errorf("publishing the identity: %w", err)
	}
	return id, syncDir(parent)
}

func newRuntimeID() protocol.RuntimeID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return protocol.RuntimeID(fmt.Sprintf("runtime-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

func writeIdentity(fresh string, id *identity) error {
	der, err := x509.MarshalPKCS8PrivateKey(id.key)
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	if err := os.RemoveAll(fresh); err != nil { // of a start that crashed
		return fmt.Errorf("making an identity: %w", err)
	}
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		return fmt.Errorf("making an identity: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	if err := writeNew(filepath.Join(fresh, keyFile), text); err != nil {
		return err
	}
	if err := writeNew(filepath.Join(fresh, runtimeFile), []byte(string(id.runtimeID)+"\n")); err != nil {
		return err
	}
	return syncDir(fresh)
}

func writeNew(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("making an identity: %w", err)
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("syncing: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("syncing %q: %w", path, err)
	}
	return nil
}
