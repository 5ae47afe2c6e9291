package gitops

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
)

// ReplyWriter is the worker's side of an answer. It keeps the first error;
// Flush reports it. Not for concurrent use.
type ReplyWriter struct {
	buf  *bufio.Writer
	s    sender
	pack int64
}

// NewReplyWriter buffers an answer on its way to w.
func NewReplyWriter(w io.Writer) *ReplyWriter {
	buf := bufio.NewWriterSize(w, maxFrame)
	return &ReplyWriter{buf: buf, s: sender{w: buf}}
}

// Entry sends one path of a tree.
func (r *ReplyWriter) Entry(e Entry) { r.s.send(frameEntry, encodeEntry(e)) }

// Done ends the answer of index or hash.
func (r *ReplyWriter) Done(commit, tree ObjectID, entries int) {
	r.s.send(frameDone, encodeSummary(summary{commit, tree, int64(entries)}))
}

// Commit sends the ids of a new commit; changed paths and the pack follow.
func (r *ReplyWriter) Commit(commit, tree ObjectID) {
	r.s.send(frameCommit, encodeSummary(summary{commit: commit, tree: tree}))
}

// Changed sends one path that the commit changed, in order of paths.
func (r *ReplyWriter) Changed(p ChangedPath) { r.s.send(frameChanged, encodeChanged(p)) }

// Write sends bytes of the pack.
func (r *ReplyWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part := rest[:min(len(rest), packPart)]
		r.s.send(framePack, part)
		rest = rest[len(part):]
	}
	r.pack += int64(len(p))
	return len(p), r.s.err
}

// PackEnd ends the answer of commit.
func (r *ReplyWriter) PackEnd(commit ObjectID) {
	r.s.send(frameEnd, encodeSummary(summary{commit: commit, count: r.pack}))
}

// Base sends a merge base, in an answer of difftrees before its paths.
func (r *ReplyWriter) Base(id ObjectID) {
	var c coder
	c.id(id)
	r.s.send(frameBase, c.b)
}

// Path sends one ignored path.
func (r *ReplyWriter) Path(path string) { r.s.send(framePath, []byte(path)) }

// End ends the answer of ignore.
func (r *ReplyWriter) End() { r.s.send(frameEnd, nil) }

// Fail ends any answer with the kind of err and its escaped text.
func (r *ReplyWriter) Fail(err error) {
	r.s.send(frameError, encodeError(KindOf(err), strconv.QuoteToASCII(err.Error())))
}

// Flush sends what is buffered and gives the first error of the answer.
func (r *ReplyWriter) Flush() error {
	if r.s.err != nil {
		return r.s.result("writing answer")
	}
	return r.buf.Flush()
}

// request reads the frames of a request up to the end frame.
func request(r io.Reader, op string, each func(kind byte, payload []byte) error) error {
	for {
		kind, payload, err := frame.Read(r, maxFrame)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && kind == frameEnd {
			return nil
		}
		if err == nil {
			err = each(kind, payload)
		}
		if err != nil {
			return &Error{Kind: KindBroken, Op: op, Err: err}
		}
	}
}

func misplaced(kind byte) error { return fmt.Errorf("frame %d in this place", kind) }

// ReadCommitRequest is the worker's reading of WriteCommitRequest. A path that
// stands twice or that CheckPath refuses is KindBroken.
func ReadCommitRequest(r io.Reader) (CommitRequest, error) {
	var out CommitRequest
	seen, begun := map[string]bool{}, false
	err := request(r, "reading commit request", func(kind byte, payload []byte) (err error) {
		switch {
		case kind == frameCommit && !begun:
			begun = true
			out, err = decodeCommit(payload)
			return err
		case kind == frameChange && begun:
			c, err := decodeChange(payload)
			if err == nil && seen[c.Path] {
				err = fmt.Errorf("path %q stands twice", c.Path)
			}
			seen[c.Path] = true
			out.Changes = append(out.Changes, c)
			return errors.Join(err, CheckPath(c.Path))
		}
		return misplaced(kind)
	})
	if err == nil && !begun {
		err = Errorf(KindBroken, "reading commit request", "no commit frame")
	}
	return out, err
}

// ReadHashRequest is the worker's reading of WriteHashRequest.
func ReadHashRequest(r io.Reader) (HashRequest, error) {
	var out HashRequest
	err := request(r, "reading hash request", func(kind byte, payload []byte) error {
		switch kind {
		case frameHash:
			d := decoder{b: payload}
			out.Files = d.flag()
			return d.end("hash")
		case frameEntry:
			return out.add(payload)
		}
		return misplaced(kind)
	})
	return out, err
}

func (r *HashRequest) add(payload []byte) error {
	e, err := decodeEntry(payload)
	switch {
	case err != nil:
		return err
	case e.Mode.IsGitlink():
		r.Gitlinks = append(r.Gitlinks, e)
	case e.Mode.IsOdd():
		r.Odd = append(r.Odd, e)
	default:
		return fmt.Errorf("entry of mode %o needs no mention", e.Mode)
	}
	return nil
}

// ReadIgnoreRequest is the worker's reading of WriteIgnoreRequest.
func ReadIgnoreRequest(r io.Reader) (paths []string, err error) {
	err = request(r, "reading ignore request", func(kind byte, payload []byte) error {
		if kind != framePath {
			return misplaced(kind)
		}
		paths = append(paths, string(payload))
		return CheckPlain(string(payload))
	})
	return paths, err
}
