package gitops

import (
	"io"

	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
)

// sender writes frames until the first error and keeps that.
type sender struct {
	w   io.Writer
	err error
}

func (s *sender) send(kind byte, payload []byte) {
	if s.err == nil {
		s.err = frame.Write(s.w, kind, payload)
	}
}

func (s *sender) result(op string) error {
	if s.err == nil {
		return nil
	}
	return Errorf(KindInternal, op, "writing frame: %w", s.err)
}

// WriteCommitRequest writes the standard input of the mode commit. It refuses
// (KindChange) paths that CheckPath refuses and a message over 16 KiB.
func WriteCommitRequest(w io.Writer, r CommitRequest) error {
	const op = "writing commit request"
	if len(r.Message) > maxMessage {
		return Errorf(KindChange, op, "message of %d bytes", len(r.Message))
	}
	s := sender{w: w}
	s.send(frameCommit, encodeCommit(r))
	for _, c := range r.Changes {
		if err := CheckPath(c.Path); err != nil {
			return &Error{Kind: KindChange, Op: op, Err: err}
		}
		s.send(frameChange, encodeChange(c))
	}
	s.send(frameEnd, nil)
	return s.result(op)
}

// WriteHashRequest writes the standard input of the mode hash.
func WriteHashRequest(w io.Writer, r HashRequest) error {
	s := sender{w: w}
	var c coder
	c.flag(r.Files)
	s.send(frameHash, c.b)
	for _, list := range [][]Entry{r.Gitlinks, r.Odd} {
		for _, e := range list {
			s.send(frameEntry, encodeEntry(e))
		}
	}
	s.send(frameEnd, nil)
	return s.result("writing hash request")
}

// WriteIgnoreRequest writes the standard input of the mode ignore. It refuses
// (KindChange) paths that CheckPlain refuses; any other may be asked, also one
// that no commit could hold.
func WriteIgnoreRequest(w io.Writer, paths []string) error {
	s := sender{w: w}
	for _, p := range paths {
		if err := CheckPlain(p); err != nil {
			return &Error{Kind: KindChange, Op: "writing ignore request", Err: err}
		}
		s.send(framePath, []byte(p))
	}
	s.send(frameEnd, nil)
	return s.result("writing ignore request")
}
