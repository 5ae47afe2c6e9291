package worker

import (
	"compress/flate"
	"compress/zlib"
	"errors"
	"hash"
	"io"

	"github.com/pjbgf/sha1cd"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// source is a buffered reader that copies what it read to a file, hashes what
// was consumed and knows where it is. It is an io.ByteReader, so that inflate
// takes no byte too many.
type source struct {
	r      io.Reader
	w      io.Writer
	max    int64
	h      hash.Hash
	buf    []byte
	pos    int // consumed
	end    int // filled
	hashed int
	at     int64 // offset of buf[pos] in the stream
	read   int64 // bytes taken from r
	err    error // of r, kept
	fatal  error // of w or a bound: never taken for a pack's fault
}

func newSource(r io.Reader, w io.Writer, limit int64) *source {
	return &source{r: r, w: w, max: limit, h: sha1cd.New(), buf: make([]byte, 64<<10)}
}

func (s *source) fill() error {
	s.h.Write(s.buf[s.hashed:s.end])
	s.pos, s.end, s.hashed = 0, 0, 0
	for s.end == 0 && s.err == nil {
		s.end, s.err = s.r.Read(s.buf)
	}
	if s.end == 0 {
		return s.err
	}
	if s.read += int64(s.end); s.read > s.max {
		s.fatal = tooLarge("pack of more than %d bytes", s.max)
		return s.fatal
	}
	if _, err := s.w.Write(s.buf[:s.end]); err != nil {
		s.fatal = gitops.Errorf(diskKind(err), prescanOp, "storing pack: %w", err)
		return s.fatal
	}
	return nil
}

// Read gives the next bytes.
func (s *source) Read(p []byte) (int, error) {
	if s.pos == s.end {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buf[s.pos:s.end])
	s.pos += n
	s.at += int64(n)
	return n, nil
}

// ReadByte gives the next byte.
func (s *source) ReadByte() (byte, error) {
	if s.pos == s.end {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	b := s.buf[s.pos]
	s.pos++
	s.at++
	return b, nil
}

// sum is the SHA-1 of everything consumed so far.
func (s *source) sum() []byte {
	s.h.Write(s.buf[s.hashed:s.pos])
	s.hashed = s.pos
	return s.h.Sum(nil)
}

// finish gives a fault of the source that the scan may have swallowed.
func (s *source) finish() error { return s.fatal }

// explain names the kind of a scan's error: our own faults first, then a
// stream that ended early, then data that does not inflate.
func (s *source) explain(err error) error {
	var known *gitops.Error
	var corrupt flate.CorruptInputError
	switch {
	case err == nil:
		return nil
	case s.fatal != nil:
		return s.fatal
	case errors.As(err, &known):
		return err
	case s.err != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return gitops.Errorf(gitops.KindCut, prescanOp, "pack ends after %d bytes", s.read)
	case errors.As(err, &corrupt), errors.Is(err, zlib.ErrChecksum), errors.Is(err, zlib.ErrHeader),
		errors.Is(err, zlib.ErrDictionary), errors.Is(err, io.ErrUnexpectedEOF):
		return unsupported("object that does not inflate: %w", err)
	}
	return gitops.Errorf(gitops.KindInternal, prescanOp, "reading pack: %w", err)
}
