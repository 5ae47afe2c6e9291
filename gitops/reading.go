package gitops

import (
	"errors"
	"fmt"
	"io"

	"github.com/veyra-labs/veyra-sandboxd/internal/frame"
)

// answer reads the frames of a worker. It stops at an error frame, at a frame
// that does not belong here, and at the bounds.
type answer struct {
	r     io.Reader
	op    string
	lim   Limits
	paths int64 // bytes of paths so far
	count int   // entries or paths so far
}

// next gives a frame's type and payload. The other side's death shows as
// KindInternal: the sandbox's end says more about it than this stream.
func (a *answer) next() (byte, []byte, error) {
	kind, payload, err := frame.Read(a.r, maxFrame)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil, Errorf(KindInternal, a.op, "worker ended without an answer: %w", err)
	case err != nil:
		return 0, nil, Errorf(KindBroken, a.op, "reading frame: %w", err)
	case kind == frameError:
		return 0, nil, a.failure(payload)
	}
	return kind, payload, nil
}

func (a *answer) failure(payload []byte) error {
	kind, text, err := decodeError(payload)
	if err != nil {
		return a.broken(err)
	}
	return Errorf(kind, a.op, "worker says %q", text)
}

func (a *answer) broken(err error) error { return &Error{Kind: KindBroken, Op: a.op, Err: err} }

func (a *answer) unexpected(kind byte) error {
	return a.broken(fmt.Errorf("frame %d in this place", kind))
}

// admit counts a path against the bounds and checks it.
func (a *answer) admit(path string, limit int) error {
	a.count++
	a.paths += int64(len(path))
	if a.count > limit || a.paths > a.lim.Paths {
		return Errorf(KindTooLarge, a.op, "more than %d paths or %d bytes of them", limit, a.lim.Paths)
	}
	if err := CheckPath(path); err != nil {
		return &Error{Kind: KindBroken, Op: a.op, Err: err}
	}
	return nil
}

// end wants the stream to be over: nothing may follow the last frame.
func (a *answer) end() error {
	if n, _ := io.ReadFull(a.r, make([]byte, 1)); n > 0 {
		return a.broken(errors.New("bytes after the last frame"))
	}
	return nil
}

// entries reads entry frames up to the done frame.
func (a *answer) entries() ([]Entry, summary, error) {
	var out []Entry
	for {
		kind, payload, err := a.next()
		if err != nil {
			return nil, summary{}, err
		}
		if kind == frameDone {
			s, err := a.done(payload)
			return out, s, err
		}
		e, err := a.entry(kind, payload)
		if err != nil {
			return nil, summary{}, err
		}
		out = append(out, e)
	}
}

func (a *answer) entry(kind byte, payload []byte) (Entry, error) {
	if kind != frameEntry {
		return Entry{}, a.unexpected(kind)
	}
	e, err := decodeEntry(payload)
	if err != nil {
		return Entry{}, a.broken(err)
	}
	return e, a.admit(e.Path, a.lim.Entries)
}

func (a *answer) done(payload []byte) (summary, error) {
	s, err := decodeSummary(payload)
	if err != nil {
		return summary{}, a.broken(err)
	}
	return s, a.end()
}

// ReadIndexReply reads the answer of the mode index to its end: the manifest
// of the commit asked for. Any other commit, or an entry count that does not
// fit, is KindBroken.
func ReadIndexReply(r io.Reader, commit ObjectID, lim Limits) (Manifest, error) {
	a := &answer{r: r, op: "reading index answer", lim: lim}
	entries, s, err := a.entries()
	if err != nil {
		return Manifest{}, err
	}
	if s.commit != commit || s.count != int64(len(entries)) {
		return Manifest{}, a.broken(fmt.Errorf("%d entries of commit %s", len(entries), s.commit))
	}
	m, err := NewManifest(s.commit, s.tree, entries)
	if err != nil {
		return Manifest{}, a.broken(err)
	}
	return m, nil
}

