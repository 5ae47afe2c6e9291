// Package redact takes known secrets out of whatever leaves this program: logs,
// evidence, transcripts. It looks for exact values in the forms that programs
// give them, and never for what merely looks like a secret. Hashes are made
// over what it let through. Start reading at Set.
package redact

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// MinLength is the least number of bytes of a value that is looked for. Shorter
// ones, such as "test", would tear holes into honest text.
const MinLength = 12

// Marker stands where a secret stood.
const Marker = "[redacted]"

// ErrShort is returned by Add for a value under MinLength.
var ErrShort = errors.New("too short to be redacted")

// Set is a collection of secrets. All methods may run at once; a secret counts
// for every call that begins after Add returned. The zero value is empty and
// ready.
type Set struct {
	found   atomic.Uint64
	current atomic.Pointer[index]

	mu sync.Mutex // guards secrets
	// secrets holds how often each was added and not removed.
	secrets map[string]int
}

// New returns an empty Set.
func New() *Set { return new(Set) }

// Add makes secret one that is looked for. It returns ErrShort for a value
// under MinLength, which stays visible: warn the owner once. Adding it twice
// takes two calls of Remove to undo.
func (s *Set) Add(secret string) error {
	if len(secret) < MinLength {
		return fmt.Errorf("adding secret of %d bytes: %w", len(secret), ErrShort)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = make(map[string]int)
	}
	s.secrets[secret]++
	if s.secrets[secret] == 1 {
		s.rebuild()
	}
	return nil
}

// Remove undoes one Add of secret. A secret that is not there is left so.
func (s *Set) Remove(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.secrets[secret] {
	case 0:
		return
	case 1:
		delete(s.secrets, secret)
		s.rebuild()
	default:
		s.secrets[secret]--
	}
}

// rebuild makes a new index; readers keep the one that they began with.
func (s *Set) rebuild() {
	var all []string
	for secret := range s.secrets {
		all = append(all, forms(secret)...)
	}
	s.current.Store(newIndex(all))
}

func (s *Set) index() *index {
	if ix := s.current.Load(); ix != nil {
		return ix
	}
	return noSecrets
}

// noSecrets is the index of a Set to which nothing was added.
var noSecrets = newIndex(nil)

// Redactions returns how many places have been replaced so far.
func (s *Set) Redactions() uint64 { return s.found.Load() }

// Contains tells whether text holds a secret in any form. It counts nothing.
func (s *Set) Contains(text []byte) bool {
	ix := s.index()
	for i := range text {
		if ix.longest(text[i:]) > 0 {
			return true
		}
	}
	return false
}

// Bytes returns text with each secret replaced by Marker. It returns text
// itself when there is none.
func (s *Set) Bytes(text []byte) []byte {
	if !s.Contains(text) {
		return text
	}
	var out bytes.Buffer
	w := s.Writer(&out)
	// A bytes.Buffer has no errors.
	_, _ = w.Write(text)
	_ = w.Close()
	return out.Bytes()
}

// String is Bytes for strings.
func (s *Set) String(text string) string {
	return string(s.Bytes([]byte(text)))
}

// prefixLength is how many bytes of a form the index sorts by.
const prefixLength = 4

// index finds forms at a place in a text. It never changes.
type index struct {
	// pairs has a bit for each two bytes that begin a form: most places of a
	// text fail here.
	pairs [1 << 16 / 64]uint64
	// byPrefix holds the forms by their first bytes, longest first.
	byPrefix map[[prefixLength]byte][]string
	maxLen   int
}

func newIndex(all []string) *index {
	ix := &index{byPrefix: make(map[[prefixLength]byte][]string)}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, form := range all {
		pair := uint16(form[0])<<8 | uint16(form[1])
		ix.pairs[pair/64] |= 1 << (pair % 64)
		prefix := [prefixLength]byte([]byte(form[:prefixLength]))
		ix.byPrefix[prefix] = append(ix.byPrefix[prefix], form)
		ix.maxLen = max(ix.maxLen, len(form))
	}
	return ix
}

// candidates returns the forms that begin with the first bytes of text, which
// has at least prefixLength.
func (ix *index) candidates(text []byte) []string {
	pair := uint16(text[0])<<8 | uint16(text[1])
	if ix.pairs[pair/64]&(1<<(pair%64)) == 0 {
		return nil
	}
	return ix.byPrefix[[prefixLength]byte(text)]
}

// longest returns the length of the longest form that text begins with, or 0.
func (ix *index) longest(text []byte) int {
	if len(text) < MinLength {
		return 0
	}
	for _, form := range ix.candidates(text) {
		if len(form) <= len(text) && string(text[:len(form)]) == form {
			return len(form)
		}
	}
	return 0
}

// begins tells whether text, all of it, may be the beginning of a form.
func (ix *index) begins(text []byte) bool {
	if len(text) >= prefixLength {
		return anyBegins(ix.candidates(text), text)
	}
	for _, list := range ix.byPrefix {
		if anyBegins(list, text) {
			return true
		}
	}
	return false
}

func anyBegins(all []string, text []byte) bool {
	for _, form := range all {
		if len(form) > len(text) && form[:len(text)] == string(text) {
			return true
		}
	}
	return false
}