// ReadHashReply reads the answer of the mode hash to its end. The manifest has
// no commit, and no entries unless the request asked for files.
func ReadHashReply(r io.Reader, lim Limits) (Manifest, error) {
	a := &answer{r: r, op: "reading hash answer", lim: lim}
	entries, s, err := a.entries()
	if err != nil {
		return Manifest{}, err
	}
	if s.count != int64(len(entries)) {
		return Manifest{}, a.broken(fmt.Errorf("%d entries, announced %d", len(entries), s.count))
	}
	m, err := NewManifest("", s.tree, entries)
	if err != nil {
		return Manifest{}, a.broken(err)
	}
	return m, nil
}

// ReadCommitReply reads the answer of the mode commit to its end and copies
// the pack of new objects to pack, at most lim.Pack bytes. On an error pack
// holds a part that is of no use.
func ReadCommitReply(r io.Reader, pack io.Writer, lim Limits) (CommitReply, error) {
	a := &answer{r: r, op: "reading commit answer", lim: lim}
	reply, err := a.commit()
	if err != nil {
		return CommitReply{}, err
	}
	for {
		kind, payload, err := a.next()
		switch {
		case err != nil:
			return CommitReply{}, err
		case kind == frameChanged:
			err = a.changed(&reply, payload)
		case kind == framePack:
			err = a.pack(&reply, pack, payload)
		case kind == frameEnd:
			return reply, a.packEnd(reply, payload)
		default:
			err = a.unexpected(kind)
		}
		if err != nil {
			return CommitReply{}, err
		}
	}
}

func (a *answer) commit() (CommitReply, error) {
	kind, payload, err := a.next()
	if err != nil {
		return CommitReply{}, err
	}
	if kind != frameCommit {
		return CommitReply{}, a.unexpected(kind)
	}
	s, err := decodeSummary(payload)
	if err != nil {
		return CommitReply{}, a.broken(err)
	}
	return CommitReply{Commit: s.commit, Tree: s.tree}, nil
}

func (a *answer) changed(reply *CommitReply, payload []byte) error {
	if reply.PackSize > 0 {
		return a.unexpected(frameChanged)
	}
	return a.path(&reply.Changed, payload)
}

// path appends a changed path, which must come after the one before it.
func (a *answer) path(list *[]ChangedPath, payload []byte) error {
	p, err := decodeChanged(payload)
	if err != nil {
		return a.broken(err)
	}
	if n := len(*list); n > 0 && (*list)[n-1].Path >= p.Path {
		return a.broken(fmt.Errorf("changed path %q out of order", p.Path))
	}
	*list = append(*list, p)
	return a.admit(p.Path, a.lim.Changes)
}

func (a *answer) pack(reply *CommitReply, w io.Writer, part []byte) error {
	reply.PackSize += int64(len(part))
	if reply.PackSize > a.lim.Pack {
		return Errorf(KindTooLarge, a.op, "pack of more than %d bytes", a.lim.Pack)
	}
	if _, err := w.Write(part); err != nil {
		return Errorf(KindInternal, a.op, "writing pack: %w", err)
	}
	return nil
}

func (a *answer) packEnd(reply CommitReply, payload []byte) error {
	s, err := decodeSummary(payload)
	if err != nil {
		return a.broken(err)
	}
	if s.count != reply.PackSize || s.commit != reply.Commit {
		return a.broken(fmt.Errorf("%d bytes of pack, announced %d", reply.PackSize, s.count))
	}
	return a.end()
}

// ReadIgnoreReply reads the answer of the mode ignore to its end: those of the
// asked paths that are ignored. A path that was not asked is KindBroken.
func ReadIgnoreReply(r io.Reader, asked []string, lim Limits) ([]string, error) {
	a := &answer{r: r, op: "reading ignore answer", lim: lim}
	open := make(map[string]bool, len(asked))
	for _, p := range asked {
		open[p] = true
	}
	var out []string
	for {
		kind, payload, err := a.next()
		switch {
		case err != nil:
			return nil, err
		case kind == frameEnd:
			return out, a.end()
		case kind != framePath:
			return nil, a.unexpected(kind)
		case !open[string(payload)]:
			return nil, a.broken(fmt.Errorf("path %.80q was not asked", payload))
		}
		delete(open, string(payload))
		out = append(out, string(payload))
	}
}
